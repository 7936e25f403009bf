"""`check_and_update_config` on real configurations, our flag in vLLM's parsers, the backends."""

from __future__ import annotations

import json
from concurrent.futures import Future
from typing import Any

import pytest

from tests.platform.config_cases import STOCK_SCHEDULER, Facts
from vllm_xyserve.config import START_UP_KEY

FACTORY = "vllm_xyserve.scheduler.factory.make_scheduler"
WORKER = "vllm_xyserve.worker.cpu.XyCPUWorker"
BACKEND = "vllm_xyserve.attention.backend.MetaAttentionBackend"

# The first test waits for the child; see test_activation.py.
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def cases(started: dict[str, Future[Any]]) -> dict[str, Facts]:
    """What the child found, by case."""
    found: dict[str, Facts] = started["config"].result()
    return found


def lines(facts: Facts, start: str) -> list[str]:
    """Log lines of a case that begin so."""
    assert "raised" not in facts, facts["raised"]
    return [line for line in facts["log"] if line.startswith(start)]


def start_up_line(facts: Facts) -> str:
    """The one start-up line of a case: logged, or left to our scheduler to complete and log."""
    logged = [line.removeprefix("INFO ") for line in lines(facts, "INFO xyserve: family=")]
    left = facts["additional"].get(START_UP_KEY)
    (line,) = logged + ([] if left is None else [left])
    return line


def test_defaults(cases: dict[str, Facts]) -> None:
    facts = cases["defaults"]
    assert facts["scheduler"] == FACTORY
    assert facts["worker"] == WORKER
    line = start_up_line(facts)
    fields = ["xyserve: family=cpu isa=", " scheduler=sync ", " attention=", " linear="]
    positions = [line.index(field) for field in fields]
    assert positions == sorted(positions)
    assert facts["log"] == []  # the line is left to the scheduler, which knows the prefix unit


def test_second_call_changes_nothing_and_says_nothing(cases: dict[str, Facts]) -> None:
    assert cases["twice"] == cases["defaults"]


def test_norms_are_ours_beside_native_layers_without_compilation(cases: dict[str, Facts]) -> None:
    ours, theirs = ["xyserve", "native"], ["native"]
    assert cases["norms"] == {
        "native": [ours, ours, theirs],
        "upstream": [theirs, theirs, theirs],
        "compiled": [theirs, theirs, theirs],
        # What the user asks for stays in front.
        "asked": [["native", "xyserve"], ours, theirs],
    }


def test_notes_of_the_time_before_logging_are_logged_once(cases: dict[str, Facts]) -> None:
    assert cases["notes"]["log"] == ["INFO xyserve: something came up early"]


@pytest.mark.parametrize("part", ["linear", "attention"])
def test_options_reach_line_and_cache_key(cases: dict[str, Facts], part: str) -> None:
    facts = cases[f"{part}_reference"]
    assert f" {part}=reference " in start_up_line(facts) + " "
    fingerprint = json.loads(facts["additional"]["xyserve_fingerprint"])
    assert fingerprint[part] == "reference"
    assert facts["hash"] != cases["defaults"]["hash"]


def test_cache_keys_are_stable_and_differ(cases: dict[str, Facts]) -> None:
    names = ["defaults", "linear_reference", "linear_upstream", "attention_reference"]
    assert len({cases[name]["hash"] for name in names}) == len(names)
    assert cases["twice"]["hash"] == cases["defaults"]["hash"]
    assert cases["notes"]["hash"] == cases["defaults"]["hash"]


@pytest.mark.parametrize("case", ["user_scheduler", "user_scheduler_class"])
def test_scheduler_of_the_user_is_kept(cases: dict[str, Facts], case: str) -> None:
    facts = cases[case]
    assert facts["scheduler"] == STOCK_SCHEDULER
    assert "so the xyserve scheduler is off" in lines(facts, "WARNING xyserve: --scheduler-cls")[0]
    assert " scheduler=upstream (--scheduler-cls " in start_up_line(facts)
    assert "xyserve_scheduler_base" not in facts["additional"]


def test_scheduler_off(cases: dict[str, Facts]) -> None:
    facts = cases["scheduler_off"]
    assert facts["scheduler"] is None
    line = start_up_line(facts)
    assert " scheduler=upstream (switched off) " in line
    assert " prefix_unit=" in line
    assert len(lines(facts, "INFO xyserve: family=")) == 1  # though the step ran twice


