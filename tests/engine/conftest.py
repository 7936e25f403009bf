"""Engine runs that several tests read; each is one child process, made when first asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.engine import features, linear_engines, prefix_engines
from tests.helpers import models
from tests.helpers.engine import ROOT, Engine, Run, Setting, run

UPSTREAM = {"attention": "upstream", "linear": "upstream"}
# Attention in plain torch, linear layers through our kernels.
REFERENCE = {"attention": "reference", "linear": "native"}
NATIVE = {"attention": "native", "linear": "native", "plan": {"where": "scheduler"}}
NUM_TOKENS = 20
TOKEN_BUDGET = 512
TIMEOUT = 1100.0  # seconds, for a machine that has other things to do; idle it is two minutes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test's time includes the run that it is the first to ask for: minutes on a busy machine."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.timeout(2400))


@pytest.fixture(scope="session")
def prompts() -> dict[str, list[int]]:
    """The tokens of 32 prompts, by name."""
    from transformers import AutoTokenizer

    data = json.loads((ROOT / "tests" / "data" / "prompts.json").read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(models.smollm2())
    tokens = {}
    for prompt in data["prompts"]:
        parts = prompt["parts"]
        text = "".join(data["passages"][p[1:]] if p.startswith("@") else p for p in parts)
        tokens[prompt["name"]] = _tokenize(tokenizer, text, prompt["chat"])
    return tokens


@pytest.fixture(scope="session", autouse=True)
def start_children(request: pytest.FixtureRequest) -> None:
    """Start all runs that the selected tests read, so that no core is idle in between."""
    asked = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    names = ("feature_runs", "prefix_runs", "compiled_runs", "smollm2_runs", "linear_child")
    for name in (*names, "parallel_child"):
        if name in asked:
            request.getfixturevalue(name)


@pytest.fixture(scope="session")
def children() -> Iterator[ThreadPoolExecutor]:
    """Starts children, two at a time: each keeps one core busy."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield pool
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def smollm2_runs(
    children: ThreadPoolExecutor, prompts: dict[str, list[int]], folder: Path
) -> dict[str, Future[Run]]:
    """SmolLM2 on stock vLLM, on xyserve with every part upstream, and with both parts ours."""
    settings = {"stock": None, "upstream": UPSTREAM, "reference": REFERENCE, "native": NATIVE}
    return {
        name: children.submit(_smollm2_run, name, options, prompts, folder)
        for name, options in settings.items()
    }


@pytest.fixture(scope="session")
def smollm2_stock(smollm2_runs: dict[str, Future[Run]]) -> Run:
    """SmolLM2 on stock vLLM."""
    return smollm2_runs["stock"].result()


@pytest.fixture(scope="session")
def prefix_runs(children: ThreadPoolExecutor, folder: Path) -> dict[str, Future[Run]]:
    """The child of each engine of the prefix-cache cases."""
    runs = {}
    for name, engines in prefix_engines.warm_engines().items():
        setting = Setting(f"blocks-of-{name}", {})
        child = _submit(children, setting, engines, folder / f"prefix-{name}")
        runs.update(dict.fromkeys([engine.name for engine in engines], child))
    cold = [prefix_engines.cold_engine()]
    runs["cold"] = _submit(children, Setting("cold", None), cold, folder / "prefix-cold")
    return runs


@pytest.fixture(scope="session")
def linear_child(children: ThreadPoolExecutor, made: features.Models, folder: Path) -> Future[Run]:
    """Native linear layers; the int8 models are made below the child's folder."""
    engines = linear_engines.engines(made, folder / "int8")
    return _submit(children, Setting("linear", {}), engines, folder / "linear")


@pytest.fixture(scope="session")
def compiled_runs(
    children: ThreadPoolExecutor, made: features.Models, folder: Path
) -> Future[dict[str, Run]]:
    """torch.compile on two settings: one after the other, so that the second finds the artefacts
    of the first in the cache that they share, as a user has it who toggles an option."""

    def both() -> dict[str, Run]:
        env = {"VLLM_CACHE_ROOT": str(folder / "compile-cache")}
        runs = {}
        for name, options in (("upstream", UPSTREAM), ("native", NATIVE)):
            setting = Setting(name, options, env=env)
            engines = [features.compiled(made)]
            runs[name] = run(setting, engines, folder / f"compiled-{name}", timeout=TIMEOUT)
        return runs

    return children.submit(both)


