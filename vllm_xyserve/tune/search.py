"""Which choices are tried, and which one is kept. Pure: how long a choice takes is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from vllm_xyserve.plan.tuning import RULE, Tiling

# A choice must be better than the rule by this share, and by twice the rule's own spread.
LEAST_GAIN: Final = 0.02
# Between two choices of which both are better, the gain that makes the second worth its complexity.
_STEP_GAIN: Final = 0.01
# Ratios of two runs, in processes of their own, may differ by this much.
TOLERANCE: Final = 0.05

# Time of each tiling over the rule's, at each M in turn.
Measure = Callable[[Tiling], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Task:
    """A layer ``[n, k]`` in a range of M, on so many threads."""

    n: int
    k: int
    m_first: int
    m_last: int
    threads: int

    def row_counts(self) -> list[int]:
        """M at which choices are measured: the last one of the range and an odd one within."""
        inner = (self.m_first + self.m_last) // 2 | 1
        last = min(self.m_last, 1024)
        return sorted({max(self.m_first, min(inner, last)), last})


@dataclass(frozen=True, slots=True)
class Found:
    """The best choice. ratio: its time over the rule's. noise: the least gain that counts."""

    tiling: Tiling
    ratio: float
    noise: float


def options(task: Task) -> Iterator[tuple[str, list[int]]]:
    """Names of a Tiling's fields with the values to try, in the order of the search."""
    threads, m = task.threads, task.m_last
    if threads > 1 and m <= 64:
        yield "threads", sorted({1, threads // 2, threads} - {0})
    if m > 4:
        yield "tile_rows", [rows for rows in (2, 3, 4, 5, 8) if rows < m]
    if threads > 1 and m > 1:
        yield "row_parts", [parts for parts in (1, threads, 2 * threads) if parts <= m]
    if threads > 1 and task.n <= 2048:
        yield "split_k", [1, 2]
    if m > 4 and task.k >= 512:
        yield "block_steps", [steps for steps in (128, 256, 512, 1024, 2048) if steps < task.k]
    if m > 64:
        yield "pass_rows", [rows for rows in (24, 48, 96, 192, 384) if rows < m]


def extra_options(task: Task, tiling: Tiling) -> list[int]:
    """Panels per pass, which mean something only where rows are taken in several passes."""
    return [n for n in (2, 4, 8, 16, 32) if n * 32 < task.n] if tiling.pass_rows else []


def search(task: Task, measure: Measure) -> Found:
    """Take the choices one after the other, each at its best value with those before it.

    A choice counts by the mean of its ratios, and not at all where it loses at any M.
    """
    noise = noise_of(measure(RULE))
    best, best_ratio = RULE, 1.0
    for name, values in options(task):
        best, best_ratio = _best_value(best, best_ratio, name, values, measure)
    panels = extra_options(task, best)
    best, best_ratio = _best_value(best, best_ratio, "pass_panels", panels, measure)
    if best_ratio > 1 - noise:
        return Found(RULE, 1.0, noise)
    return Found(best, best_ratio, noise)


def _best_value(
    best: Tiling, best_ratio: float, name: str, values: Sequence[int], measure: Measure
) -> tuple[Tiling, float]:
    start = best
    for value in values:
        tiling = dataclasses.replace(start, **{name: value})
        ratios = measure(tiling)
        ratio = sum(ratios) / len(ratios)
        if max(ratios) < 1 + LEAST_GAIN and ratio < best_ratio - _STEP_GAIN:
            best, best_ratio = tiling, ratio
    return best, best_ratio


def noise_of(ratios: Sequence[float]) -> float:
    """The gain that counts, from ratios of the rule to itself."""
    return max(LEAST_GAIN, 2 * max(abs(ratio - 1) for ratio in ratios))


def reproduces(found: Found, again: Sequence[float], noise: float) -> bool:
    """Whether a second run, with a noise of its own, confirms a choice."""
    ratio = sum(again) / len(again)
    better = ratio <= 1 - max(noise, found.noise) and max(again) < 1 + LEAST_GAIN
    return better and abs(ratio - found.ratio) <= TOLERANCE
