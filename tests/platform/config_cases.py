"""Cases of `check_and_update_config` and of vLLM's parsers, all in one child process.

`run` starts it and gives back, by case, what the tests look at; a case that raises gives the
error's text.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tests.helpers.plugins import run_command

Facts = dict[str, Any]

STOCK_SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": 320,
    "torch_dtype": "float32",
}


def run(folder: Path) -> dict[str, Facts]:
    """Run all cases in a child on the xyserve platform."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    result = folder / "config_cases.json"
    done = run_command(
        ("-m", "tests.platform.config_cases", str(model), str(result)), {"XYSERVE_PLATFORM": "1"}
    )
    if done.code:
        raise RuntimeError(f"the process of the configuration cases failed:\n{done.log}")
    facts: dict[str, Facts] = json.loads(result.read_text(encoding="utf-8"))
    return facts


class _Lines(logging.Handler):
    """Our log lines, as ``LEVEL text``."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


@contextlib.contextmanager
def _log() -> Iterator[list[str]]:
    """Collect our lines. vLLM sets up its loggers while it makes a config, so go by ours."""
    logger = logging.getLogger("vllm.xyserve")
    handler = _Lines()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)


class Cases:
    """One method per case; the name is the key of its facts."""

    def __init__(self, model: str) -> None:
        self.model = model

    def _config(self, options: Facts | None = None, **args: Any) -> Any:
        from vllm.engine.arg_utils import EngineArgs

        additional = {} if options is None else {"xyserve": options}
        args = {
            "model": self.model,
            "skip_tokenizer_init": True,
            "max_model_len": 64,
            "additional_config": additional,
        } | args
        return EngineArgs(**args).create_engine_config()

    def _facts(self, options: Facts | None = None, *, again: bool = False, **args: Any) -> Facts:
        with _log() as lines:
            config = self._config(options, **args)
            if again:
                config.__post_init__()
        return {
            "scheduler": _name(config.scheduler_config.scheduler_cls),
            "worker": _name(config.parallel_config.worker_cls),
            "additional": {k: v for k, v in config.additional_config.items() if k != "xyserve"},
            "hash": config.compute_hash(),
            "log": lines,
        }

    def defaults(self) -> Facts:
        return self._facts()

    def twice(self) -> Facts:
        """As in the engine core, which runs the same on the config that it was sent."""
        return self._facts(again=True)

    def linear_reference(self) -> Facts:
        return self._facts({"linear": "reference"})

    def linear_upstream(self) -> Facts:
        return self._facts({"linear": "upstream"})

    def attention_reference(self) -> Facts:
        return self._facts({"attention": "reference"})

    def norms(self) -> Facts:
        """Who computes norms, first come first: by options of the plugin, and of vLLM."""

        def order(linear: str, **args: Any) -> list[list[str]]:
            config = self._config({"linear": linear}, **{"enforce_eager": True, **args})
            priority = config.kernel_config.ir_op_priority
            return [priority.rms_norm, priority.fused_add_rms_norm, priority.gelu_and_mul_sparse]

        return {
            "native": order("native"),
            "upstream": order("upstream"),
            "compiled": order("native", enforce_eager=False),
            "asked": order("native", ir_op_priority={"rms_norm": ["native"]}),
        }

    def user_scheduler(self) -> Facts:
        return self._facts(scheduler_cls=STOCK_SCHEDULER)

    def user_scheduler_class(self) -> Facts:
        from vllm.v1.core.sched.scheduler import Scheduler

        return self._facts(scheduler_cls=Scheduler, again=True)

    def scheduler_off(self) -> Facts:
        return self._facts({"scheduler": False}, again=True)

    def user_worker(self) -> Facts:
        return self._facts(worker_cls="tests.platform.config_cases.Worker")

    def user_worker_and_linear(self) -> Facts:
        return self._facts(
            {"linear": "reference"}, worker_cls="tests.platform.config_cases.Worker", again=True
        )

    def unknown_option(self) -> Facts:
        return self._facts({"shceduler": True})

    def wrong_value(self) -> Facts:
        return self._facts({"attention": "fast"})

    def options_are_no_object(self) -> Facts:
        return self._facts(additional_config={"xyserve": "reference"})

    def notes(self) -> Facts:
        """What came up before vLLM had set up its logging."""
        from vllm_xyserve.platform import notes

        notes.add("something came up early")
        return self._facts(again=True)

    def parent_sets_scheduler(self) -> Facts:
        """A parent platform that insists on a scheduler of its own, as vllm-ascend may."""
        with _parent_platform():
            facts = self._facts(again=True)
            config = self._config()
        from vllm_xyserve.scheduler import factory

        cls = factory.scheduler_class(factory._base_class(config))
        return facts | {"mro": [c.__name__ for c in cls.__mro__]}

    def parent_and_user_set_scheduler(self) -> Facts:
        with _parent_platform():
            return self._facts(scheduler_cls=STOCK_SCHEDULER)

    def scheduler_classes(self) -> Facts:
        from types import SimpleNamespace

        from vllm_xyserve.scheduler import factory

        def mro(asynchronous: bool) -> list[str]:
            config = SimpleNamespace(
                additional_config={},
                scheduler_config=SimpleNamespace(async_scheduling=asynchronous),
            )
            cls = factory.scheduler_class(factory._base_class(config))
            return [c.__name__ for c in cls.__mro__]

        return {"sync": mro(False), "async": mro(True)}

    def attention_backends(self) -> Facts:
        return _attention_backends(self._config())

    def parsers(self) -> Facts:
        file = Path(self.model, "serve.yaml")
        file.write_text("platform: xyserve\nmax-num-seqs: 7\n", encoding="utf-8")
        return _parsers(self.model, str(file))

    def cpu_gemm_dispatch(self) -> Facts:
        from tests.platform import gemm_cases

        return gemm_cases.callers("dispatch_cpu_unquantized_gemm") | gemm_cases.dispatch()

    def int8_kernels(self) -> Facts:
        from tests.platform import gemm_cases

        return gemm_cases.int8_kernels()


def _name(cls: Any) -> str:
    return cls if isinstance(cls, str) or cls is None else f"{cls.__module__}.{cls.__qualname__}"


class Worker:
    """Stands for a user's worker class; only its name matters."""