@pytest.fixture(scope="session")
def parallel_child(
    children: ThreadPoolExecutor, made: features.Models, folder: Path
) -> Future[Run]:
    """Both parts native on two tensor-parallel ranks, a core for each where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    env = {"VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}"}
    setting = Setting("tensor-parallel", NATIVE, processes=True, env=env)
    return _submit(children, setting, [features.tensor_parallel(made)], folder / "parallel")


@pytest.fixture(scope="session")
def made(folder: Path) -> features.Models:
    """The tiny models."""
    return features.make_models(folder / "models")


@pytest.fixture(scope="session")
def feature_runs(
    children: ThreadPoolExecutor, made: features.Models, folder: Path
) -> dict[str, Future[Run]]:
    """The features on three settings."""
    engines = features.engines(made)
    settings = [
        (Setting("stock", None), [*features.yardsticks(made), *engines]),
        (Setting("default", {}), engines),
        (Setting("reference", REFERENCE), engines),
        (Setting("native", NATIVE), engines),
    ]
    return {
        setting.name: _submit(children, setting, these, folder / f"features-{setting.name}")
        for setting, these in settings
    }


@pytest.fixture(scope="session")
def stock(feature_runs: dict[str, Future[Run]]) -> Run:
    """The features on stock vLLM."""
    return feature_runs["stock"].result()


@pytest.fixture(scope="session")
def default(feature_runs: dict[str, Future[Run]]) -> Run:
    """The features on xyserve without any option."""
    return feature_runs["default"].result()


@pytest.fixture(scope="session")
def reference(feature_runs: dict[str, Future[Run]]) -> Run:
    """The features on xyserve with both parts ours."""
    return feature_runs["reference"].result()


@pytest.fixture(scope="session", params=["default", "reference", "native"])
def ours(request: pytest.FixtureRequest, feature_runs: dict[str, Future[Run]]) -> Run:
    """Each of the two runs on xyserve."""
    return feature_runs[request.param].result()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models, logs and answers of this session lie."""
    return tmp_path_factory.mktemp("engine")


def _submit(
    children: ThreadPoolExecutor, setting: Setting, engines: list[Engine], folder: Path
) -> Future[Run]:
    return children.submit(run, setting, engines, folder, timeout=TIMEOUT)


def _smollm2_run(
    name: str, options: dict[str, Any] | None, prompts: dict[str, list[int]], folder: Path
) -> Run:
    llm = {
        "model": str(models.smollm2()),
        "max_model_len": 1024,
        "max_num_batched_tokens": TOKEN_BUDGET,
        "block_size": 32,
        "kv_cache_memory_bytes": 512 << 20,  # all 32 requests at once
        "disable_log_stats": False,
    }
    sampling = {"temperature": 0.0, "max_tokens": NUM_TOKENS, "ignore_eos": True, "logprobs": 2}
    steps: list[dict[str, Any]] = [
        {"name": "generate", "do": "generate", "prompts": list(prompts.values()), **sampling},
        {"name": "look", "do": "look"},
        {"name": "metrics", "do": "metrics"},
    ]
    if options is not None:
        steps.append({"name": "report", "do": "report"})
    # Threads that wait give their core away: another child may run at the same time.
    env = {"OMP_WAIT_POLICY": "passive"}
    setting = Setting(name, options, processes=options is not None, env=env)
    return run(
        setting, [Engine("smollm2", llm, steps)], folder / f"smollm2-{name}", timeout=TIMEOUT
    )


def _tokenize(tokenizer: Any, text: str, chat: bool) -> list[int]:
    if not chat:
        return list(tokenizer(text).input_ids)
    messages = [{"role": "user", "content": text}]
    encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    return list(encoded["input_ids"])
