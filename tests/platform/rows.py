"""The table: every way to choose or to miss the platform, as circumstances of a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.plugins import (
    OWN_SCRIPT,
    VLLM_SERVE,
    Row,
    make_ascend,
    make_rival,
)

CHOSEN = {"XYSERVE_PLATFORM": "1"}
SERVE_CHOSEN = (*VLLM_SERVE, "--platform", "xyserve")


@dataclass(frozen=True, slots=True)
class Fakes:
    """Folders with fake distributions, and a configuration file that chooses xyserve."""

    rival: str
    same_name: str
    ascend: str
    config: str

    @classmethod
    def make(cls, folder: Path) -> Fakes:
        """Write them below `folder`."""
        config = folder / "serve.yaml"
        config.write_text("platform: xyserve\nport: 8123\n", encoding="utf-8")
        return cls(
            rival=make_rival(folder / "rival", "rival"),
            same_name=make_rival(folder / "same_name", "xyserve"),
            ascend=make_ascend(folder / "ascend"),
            config=str(config),
        )


def forked(fakes: Fakes) -> Mapping[str, Row]:
    """Rows that start from a process which has imported vLLM, see `platform_child.serve`."""
    return {
        **_ways_to_choose(fakes),
        **_ways_to_miss(),
        **_broken_imports(),
        **_other_plugins(fakes),
        **_ascend(fakes),
    }


def _ways_to_choose(fakes: Fakes) -> Mapping[str, Row]:
    return {
        "not chosen": Row(argv=VLLM_SERVE),
        "not chosen, off": Row(env={"XYSERVE_PLATFORM": "0"}),
        "own option --platform": Row(argv=(*OWN_SCRIPT, "--platform", "linux")),
        "flag": Row(argv=SERVE_CHOSEN),
        "flag of an own script": Row(argv=(*OWN_SCRIPT, "--platform", "xyserve")),
        "variable": Row(env=CHOSEN),
        "config file": Row(argv=(*VLLM_SERVE, "--config", fakes.config)),
        "bench latency": Row(argv=("vllm", "bench", "latency", "--platform", "xyserve", "--x")),
        "variable set late": Row(late_env=CHOSEN),
        "unknown platform": Row(argv=(*VLLM_SERVE, "--platform", "nonsense")),
        "bad variable, serve": Row(argv=VLLM_SERVE, env={"XYSERVE_PLATFORM": "maybe"}),
        "bad variable, script": Row(env={"XYSERVE_PLATFORM": "maybe"}),
        "bad device": Row(argv=SERVE_CHOSEN, env={"XYSERVE_DEVICE": "quantum"}),
        "device that is not there": Row(argv=SERVE_CHOSEN, env={"XYSERVE_DEVICE": "cuda"}),
        "npu without vllm-ascend": Row(argv=SERVE_CHOSEN, env={"XYSERVE_DEVICE": "npu"}),
    }


def _ways_to_miss() -> Mapping[str, Row]:
    target = {"VLLM_TARGET_DEVICE": "cpu"}
    return {
        "target, flag": Row(argv=SERVE_CHOSEN, env=target),
        "target, variable": Row(env=CHOSEN | {"VLLM_TARGET_DEVICE": "CPU"}),
        "target, not chosen": Row(argv=VLLM_SERVE, env=target),
        "target, unknown platform": Row(argv=(*VLLM_SERVE, "--platform", "nonsense"), env=target),
        "target, bad variable": Row(env=target | {"XYSERVE_PLATFORM": "maybe"}),
        "target, bad device": Row(env=CHOSEN | target | {"XYSERVE_DEVICE": "quantum"}),
        "target, other device": Row(env=CHOSEN | target | {"XYSERVE_DEVICE": "cuda"}),
        "target, plugin named": Row(argv=SERVE_CHOSEN, env=target | {"VLLM_PLUGINS": "xyserve"}),
        "target, guard named": Row(
            argv=SERVE_CHOSEN, env=target | {"VLLM_PLUGINS": "xyserve_guard"}
        ),
        "no plugins, serve": Row(argv=SERVE_CHOSEN, env={"VLLM_PLUGINS": ""}),
        "no plugins, variable": Row(argv=VLLM_SERVE, env=CHOSEN | {"VLLM_PLUGINS": ""}),
        "no plugins, script": Row(env=CHOSEN | {"VLLM_PLUGINS": ""}),
        "no plugins, not chosen": Row(argv=VLLM_SERVE, env={"VLLM_PLUGINS": ""}),
        "another plugin named": Row(argv=SERVE_CHOSEN, env={"VLLM_PLUGINS": "something_else"}),
        "plugin named": Row(argv=SERVE_CHOSEN, env={"VLLM_PLUGINS": "xyserve"}),
        "guard named": Row(argv=SERVE_CHOSEN, env={"VLLM_PLUGINS": "xyserve_guard"}),
        "both named": Row(argv=SERVE_CHOSEN, env={"VLLM_PLUGINS": "xyserve,xyserve_guard"}),
    }


def _broken_imports() -> Mapping[str, Row]:
    """Each of our modules that choosing needs, for both kinds of process and with only us named."""
    named = {"VLLM_PLUGINS": "xyserve"}
    # torch's own advice when a backend fails to load.
    no_hook = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    table = {}
    for module in ("cpu", "common", "factory", "rivals", "guard", "select"):
        broken = (f"vllm_xyserve.platform.{module}",)
        table |= {
            f"broken {module}, serve": Row(argv=SERVE_CHOSEN, broken=broken),
            f"broken {module}, script": Row(env=CHOSEN | no_hook, broken=broken),
            f"broken {module}, named": Row(env=CHOSEN | named | no_hook, broken=broken),
        }
    for module in ("cpu", "factory", "select"):
        table[f"broken {module}, not chosen"] = Row(broken=(f"vllm_xyserve.platform.{module}",))
    return table


def _other_plugins(fakes: Fakes) -> Mapping[str, Row]:
    rival, same = (fakes.rival,), (fakes.same_name,)
    ours_only = {"VLLM_PLUGINS": "xyserve"}
    return {
        "rival before, serve": Row(argv=SERVE_CHOSEN, before=rival),
        "rival after, serve": Row(argv=SERVE_CHOSEN, after=rival),
        "rival before, script": Row(env=CHOSEN, before=rival),
        "rival after, script": Row(env=CHOSEN, after=rival),
        "rival named alone": Row(
            argv=SERVE_CHOSEN, before=rival, env={"VLLM_PLUGINS": "rival,xyserve_guard"}
        ),
        "rival not named": Row(argv=SERVE_CHOSEN, before=rival, env=ours_only),
        "rival, not chosen": Row(before=rival),
        "same name before": Row(argv=SERVE_CHOSEN, before=same),
        "same name after": Row(argv=SERVE_CHOSEN, after=same),
    }


def _ascend(fakes: Fakes) -> Mapping[str, Row]:
    ascend, npu = (fakes.ascend,), {"XYSERVE_DEVICE": "npu"}
    probe = ("vllm_ascend.models", "vllm_ascend.platform")
    keep = {"XYSERVE_KEEP_ASCEND": "1"}
    return {
        "ascend before, npu": Row(argv=SERVE_CHOSEN, env=npu, before=ascend, probe_modules=probe),
        "ascend after, npu": Row(argv=SERVE_CHOSEN, env=npu, after=ascend, probe_modules=probe),
        "ascend before, cpu": Row(env=CHOSEN, before=ascend, probe_modules=probe),
        "ascend after, cpu": Row(env=CHOSEN, after=ascend, probe_modules=probe),
        "ascend before, not chosen": Row(before=ascend, probe_modules=probe),
        "ascend after, not chosen": Row(after=ascend, probe_modules=probe),
        "ascend kept, serve": Row(argv=SERVE_CHOSEN, env=npu | keep, before=ascend),
        "ascend kept, script": Row(env=CHOSEN | npu | keep, after=ascend),
        "target, ascend": Row(env=CHOSEN | npu | {"VLLM_TARGET_DEVICE": "cpu"}, before=ascend),
    }


def fresh(fakes: Fakes) -> Mapping[str, Row]:
    """Rows that need an interpreter of their own."""
    return {
        "children": Row(argv=(*VLLM_SERVE, "--platform=xyserve"), children=True),
        # Importing torch has loaded our module for torch's hook by then, and nothing was chosen.
        "chosen after torch, ascend": Row(
            env={"XYSERVE_DEVICE": "npu"},
            env_after_torch=CHOSEN,
            before=(fakes.ascend,),
            torch_first=True,
        ),
    }


Command = tuple[tuple[str, ...], Mapping[str, str]]


def commands(fakes: Fakes) -> Mapping[str, Command]:
    """vLLM's real commands: arguments of Python, and variables."""
    server = "vllm.entrypoints.openai.api_server"
    chosen = ("--model", "none", "--platform", "xyserve")
    return {
        # `-um`: Python lets options share a dash.
        "command, no plugins": (("-um", server, *chosen), {"VLLM_PLUGINS": ""}),
        "command, config file": (
            ("-m", server, "--model", "none", "--config", fakes.config),
            {"VLLM_PLUGINS": "something_else"},
        ),
        "command, unknown platform": (
            ("-m", "vllm.entrypoints.cli.main", "serve", "none", "--platform", "nonsense"),
            {},
        ),
    }