def __getattr__(name: str) -> Any:
    """``ParentScheduler``, found late: this module is imported without vLLM, too."""
    if name != "ParentScheduler":
        raise AttributeError(name)
    from vllm.v1.core.sched.scheduler import Scheduler

    return type("ParentScheduler", (Scheduler,), {"__module__": __name__})


@contextlib.contextmanager
def _parent_platform() -> Iterator[None]:
    """The active platform derives from one that sets a scheduler in its configuration step."""
    from vllm.platforms import current_platform
    from vllm.platforms.cpu import CpuPlatform

    from vllm_xyserve.platform.cpu import XyCpuMixin

    class ParentPlatform(CpuPlatform):
        @classmethod
        def check_and_update_config(cls, vllm_config: Any) -> None:
            super().check_and_update_config(vllm_config)
            path = "tests.platform.config_cases.ParentScheduler"
            vllm_config.scheduler_config.scheduler_cls = path

    original = type(current_platform)
    current_platform.__class__ = type("XyParent", (XyCpuMixin, ParentPlatform), {})
    try:
        yield
    finally:
        current_platform.__class__ = original


def _attention_backend(vllm_config: Any, selected: Any = None, **fields: Any) -> str:
    """The class path, or the error's text, for an attention layer with these fields."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.platforms import current_platform
    from vllm.v1.attention.selector import AttentionSelectorConfig

    plain = {"head_size": 32, "dtype": torch.float32, "kv_cache_dtype": "auto", "block_size": 16}
    with set_current_vllm_config(vllm_config):
        try:
            path: str = current_platform.get_attn_backend_cls(
                selected,
                attn_selector_config=AttentionSelectorConfig(**plain | fields),
                num_heads=4,
            )
        except NotImplementedError as error:
            return str(error)
        return path


def _attention_backends(vllm_config: Any) -> Facts:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum as Backend

    flags = ("mla", "sparse", "mm_prefix", "pcp", "dcp", "rswa", "kv_connector")
    invariant = {}
    for path in ("upstream", "native"):
        options = {"xyserve": {"attention": path}}
        with mock.patch.object(vllm_config, "additional_config", options):
            invariant[path] = _attention_backend(vllm_config, use_batch_invariant=True)
    return {
        "plain": _attention_backend(vllm_config),
        "CUSTOM": _attention_backend(vllm_config, Backend.CUSTOM),
        "CPU_ATTN": _attention_backend(vllm_config, Backend.CPU_ATTN),
        "stock": Backend.CPU_ATTN.get_path(),
        "registered": Backend.CUSTOM.get_path(),
        **{flag: _attention_backend(vllm_config, **{f"use_{flag}": True}) for flag in flags},
        **{f"batch_invariant {path}": chosen for path, chosen in invariant.items()},
    }


def _parse(command: list[str]) -> Facts:
    """What vLLM's own parser makes of a command line, after our entry points have run."""
    import vllm.entrypoints.cli.benchmark.main
    import vllm.entrypoints.cli.launch
    import vllm.entrypoints.cli.preload
    import vllm.entrypoints.cli.run_batch
    import vllm.entrypoints.cli.serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from vllm_xyserve import plugin

    cli = vllm.entrypoints.cli
    sys.argv = ["vllm", *command]
    error = io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(error):
        try:
            plugin.register()
            parser = FlexibleArgumentParser()
            subparsers = parser.add_subparsers(dest="subparser")
            for module in (cli.serve, cli.launch, cli.benchmark.main, cli.preload, cli.run_batch):
                for subcommand in module.cmd_init():
                    subcommand.subparser_init(subparsers)
            args = parser.parse_args()
        except SystemExit as end:
            return {"code": end.code, "error": error.getvalue()}
    return {"code": None, "platform": getattr(args, "platform", None), "model": args.model}


def _parsers(model: str, config: str) -> Facts:
    ours = ["--platform", "xyserve"]
    named = ["--model", model]
    commands = {
        "serve": ["serve", model, *ours],
        "serve without": ["serve", model],
        "serve config": ["serve", model, "--config", config],
        "serve other": ["serve", model, "--platform", "other"],
        "serve valueless": ["serve", model, "--platform"],
        "run-batch": ["run-batch", "-i", "in", "-o", "out", *named, *ours],
        "bench throughput": ["bench", "throughput", *named, *ours],
        "bench latency": ["bench", "latency", *named, *ours],
        "bench startup": ["bench", "startup", *named, *ours],
        "bench mm-processor": ["bench", "mm-processor", *named, *ours],
        "preload": ["preload", *named, *ours],
        "launch render": ["launch", "render", model, *ours],
    }
    return {name: _parse(command) for name, command in commands.items()}


def main(model: str, file: str) -> None:
    """Run all cases and write their facts."""
    cases = Cases(model)
    cases._config()  # sets up vLLM's logging, which drops the handlers that it finds
    facts = {}
    methods: dict[str, Callable[[], Facts]] = {
        name: getattr(cases, name) for name in vars(Cases) if not name.startswith("_")
    }
    for name, method in methods.items():
        try:
            facts[name] = method()
        except Exception as error:
            traceback.print_exc()
            facts[name] = {"raised": f"{type(error).__name__}: {error}"}
    Path(file).write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