def test_worker_of_the_user_is_kept(cases: dict[str, Facts]) -> None:
    facts = cases["user_worker"]
    assert facts["worker"] == "tests.platform.config_cases.Worker"
    (warning,) = lines(facts, "WARNING xyserve: --worker-cls")
    assert "so the xyserve linear layers are off" in warning


def test_line_says_that_the_worker_of_the_user_has_no_linear_layers(
    cases: dict[str, Facts],
) -> None:
    line = start_up_line(cases["user_worker_and_linear"])
    assert " linear=upstream (--worker-cls tests.platform.config_cases.Worker)" in line


@pytest.mark.parametrize(
    ("case", "texts"),
    [
        ("unknown_option", ["no key 'shceduler'", "Did you mean 'scheduler'?"]),
        ("wrong_value", ["xyserve.attention must be auto | native | ref", "it is 'fast'"]),
        ("options_are_no_object", ["xyserve must be an object", "'reference'"]),
    ],
)
def test_wrong_options_are_refused(cases: dict[str, Facts], case: str, texts: list[str]) -> None:
    for text in texts:
        assert text in cases[case]["raised"]


def test_scheduler_of_the_parent_platform_is_mixed_into(cases: dict[str, Facts]) -> None:
    facts = cases["parent_sets_scheduler"]
    assert facts["scheduler"] == FACTORY
    base = "tests.platform.config_cases.ParentScheduler"
    assert facts["additional"]["xyserve_scheduler_base"] == base
    assert facts["mro"][:4] == [
        "XyParentScheduler", "XySchedulerMixin", "ParentScheduler", "Scheduler",
    ]  # fmt: skip
    assert " scheduler=sync " in start_up_line(facts)


def test_parent_platform_may_overrule_the_user(cases: dict[str, Facts]) -> None:
    """It is the parent's affair; ours stays out all the same, since the user said so."""
    facts = cases["parent_and_user_set_scheduler"]
    assert facts["scheduler"] == "tests.platform.config_cases.ParentScheduler"
    assert " scheduler=upstream (--scheduler-cls " in start_up_line(facts)


def test_scheduler_class_follows_async_scheduling(cases: dict[str, Facts]) -> None:
    classes = cases["scheduler_classes"]
    assert classes["sync"][:3] == ["XyScheduler", "XySchedulerMixin", "Scheduler"]
    assert classes["async"][:3] == ["XyAsyncScheduler", "XySchedulerMixin", "AsyncScheduler"]


@pytest.mark.parametrize("case", ["plain", "CUSTOM", "registered", "batch_invariant native"])
def test_our_attention_backend(cases: dict[str, Facts], case: str) -> None:
    assert cases["attention_backends"][case] == BACKEND


@pytest.mark.parametrize(
    "case",
    ["CPU_ATTN", "mm_prefix", "pcp", "dcp", "rswa", "kv_connector", "batch_invariant upstream"],
)
def test_attention_backend_of_the_parent(cases: dict[str, Facts], case: str) -> None:
    backends = cases["attention_backends"]
    assert backends[case] == backends["stock"] != BACKEND


def test_other_kinds_of_attention_are_the_parents(cases: dict[str, Facts]) -> None:
    backends = cases["attention_backends"]
    assert "MLA" in backends["mla"]
    assert "Sparse Attention is not supported on CPU" in backends["sparse"]


@pytest.mark.parametrize(
    "command", ["serve", "serve config", "run-batch", "bench throughput", "launch render"]
)
def test_parsers_that_learn_the_flag(cases: dict[str, Facts], command: str) -> None:
    assert cases["parsers"][command]["platform"] == "xyserve"


@pytest.mark.parametrize(
    "command", ["bench latency", "bench startup", "bench mm-processor", "preload"]
)
def test_parsers_that_do_not_get_to_see_the_flag(cases: dict[str, Facts], command: str) -> None:
    parsed = cases["parsers"][command]
    assert (parsed["code"], parsed["platform"]) == (None, None)
    assert parsed["model"].endswith("model")  # the rest of the line is untouched


def test_flag_may_be_left_out(cases: dict[str, Facts]) -> None:
    parsed = cases["parsers"]["serve without"]
    assert (parsed["code"], parsed["platform"]) == (None, None)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("serve other", "argument --platform: invalid choice: 'other' (choose 'xyserve'"),
        ("serve valueless", "argument --platform: expected one argument"),
    ],
)
def test_parsers_refuse(cases: dict[str, Facts], command: str, text: str) -> None:
    parsed = cases["parsers"][command]
    assert parsed["code"] == 2
    assert text in parsed["error"]
