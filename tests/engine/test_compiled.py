"""torch.compile: the same tokens as eager, and no artefact of one path used for another."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from tests.engine import features
from tests.helpers.engine import Run


@pytest.fixture(scope="module")
def compiled_upstream(compiled_runs: Future[dict[str, Run]]) -> Run:
    return compiled_runs.result()["upstream"]


@pytest.fixture(scope="module")
def compiled_native(compiled_runs: Future[dict[str, Run]]) -> Run:
    return compiled_runs.result()["native"]


def artefacts(run: Run) -> set[str]:
    """Where this run's log says that it kept compiled code."""
    return {line.rpartition(" ")[2] for line in run.log_lines("saved AOT compiled function to")}


def test_same_tokens_as_eager(reference: Run, compiled_upstream: Run, compiled_native: Run) -> None:
    eager = [answer["outputs"][0]["tokens"] for answer in reference["reload", "before"]]
    assert all(len(tokens) == features.GREEDY["max_tokens"] for tokens in eager)
    for compiled in (compiled_upstream, compiled_native):
        answers = compiled["reload", "before"]
        assert [answer["outputs"][0]["tokens"] for answer in answers] == eager


def test_the_paths_were_compiled(compiled_upstream: Run, compiled_native: Run) -> None:
    """No linear call outside compiled code but those of the output layer, once per step."""
    report = compiled_native["reload", "report"]
    calls = report["calls"]
    num_steps, rest = divmod(calls["attention[native]"], 2)
    assert rest == 0
    assert num_steps >= features.GREEDY["max_tokens"]
    assert 0 < calls["linear[native]"] <= num_steps + 4  # warm-up computes logits too
    ran = sum(count for name, count in report["kernels"].items() if name.startswith("linear_"))
    assert ran >= num_steps * (4 * 2 + 1), report["kernels"]
    assert compiled_native["reload", "look"]["paths"] == {"native": 2}
    assert not any("linear" in name for name in compiled_upstream["reload", "report"]["calls"])
    assert compiled_upstream["reload", "report"]["kernels"] == {}


def test_no_stale_artefact(compiled_upstream: Run, compiled_native: Run) -> None:
    assert compiled_upstream["reload", "hash"] != compiled_native["reload", "hash"]
    first, second = artefacts(compiled_upstream), artefacts(compiled_native)
    assert first, "the first run kept no compiled code"
    assert second, "the second run kept no compiled code: it took the first one's"
    assert not first & second
