"""From the records of a run to comparisons, the summary, and the rows of the report."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import Row
from benchmarks.serving.plan import HEADLINE_USERS
from benchmarks.serving.state import State
from benchmarks.serving.statistics import (
    HEADLINES,
    Comparison,
    HarnessError,
    Spread,
    compare,
)

# Of these more or less is neither better nor worse, or the workload alone decides.
NOT_COMPARED = frozenset(
    (
        "num_requests",
        "duration_s",
        "prompt_tokens",
        "generated_tokens",
        "late_max",
        "tokens_per_message",
        "hit_tokens",
        "sub_block_hit_tokens",
        "preemptions",
    )
)
STOCK, AGAIN = "stock", "stock-again"


@dataclass(frozen=True, slots=True)
class Results:
    """Figures of all cells.

    figures: by server, cell and repeat (in their order). servers: per server and repeat, what its
    process took: ``startup_s``, ``peak_bytes``.
    """

    figures: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]
    servers: Mapping[str, Sequence[Mapping[str, Any]]]

    @staticmethod
    def of(state: State) -> Results:
        """All that a run has measured so far."""
        figures: dict[str, dict[str, list[dict[str, float]]]] = {}
        for key, value in _in_order(state.all("cell")):
            figures.setdefault(key["variant"], {}).setdefault(key["cell"], []).append(value)
        servers: dict[str, list[dict[str, Any]]] = {}
        for key, value in state.all("server"):
            servers.setdefault(key["variant"], []).append(value)
        return Results(figures, servers)

    @property
    def ours(self) -> list[str]:
        """The servers that are compared with stock, in the order of their first cell."""
        return [name for name in self.figures if name not in (STOCK, AGAIN)]

    @property
    def whole_native(self) -> str:
        """The server with all parts native; the shipped one where that is the same."""
        return "native" if "native" in self.figures else "xyserve"

    def cells(self, variant: str) -> list[str]:
        """Names of a server's cells."""
        return list(self.figures.get(variant, {}))

    def values(self, variant: str, cell: str, figure: str) -> list[float]:
        """A figure in each repeat that has it."""
        found = self.figures.get(variant, {}).get(cell, ())
        return [value[figure] for value in found if figure in value]

    def stock_values(self, cell: str, figure: str) -> list[float]:
        """Stock's figure in each repeat: the mean of its two servers, where there are two.

        One ran before and one after ours, so that a machine that slows down meets both sides.
        """
        one, two = self.values(STOCK, cell, figure), self.values(AGAIN, cell, figure)
        if len(one) != len(two):
            return one
        return [statistics.fmean(pair) for pair in zip(one, two, strict=True)]

    def harness_error(self) -> HarnessError:
        """Stock against stock, over all cells that both have measured."""
        pairs = []
        for cell in self.cells(AGAIN):
            for figure in self._compared(cell):
                one, two = self.values(STOCK, cell, figure), self.values(AGAIN, cell, figure)
                if one and two:
                    pairs.append((figure, cell, statistics.median(one), statistics.median(two)))
        return HarnessError(pairs)

    def comparisons(self, variant: str, cell: str) -> list[Comparison]:
        """All figures of a cell of a server against stock's."""
        error = self.harness_error()
        found = []
        for figure in self._compared(cell):
            stock, ours = self.stock_values(cell, figure), self.values(variant, cell, figure)
            if stock and ours:
                found.append(compare(figure, stock, ours, error.of(figure, cell)))
        return found

    def whole_server(self, variant: str, figure: str) -> Spread | None:
        """Start-up time or peak memory over the repeats."""
        values = [float(server[figure]) for server in self.servers.get(variant, ())]
        return Spread.of(values) if values else None

    def _compared(self, cell: str) -> list[str]:
        repeats = self.figures.get(STOCK, {}).get(cell, ())
        names = dict.fromkeys(name for repeat in repeats for name in repeat)
        return [name for name in names if name not in NOT_COMPARED]


def _in_order(records: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """By repeat: a resumed run can have measured a later one of another server first."""
    return sorted(records, key=lambda record: int(record[0]["repeat"]))


def summary(results: Results, agreements: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Flat figures: per workload the headline ratios of each of our servers.

    `NAME_throughput_ratio` and so on are of ``xyserve``; other servers' names stand in front.
    """
    found: dict[str, float] = {}
    for variant in results.ours:
        prefix = "" if variant == "xyserve" else f"{variant.replace('-', '_')}_"
        for cell in results.cells(variant):
            workload, _, load = cell.partition(" ")
            if load != f"closed-{HEADLINE_USERS}":
                continue
            for comparison in results.comparisons(variant, cell):
                if comparison.figure in HEADLINES and comparison.ratio is not None:
                    key = f"{prefix}{workload.replace('-', '_')}_{comparison.figure}_ratio"
                    found[key] = round(comparison.ratio, 4)
        for figure in ("startup_s", "peak_bytes"):
            stock, ours = results.whole_server(STOCK, figure), results.whole_server(variant, figure)
            if stock and ours and ours.median > 0:
                found[f"{prefix}{figure}_ratio"] = round(stock.median / ours.median, 4)
    error = results.harness_error()
    if (headline := error.headline()) is not None:
        found["harness_error"] = round(headline, 4)
        found |= {f"harness_error_{f}": round(error.pooled(f) or 0.0, 4) for f in HEADLINES}
    for agreement in agreements:
        prefix = "" if agreement["variant"] == "xyserve" else f"{agreement['variant']}_"
        found[f"{prefix}answers_equal"] = agreement["num_equal"] / agreement["num_requests"]
    return found


def rows(results: Results) -> list[Row]:
    """One row per server, cell and figure, then the error of the harness."""
    found: list[Row] = []
    for variant in results.ours:
        for cell in results.cells(variant):
            for c in results.comparisons(variant, cell):
                row: Row = {"server": variant, "cell": cell, "figure": c.figure}
                row |= {"stock": c.stock.median, "ours": c.ours.median, "ratio": c.ratio}
                row |= {"ratio_low": c.low, "ratio_high": c.high, "error": c.error}
                found.append({**row, "verdict": c.verdict})
    error = results.harness_error()
    for figure in HEADLINES:
        if (pooled := error.pooled(figure)) is not None:
            found.append({"server": AGAIN, "cell": "all", "figure": figure, "error": pooled})
    return found
