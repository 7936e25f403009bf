"""Figures of a cell, and what a comparison of cells may claim.

A *cell* is one workload under one load on one server in one repeat. Servers are compared by the
medians of their repeats. Ratios above 1 are better: our figure over stock's where more is better,
stock's over ours where less is. The error of the harness comes from stock measured against stock;
a ratio is a gain or a loss only beyond twice that error.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from benchmarks.serving.client import Sample

HIGHER_IS_BETTER = frozenset(
    ("throughput", "output_throughput", "total_throughput", "goodput", "hit_tokens")
)
# What the summary shows per workload.
HEADLINES = ("throughput", "ttft_p50", "tbt_p50", "tbt_p99")
_QUANTILES = (50, 90, 99)

Verdict = Literal["gain", "loss", "within error", "no error known"]


@dataclass(frozen=True, slots=True)
class Objective:
    """A request is good if its first token and its mean time per later token keep these seconds."""

    ttft_s: float = 2.0
    tpot_s: float = 0.2

    def holds(self, sample: Sample) -> bool:
        """Whether a request was good."""
        return sample.ttft <= self.ttft_s and _tpot(sample) <= self.tpot_s


def figures(
    samples: Sequence[Sample],
    duration_s: float,
    objective: Objective,
    counters: Mapping[str, float],
    cpu_s: float,
) -> dict[str, float]:
    """All figures of a cell; times in seconds.

    Args:
        samples: every request of the cell.
        duration_s: from the first request to the last answer.
        objective: of goodput.
        counters: what the server's counters rose by.
        cpu_s: processor time of the server's processes.

    Raises:
        ValueError: no samples.
    """
    if not samples or duration_s <= 0:
        raise ValueError(f"no figures from {len(samples)} requests in {duration_s} s")
    generated = sum(sample.num_generated for sample in samples)
    prompt = sum(sample.prompt_len for sample in samples)
    found = {
        "num_requests": float(len(samples)),
        "duration_s": duration_s,
        "prompt_tokens": float(prompt),
        "generated_tokens": float(generated),
        "throughput": len(samples) / duration_s,
        "output_throughput": generated / duration_s,
        "total_throughput": (generated + prompt) / duration_s,
        "goodput": sum(map(objective.holds, samples)) / duration_s,
        "cpu_s_per_token": cpu_s / (generated + prompt),
        "late_max": max(sample.late for sample in samples),
        **{key: value for key, value in counters.items() if key != "prompt_tokens"},
    }
    gaps = [gap for sample in samples for gap in sample.gaps]
    found["tokens_per_message"] = generated / (len(gaps) + len(samples))
    found |= _distribution("ttft", [sample.ttft for sample in samples])
    found |= _distribution("tbt", gaps)
    found |= _distribution("tpot", [_tpot(s) for s in samples if s.num_generated > 1])
    return found | _distribution("e2e", [sample.latency for sample in samples])


def _tpot(sample: Sample) -> float:
    later = sample.num_generated - 1
    return (sample.latency - sample.ttft) / later if later else 0.0


def _distribution(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    quantiles = np.percentile(values, _QUANTILES)
    found = {f"{name}_mean": statistics.fmean(values)}
    return found | {f"{name}_p{q}": float(v) for q, v in zip(_QUANTILES, quantiles, strict=True)}


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the repeats."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return Spread(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of one cell on two servers.

    ratio: None where a side is zero. low, high: the ratio's extremes over pairs of repeats. error:
    relative, of the harness for this figure and cell (None: stock was not measured twice).
    """

    figure: str
    stock: Spread
    ours: Spread
    ratio: float | None
    low: float | None
    high: float | None
    error: float | None

    @property
    def verdict(self) -> Verdict:
        """What the ratio may be called."""
        if self.error is None or self.ratio is None:
            return "no error known"
        if abs(math.log(self.ratio)) <= 2 * math.log1p(self.error):
            return "within error"
        return "gain" if self.ratio > 1 else "loss"


def ratio(figure: str, stock: float, ours: float) -> float | None:
    """Above 1 is better; None where a side is not positive."""
    if stock <= 0 or ours <= 0:
        return None
    return ours / stock if figure in HIGHER_IS_BETTER else stock / ours


def compare(
    figure: str, stock: Sequence[float], ours: Sequence[float], error: float | None
) -> Comparison:
    """One figure of two servers, from its value in each repeat (in the order of the repeats)."""
    one, two = Spread.of(stock), Spread.of(ours)
    pairs = [
        found
        for s, o in zip(stock, ours, strict=False)
        if (found := ratio(figure, s, o)) is not None
    ]
    middle = ratio(figure, one.median, two.median)
    return Comparison(
        figure,
        one,
        two,
        middle,
        min(pairs) if pairs else None,
        max(pairs) if pairs else None,
        error,
    )


class HarnessError:
    """How far stock is from stock, per figure and cell.

    A cell's own difference is one draw from its error, so it can be small by luck; the root mean
    square over all cells of the figure is its floor. Logarithms: both directions count alike.

    Args:
        pairs: ``(figure, cell, stock, stock again)``, medians of the repeats.
    """

    def __init__(self, pairs: Iterable[tuple[str, str, float, float]]) -> None:
        self._own: dict[tuple[str, str], float] = {}
        for figure, cell, one, two in pairs:
            if one > 0 and two > 0:
                self._own[figure, cell] = abs(math.log(one / two))

    def pooled(self, figure: str) -> float | None:
        """Over all cells, relative: 0.05 is five per cent."""
        squares = [value**2 for (name, _), value in self._own.items() if name == figure]
        return math.expm1(math.sqrt(statistics.fmean(squares))) if squares else None

    def of(self, figure: str, cell: str) -> float | None:
        """Of one figure in one cell: its own difference, but at least the pooled one."""
        pooled = self.pooled(figure)
        own = self._own.get((figure, cell))
        if pooled is None:
            return None
        return pooled if own is None else max(pooled, math.expm1(own))

    def headline(self) -> float | None:
        """The largest pooled error of the figures that the summary shows."""
        found = [e for name in HEADLINES if (e := self.pooled(name)) is not None]
        return max(found, default=None)
