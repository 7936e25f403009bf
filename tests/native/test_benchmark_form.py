"""The common form of the benchmarks: pure JSON on stdout, and no timing of wrong answers."""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.harness import Case, Options, Result, main, measure

ROOT = Path(__file__).parents[2]


def options() -> Options:
    return Options(quick=True, json=False, extra=argparse.Namespace())


def test_wrong_answer_is_never_timed() -> None:
    def check() -> None:
        raise AssertionError("wrong answer")

    calls: list[str] = []
    case = Case("case", check, lambda: calls.append("ours"), lambda: calls.append("peer"))
    with pytest.raises(AssertionError, match="wrong answer"):
        measure(case, options())
    assert calls == []


def test_sides_alternate_and_ratio_is_peer_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that only the two calls advance, so that the numbers are exact."""
    calls: list[str] = []
    now = 0.0

    def work(name: str, seconds: float) -> None:
        nonlocal now
        calls.append(name)
        now += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    case = Case(
        "case",
        check=lambda: None,
        ours=lambda: work("ours", 0.125),
        peer=lambda: work("peer", 0.25),
        facts={"shape": "1x1"},
    )
    timing, row = measure(case, options(), min_sample_s=0.1)  # one call per sample
    assert calls[:2] == ["ours", "peer"]  # the trials
    assert calls[2:] == ["ours", "peer", "peer", "ours"] * 5 + ["ours", "peer"]
    assert (timing.ours_us, timing.peer_us, timing.ratio) == (125e3, 250e3, 2.0)
    assert row == {
        "name": "case",
        "shape": "1x1",
        "ours_us": 125e3,
        "ours_spread": 0.0,
        "peer_us": 250e3,
        "peer_spread": 0.0,
        "ratio": 2.0,
        "samples": 11,
    }


def test_a_case_of_long_calls_takes_fewer_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def work() -> None:
        nonlocal now
        now += 2.0

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    _, row = measure(Case("long", check=lambda: None, ours=work), options(), min_sample_s=1.0)
    assert row["samples"] == 5


@pytest.mark.parametrize(
    "summary", [{}, {"a": float("nan")}, {"a": float("inf")}, {"a": {"b": 1.0}}, {"a": "1"}]
)
def test_summary_must_be_flat_and_finite(summary: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="flat summary of finite numbers"):
        main(lambda _: Result(summary, [{"name": "row"}]), None, argv=["--json"])


PRINTS_A_LOT = """
import os, subprocess, sys
from benchmarks.harness import Result, main
def run(options):
    print("python noise")
    os.write(1, b"native noise\\n")
    subprocess.run(["echo", "child noise"])
    return Result({"quick": int(options.quick)}, [{"name": "row", "us": 1.5, "none": None}])
main(run, "A benchmark that prints.")
"""


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=240, cwd=ROOT
    )


def test_json_is_alone_on_standard_output() -> None:
    result = run_python("-c", PRINTS_A_LOT, "--json", "--quick")
    assert result.returncode == 0, result.stderr
    whole = json.loads(result.stdout)
    assert set(whole) == {"summary", "rows", "machine"}
    assert whole["summary"] == {"quick": 1}
    assert whole["rows"] == [{"name": "row", "us": 1.5, "none": None}]
    assert {"cpu", "cpuset", "num_cores", "isa", "date", "versions"} <= set(whole["machine"])
    for noise in ("python noise", "native noise", "child noise"):
        assert noise in result.stderr


def test_table_without_json() -> None:
    result = run_python("-c", PRINTS_A_LOT)
    assert result.returncode == 0, result.stderr
    assert "name  us   none" in result.stdout
    assert "row   1.5  -" in result.stdout


def test_norms_run() -> None:
    result = run_python("-m", "benchmarks.norms", "--quick", "--no-engine", "--json")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)["summary"]
    assert set(summary) == {"norm_1_ratio", "norm_12_ratio"}
    assert all(value > 0 for value in summary.values())


def test_native_call_runs() -> None:
    result = run_python("-m", "benchmarks.native_call", "--quick", "--json")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)["summary"]
    assert {"call_us", "aten_call_us", "call_ratio", "silu_and_mul_ratio"} <= set(summary)
    assert all(value > 0 for value in summary.values())
