"""Diagrams of the serving benchmark as SVG text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from benchmarks.serving.plan import HEADLINE_USERS
from benchmarks.serving.results import AGAIN, STOCK, Results
from benchmarks.serving.servers import ABLATION
from benchmarks.serving.statistics import Spread

_NOTHING = "<p>Not part of this run.</p>"


def throughput(results: Results) -> str:
    """Generated and prompt tokens per second of each workload, a bar per server."""
    variants = [name for name in results.figures if name not in (AGAIN, *ABLATION)]
    cells = [c for c in results.cells(STOCK) if c.endswith(f" closed-{HEADLINE_USERS}")]
    if not cells:
        return _NOTHING
    figure, axes = _figure(10, 4)
    width = 0.8 / len(variants)
    for number, variant in enumerate(variants):
        spreads = [_spread(results, variant, cell, "total_throughput") for cell in cells]
        places = [place + number * width for place in range(len(cells))]
        axes.bar(
            places,
            [spread.median for spread in spreads],
            width,
            yerr=_whiskers(spreads),
            capsize=2,
            label=variant,
        )
    middle = (len(variants) - 1) * width / 2
    names = [cell.partition(" ")[0] for cell in cells]
    axes.set_xticks([place + middle for place in range(len(cells))], names, fontsize=8)
    axes.set_ylabel(f"prompt and generated tokens per second,\n{HEADLINE_USERS} users")
    axes.legend()
    return _svg(figure)


def latency(results: Results) -> str:
    """Median time to first token and between tokens over the rate, a line per server."""
    points: dict[str, dict[float, str]] = {}
    for cell in results.cells(STOCK):
        workload, _, load = cell.partition(" ")
        if load.startswith("rate-"):
            points.setdefault(workload, {})[float(load.removeprefix("rate-"))] = cell
    if not points:
        return _NOTHING
    shown = (("ttft_p50", "time to first token, p50, s"), ("tbt_p50", "between tokens, p50, s"))
    figure, axes = _figure(5 * len(points), 6.5, rows=len(shown), columns=len(points))
    variants = [name for name in results.figures if name not in (AGAIN, *ABLATION)]
    for column, (workload, cells) in enumerate(points.items()):
        rates = sorted(cells)
        for row, (name, label) in enumerate(shown):
            for variant in variants:
                spreads = [_spread(results, variant, cells[rate], name) for rate in rates]
                axes[row][column].errorbar(
                    rates,
                    [spread.median for spread in spreads],
                    yerr=_whiskers(spreads),
                    marker="o",
                    capsize=2,
                    label=variant,
                )
            axes[row][column].set(title=workload, xlabel="sessions per second", ylabel=label)
            axes[row][column].set_ylim(bottom=0)
            axes[row][column].legend()
    return _svg(figure)


def ablation(results: Results) -> str:
    """Throughput over stock's with one part at a time left to vLLM."""
    cells = results.cells(ABLATION[0])
    if not cells:
        return _NOTHING
    variants = [v for v in (results.whole_native, *ABLATION) if v in results.figures]
    figure, axes = _figure(7, 3)
    width = 0.8 / len(cells)
    for number, cell in enumerate(cells):
        ratios = []
        for variant in variants:
            found = {c.figure: c for c in results.comparisons(variant, cell)}
            ratios.append(found["throughput"].ratio or 0.0 if "throughput" in found else 0.0)
        places = [place + number * width for place in range(len(variants))]
        axes.bar_label(axes.bar(places, ratios, width, label=cell), fmt="%.2f", fontsize=8)
    axes.set_xticks(range(len(variants)), variants)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_ylabel("requests per second over stock's")
    axes.legend()
    return _svg(figure)


def _spread(results: Results, variant: str, cell: str, figure: str) -> Spread:
    values = results.values(variant, cell, figure)
    return Spread.of(values) if values else Spread(0.0, 0.0, 0.0)


def _whiskers(spreads: Sequence[Spread]) -> list[list[float]]:
    return [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]


def _figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    single = rows == columns == 1
    return pyplot.subplots(
        rows, columns, figsize=(width, height), layout="constrained", squeeze=single
    )


def _svg(figure: Any) -> str:
    """The ``<svg>`` element; the XML header has no place within a page."""
    from matplotlib import pyplot

    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    text = stream.getvalue()
    return text[text.index("<svg") :]
