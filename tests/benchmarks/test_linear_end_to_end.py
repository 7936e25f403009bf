"""Rows of two start orders become one."""

from __future__ import annotations

import pytest

from benchmarks.harness import Row
from benchmarks.linear_end_to_end import combined


def row(step_ms: float, share: float | None) -> Row:
    return {
        "case": "decode 12",
        "engine": "ours",
        "step_ms": step_ms,
        "tokens_per_s": 12e3 / step_ms,
        "linear_share": share,
    }


def test_geometric_mean_and_distance_of_the_start_orders() -> None:
    both = combined([row(80.0, 0.5), row(125.0, 0.5)])
    assert both["step_ms"] == pytest.approx(100.0)
    assert both["tokens_per_s"] == pytest.approx(120.0)
    assert both["order_spread"] == pytest.approx(0.5625)


def test_no_share_without_one() -> None:
    assert combined([row(80.0, None), row(80.0, None)])["linear_share"] is None
