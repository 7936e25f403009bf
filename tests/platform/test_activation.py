"""The table over every way to choose or to miss the platform; each row is a process of its own.

What a row starts with is in `rows.py`, what it has to end with is here.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from tests.helpers.plugins import Outcome
from tests.platform import rows

Started = dict[str, Future[Any]]

XY_CPU = ["XyCpuPlatform", "XyCpuMixin", "XyPlatformMixin"]
SET_PLUGINS = "VLLM_PLUGINS=xyserve "

STOCK = [
    "not chosen",
    "not chosen, off",
    "own option --platform",
    "target, not chosen",
    "no plugins, not chosen",
    "broken cpu, not chosen",
    "broken select, not chosen",
    "broken factory, not chosen",
]

# Row -> class that vLLM had chosen by itself before our general plugin ran.
OURS = {
    "flag": "XyCpuPlatform",
    "flag of an own script": "XyCpuPlatform",
    "variable": "XyCpuPlatform",
    "config file": "XyCpuPlatform",
    "bench latency": "XyCpuPlatform",
    "variable set late": "CpuPlatform",
    "target, flag": "CpuPlatform",
    "target, variable": "CpuPlatform",
    "target, plugin named": "CpuPlatform",
    "target, guard named": "CpuPlatform",
    "plugin named": "XyCpuPlatform",
    "guard named": "CpuPlatform",
    "both named": "XyCpuPlatform",
    "rival not named": "XyCpuPlatform",
    "same name before": "XyCpuPlatform",
    "ascend before, cpu": "XyCpuPlatform",
    "ascend after, cpu": "XyCpuPlatform",
}

# Row -> exit status and what the log has to say.
ERRORS = {
    "unknown platform": (2, ["argument --platform: invalid choice: 'nonsense'", "'xyserve'"]),
    "bad variable, serve": (1, ["vllm: error: XYSERVE_PLATFORM must be one of 1,", "'maybe'"]),
    "bad variable, script": (1, ["PlatformError: XYSERVE_PLATFORM must be one of", "'maybe'"]),
    "bad device": (1, ["vllm: error: XYSERVE_DEVICE must be one of cpu, cuda, npu", "'quantum'"]),
    "device that is not there": (1, ["for cuda (XYSERVE_DEVICE=cuda)", "could not be loaded"]),
    "npu without vllm-ascend": (1, ["for npu (XYSERVE_DEVICE=npu)", "vllm_ascend"]),
    "target, unknown platform": (2, ["argument --platform: invalid choice: 'nonsense'"]),
    "target, bad variable": (1, ["PlatformError: XYSERVE_PLATFORM must be one of"]),
    "target, bad device": (1, ["XYSERVE_DEVICE must be one of cpu, cuda, npu", "'quantum'"]),
    "target, other device": (1, ["does not load: Module", "set XYSERVE_DEVICE=cpu"]),
    "target, ascend": (1, ["VLLM_TARGET_DEVICE=cpu", "XYSERVE_DEVICE=cpu"]),
    "no plugins, serve": (2, ["(--platform xyserve), but VLLM_PLUGINS='' keeps", "Unset"]),
    "no plugins, variable": (2, ["(XYSERVE_PLATFORM=1), but VLLM_PLUGINS='' keeps", "Unset"]),
    "another plugin named": (2, ["VLLM_PLUGINS='something_else'", "add xyserve to it"]),
    "broken select, serve": (1, ["injected: vllm_xyserve.platform.select", "reinstall"]),
    "broken select, script": (1, ["injected: vllm_xyserve.platform.select"]),
    "broken select, named": (1, ["injected: vllm_xyserve.platform.select"]),
    "broken guard, serve": (1, ["injected: vllm_xyserve.platform.guard"]),
    "broken guard, script": (1, ["injected: vllm_xyserve.platform.guard"]),
    "broken guard, named": (1, ["injected: vllm_xyserve.platform.guard"]),
    **{
        f"broken {module}, {where}": (1, [f"injected: vllm_xyserve.platform.{module}"])
        for module in ("cpu", "common", "factory", "rivals")
        for where in ("serve", "script", "named")
    },
    "rival before, serve": (1, ["vllm: error:", "rival (rival_platform:register", SET_PLUGINS]),
    "rival after, serve": (1, ["vllm: error:", "rival (rival_platform:register", SET_PLUGINS]),
    "rival before, script": (1, ["Only one platform plugin can be activated", SET_PLUGINS]),
    "rival after, script": (1, ["Only one platform plugin can be activated", SET_PLUGINS]),
    "rival named alone": (1, ["vLLM runs on rival_platform.platform.RivalPlatform", SET_PLUGINS]),
    "same name after": (1, ["rival_platform:register of rival-platform", "Uninstall it"]),
    "ascend kept, serve": (1, ["ascend (vllm_ascend:register of vllm-ascend)", SET_PLUGINS]),
    "ascend kept, script": (1, ["Only one platform plugin can be activated", SET_PLUGINS]),
    "command, no plugins": (2, ["vllm: error: xyserve was chosen (--platform xyserve), but"]),
    "command, config file": (2, ["(the key 'platform' in ", "VLLM_PLUGINS='something_else'"]),
    "command, unknown platform": (2, ["argument --platform: invalid choice: 'nonsense'"]),
}

OTHERS = {
    "no plugins, script",
    "rival, not chosen",
    "ascend before, npu",
    "ascend after, npu",
    "ascend before, not chosen",
    "ascend after, not chosen",
    "children",
    "chosen after torch, ascend",
}

# Rows in which that which would end the command with one line does not import either.
SPEECHLESS = {f"broken {module}, serve" for module in ("factory", "rivals", "guard", "select")}


Get = Callable[[str], Outcome]

# The first test waits for all processes; on a busy machine that took 400 s.
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def outcome(started: Started) -> Get:
    """The outcome of a row by its name."""

    def get(name: str) -> Outcome:
        if name in started:
            result: Outcome = started[name].result()
            return result
        forked: dict[str, Outcome] = started["forked"].result()
        return forked[name]

    return get


def finished(result: Outcome) -> dict[str, Any]:
    """The facts of a process that got a platform."""
    assert result.code == 0, result.log
    return result.facts


def test_every_row_is_judged(tmp_path: Any) -> None:
    """No row may run without a test that looks at it, and none may be missing."""
    fakes = rows.Fakes.make(tmp_path)
    run = {*rows.forked(fakes), *rows.fresh(fakes), *rows.commands(fakes)}
    assert run == {*STOCK, *OURS, *ERRORS, *OTHERS}


@pytest.mark.parametrize("name", STOCK)
def test_stock(outcome: Get, name: str) -> None:
    facts = finished(outcome(name))
    assert facts["cls"] == "CpuPlatform"
    assert "XyPlatformMixin" not in facts["mro"]
    assert "xyserve was chosen" not in outcome(name).log


@pytest.mark.parametrize("name", OURS)
def test_ours(outcome: Get, name: str) -> None:
    facts = finished(outcome(name))
    assert facts["mro"][:3] == XY_CPU
    assert "CpuPlatform" in facts["mro"]
    assert (facts["device_type"], facts["enum"]) == ("cpu", "CPU")
    assert facts["cls_before_general_plugins"] == OURS[name]
    assert facts["same_object"]
    assert facts["variable"] == "1"  # what children go by that do not keep argv


@pytest.mark.parametrize("name", [n for n, cls in OURS.items() if cls == "CpuPlatform"])
def test_taking_over_is_noted_for_the_log(outcome: Get, name: str) -> None:
    why = {
        "target": "VLLM_TARGET_DEVICE=cpu makes vLLM skip every platform plugin",
        "guard": "VLLM_PLUGINS='xyserve_guard' does not name xyserve",
        "variable": "chosen after vLLM had chosen its platform",
    }
    (note,) = outcome(name).facts["notes"]
    assert "took over CpuPlatform's place" in note
    assert why[name.replace(",", "").split()[0]] in note


@pytest.mark.parametrize("name", ERRORS)
def test_clear_error(outcome: Get, name: str) -> None:
    result = outcome(name)
    code, texts = ERRORS[name]
    assert not result.facts, "the process went on with a platform"
    assert result.code == code, result.log
    for text in texts:
        assert text in result.log


@pytest.mark.parametrize(
    "name", [n for n in ERRORS if n.endswith(", serve") and n not in SPEECHLESS]
)
def test_commands_of_vllm_end_without_a_traceback(outcome: Get, name: str) -> None:
    assert "Traceback" not in outcome(name).log


def test_filtered_out_in_a_script_is_an_error_in_the_log(outcome: Get) -> None:
    """The script may have nothing to do with vLLM, so importing torch must not end it."""
    result = outcome("no plugins, script")
    assert finished(result)["cls"] == "CpuPlatform"
    assert "xyserve was chosen (XYSERVE_PLATFORM=1), but VLLM_PLUGINS='' keeps" in result.log


def test_flag_is_taken_from_commands_that_cannot_learn_it(outcome: Get) -> None:
    assert outcome("bench latency").facts["argv"] == ["vllm", "bench", "latency", "--x"]
    assert outcome("flag").facts["argv"][-2:] == ["--platform", "xyserve"]


def test_children_inherit_the_choice(outcome: Get) -> None:
    facts = finished(outcome("children"))
    assert facts["mro"][:3] == XY_CPU
    assert facts["spawned"]["mro"][:3] == XY_CPU
    assert facts["spawned"]["argv"] == facts["argv"]
    assert facts["subprocess"]["mro"][:3] == XY_CPU  # has only the variable to go by


def test_a_rival_is_left_alone_if_xyserve_was_not_chosen(outcome: Get) -> None:
    assert finished(outcome("rival, not chosen"))["cls"] == "RivalPlatform"


@pytest.mark.parametrize(
    "name", ["ascend before, npu", "ascend after, npu", "chosen after torch, ascend"]
)
def test_takes_the_place_of_vllm_ascend(outcome: Get, name: str) -> None:
    result = outcome(name)
    facts = finished(result)
    assert facts["cls"] == "XyNpuPlatform"
    assert facts["mro"][1:4] == ["XyNpuMixin", "XyPlatformMixin", "NPUPlatform"]
    assert (facts["device_type"], facts["enum"]) == ("npu", "OOT")
    (note,) = facts["notes"]
    assert "vllm-ascend's own platform plugin is installed and stays inactive" in note
    assert "could not take vllm-ascend's place" not in result.log


@pytest.mark.parametrize("order", ["before", "after"])
def test_vllm_ascend_keeps_its_general_plugins(outcome: Get, order: str) -> None:
    assert outcome(f"ascend {order}, npu").facts["loaded"]["vllm_ascend.models"]


@pytest.mark.parametrize("order", ["before", "after"])
def test_vllm_ascend_platform_is_not_imported_on_a_cpu(outcome: Get, order: str) -> None:
    facts = finished(outcome(f"ascend {order}, cpu"))
    assert not facts["loaded"]["vllm_ascend.platform"]


@pytest.mark.parametrize("order", ["before", "after"])
def test_vllm_ascend_is_untouched_if_xyserve_was_not_chosen(outcome: Get, order: str) -> None:
    result = outcome(f"ascend {order}, not chosen")
    assert finished(result)["cls"] == "NPUPlatform"
    assert not result.facts["notes"]
