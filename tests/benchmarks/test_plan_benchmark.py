"""The planning benchmark: steps of a trace, and the form of its summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import plan, plan_traces

SUMMARY = {
    "plan_us_1024_rows",
    "balance_p50_24_cores_8_heads",
    "balance_p50_20_cores_4_heads",
    "balance_p50_24_cores_1_head",
    "plain_balance_p50_24_cores_8_heads",
}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "made up.csv"
    lines = [f"{100 + 37 * i % 900},{3 + i % 5}" for i in range(120)]
    path.write_text("ContextTokens,GeneratedTokens\n" + "\n".join(lines) + "\n")
    return path


def test_steps_keep_the_budget_and_every_request_is_computed_once(trace: Path) -> None:
    requests = plan_traces.load(trace)
    steps = list(plan_traces.steps(requests, budget=256, num_running=8))
    assert steps
    for step in steps:
        assert sum(step.query_lens) <= 256
        assert 0 < len(step.query_lens) <= 8
        assert min(step.query_lens) > 0
        assert all(k >= q for q, k in zip(step.query_lens, step.key_lens, strict=True))
    assert any(1 in step.query_lens and max(step.query_lens) > 1 for step in steps)
    most = sum(prompt + output - 1 for prompt, output in requests)
    assert most / 2 < sum(sum(step.query_lens) for step in steps) <= most


@pytest.mark.parametrize("name", sorted(plan_traces.EXCERPTS))
def test_excerpts_fill_the_places(name: str) -> None:
    requests = plan_traces.load(plan_traces.EXCERPTS[name])
    assert len(requests) == 1500
    steps = list(plan_traces.steps(requests, budget=4096, num_running=64))
    assert len(plan_traces.sample(steps, 200)) == 200


def test_a_file_that_is_no_trace_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit, match=r"other\.csv must be CSV with the columns"):
        plan_traces.load(path)


def test_summary_has_exactly_the_agreed_names(
    trace: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan.cli(["--quick", "--json", "--trace", str(trace), "--running", "8", "--budget", "256"])
    result = json.loads(capfd.readouterr().out)
    assert set(result["summary"]) == SUMMARY
    assert all(value > 0 for value in result["summary"].values())
    assert all(row["balance_p50"] <= 1 for row in result["rows"] if "balance_p50" in row)
