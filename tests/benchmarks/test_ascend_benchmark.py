"""The Ascend model's benchmark: honest lists, reproducible fit, and the form of its summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import ascend_fit, ascend_model, plan_traces
from benchmarks.ascend_batches import plan, stages, with_verify
from benchmarks.ascend_points import CHECK, FIT
from benchmarks.plan_traces import Step
from vllm_xyserve.plan import Geometry, Policy
from vllm_xyserve.plan.ascend import chip

SUMMARY = {
    "mixed_attention_ratio_low",
    "mixed_attention_ratio_high",
    "balance_p50_20_cores",
    "balance_p50_24_cores",
    "virtual_over_physical_bytes",
    "calibration_error_median",
    "calibration_error_max",
}


def test_no_point_is_fitted_and_checked() -> None:
    assert not set(FIT) & set(CHECK)
    keys = [(p.name, p.source) for p in (*FIT, *CHECK)]
    assert len(keys) == len(set(keys))
    assert {p.family for p in FIT} == {p.family for p in CHECK}


@pytest.mark.parametrize("which", [0, 3])
def test_the_committed_numbers_are_what_the_fit_finds(which: int) -> None:
    found, committed = ascend_fit.fit(chip.PUBLISHED[which], FIT), chip.MEMORIES[which]
    assert found.name == committed.name
    assert found.rate_scale == pytest.approx(committed.rate_scale, rel=1e-3)
    assert found.launch_s == pytest.approx(committed.launch_s, rel=1e-3)


def test_the_fit_finds_what_made_the_points() -> None:
    """Points made by the model itself, with other numbers than the published ones."""
    truth = chip.PUBLISHED[1].fitted(1.3, 7.0)

    class Made:
        def __init__(self, point: ascend_fit.Point) -> None:
            self.family, self.us = point.family, point.predict_us(truth)
            self.predict_us = point.predict_us

    made = [Made(point) for point in FIT]
    found = ascend_fit.fit(chip.PUBLISHED[1], made)  # type: ignore[arg-type]
    assert ascend_fit.loss(found, made) < 0.01  # type: ignore[arg-type]
    assert found.launch_s * 1e6 == pytest.approx(7.0, abs=0.2)


def test_a_step_falls_into_its_stages_without_loss() -> None:
    step = with_verify(Step((1, 100, 1, 1), (50, 300, 20, 9)), 4)
    assert step == Step((4, 100, 1, 4), (53, 300, 20, 12))
    parts = stages(step, 4)
    assert parts == [Step((100,), (300,)), Step((4, 4), (53, 12)), Step((1,), (20,))]
    assert stages(step) == [Step((4, 100, 4), (53, 300, 12)), Step((1,), (20,))]


def test_a_launch_covers_the_step() -> None:
    step = Step((1, 200, 1), (3000, 1200, 77))
    geometry = Geometry(4, 2, 128)
    for policy in (Policy(), Policy("plain", levels=0)):
        launch = plan(chip.B3, geometry, policy, step)
        tiles = launch.tiles
        # Every (row, head, key) once: causal tiles read at least what they need.
        area = float((tiles.rows * tiles.keys * tiles.num_heads).sum())
        needed = (
            4
            * 2
            * sum(
                q * k - q * (q - 1) // 2
                for q, k in zip(step.query_lens, step.key_lens, strict=True)
            )
        )
        assert needed <= area <= 1.2 * needed
        # Keys come from HBM once per request and KV head, however many tiles read them.
        cold = float((tiles.keys * tiles.num_heads * tiles.cold).sum())
        assert cold == pytest.approx(4 * sum(step.key_lens))
        assert launch.core_seconds(chip.B3, chip.MEMORIES[0]).shape == (20,)


def test_cached_blocks_of_a_mooncake_trace(tmp_path: Path) -> None:
    path = tmp_path / "made up.jsonl"
    rows = [(1000, [1, 2]), (1500, [1, 2, 3]), (1024, [1, 2]), (600, [9, 2])]
    lines = [
        json.dumps({"input_length": n, "output_length": 5, "hash_ids": ids}) for n, ids in rows
    ]
    path.write_text("\n".join(lines))
    cached = [request[2] for request in plan_traces.load_mooncake(path)]
    assert cached == [0, 1024, 1023, 0]


def test_summary_has_exactly_the_agreed_names(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "made up.csv"
    lines = [f"{100 + 37 * i % 900},{3 + i % 5}" for i in range(60)]
    trace.write_text("ContextTokens,GeneratedTokens\n" + "\n".join(lines) + "\n")
    argv = ["--quick", "--json", "--trace", str(trace), "--running", "6", "--budget", "256"]
    ascend_model.cli(argv)
    result = json.loads(capfd.readouterr().out)
    summary = result["summary"]
    assert set(summary) == SUMMARY
    assert 0 < summary["mixed_attention_ratio_low"] <= summary["mixed_attention_ratio_high"]
    assert 0 < summary["balance_p50_24_cores"] <= 1
    assert 0 < summary["virtual_over_physical_bytes"] <= 1
    for row in result["rows"]:
        if "ratio_low" in row:
            assert row["ratio_low"] <= row["ratio_high"]
            assert row["gain"] == (row["ratio_low"] > 1)
            assert "max" in row["error"], "no absolute time without its error"
