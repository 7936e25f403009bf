"""Fits what the published rates of a 910B leave open, and reports how far the model is off.

Two numbers per memory model: a factor on the published rates of the pipes, and the fixed time of a
launch. Fitted to `ascend_points.FIT` alone; the errors that count are those
on `ascend_points.CHECK`, which the fit never sees. The fitted numbers stand in
`vllm_xyserve.plan.ascend.chip.MEMORIES`; a test fits again and compares.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.ascend_points import CHECK, FIT, Point
from benchmarks.harness import Options, Result, Row, main
from vllm_xyserve.plan.ascend import chip
from vllm_xyserve.plan.ascend.chip import Memory

# Where the search starts, its first steps, how often they are halved, and its bounds: the factor on
# the rates, and the launch in microseconds.
START = (2.0, 10.0)
STEPS = (1.0, 4.0)
ROUNDS = 9
BOUNDS = ((0.5, 10.0), (2.0, 20.0))


def error(point: Point, memory: Memory) -> float:
    """Predicted over published time, less 1."""
    return point.predict_us(memory) / point.us - 1


def loss(memory: Memory, points: Sequence[Point]) -> float:
    """Mean of absolute log ratios per family, then over families: many points of one kind do not
    outweigh few of another, and no single outlier decides."""
    by_family: dict[str, list[float]] = {}
    for point in points:
        ratio = abs(np.log(point.predict_us(memory) / point.us))
        by_family.setdefault(point.family, []).append(ratio)
    return float(np.mean([np.mean(ratios) for ratios in by_family.values()]))


def fit(memory: Memory, points: Sequence[Point]) -> Memory:
    """Coordinate search with halving steps; deterministic."""
    best = list(START)
    steps = list(STEPS)
    lowest = loss(memory.fitted(*best), points)
    for _ in range(ROUNDS):
        moved = True
        while moved:
            moved = False
            for axis, step in enumerate(steps):
                for sign in (1, -1):
                    trial = list(best)
                    low, high = BOUNDS[axis]
                    trial[axis] = float(np.clip(trial[axis] + sign * step, low, high))
                    value = loss(memory.fitted(*trial), points)
                    if value < lowest - 1e-6:
                        best, lowest, moved = trial, value, True
        steps = [step / 2 for step in steps]
    return memory.fitted(*(round(value, 3) for value in best))


def error_rows(memories: Sequence[Memory]) -> list[Row]:
    """One row per point: list, source, published time, error per memory model."""
    rows: list[Row] = []
    for kind, points in (("fit", FIT), ("check", CHECK)):
        for point in points:
            row: Row = {"name": point.name, "list": kind, "source": point.source, "us": point.us}
            rows.append(row | {m.name: error(point, m) for m in memories})
    return rows


def check_errors(memories: Sequence[Memory]) -> list[float]:
    """Absolute errors of all models on all points that no fit has seen."""
    return [abs(error(point, memory)) for point in CHECK for memory in memories]


def run(options: Options) -> Result:
    memories = [fit(memory, FIT) for memory in chip.PUBLISHED]
    rows = error_rows(memories)
    for memory in memories:
        rows.append(
            {
                "name": f"fitted {memory.name}",
                "rate_scale": memory.rate_scale,
                "launch_us": memory.launch_s * 1e6,
                "loss": loss(memory, FIT),
                "check_loss": loss(memory, CHECK),
            }
        )
    errors = check_errors(memories)
    summary = {
        "calibration_error_median": float(np.median(errors)),
        "calibration_error_max": float(np.max(errors)),
    }
    return Result(summary, rows)


if __name__ == "__main__":
    main(run, __doc__)
