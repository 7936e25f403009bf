"""Diagrams of the prefix benchmark."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Row


def require() -> None:
    """End the run if there is nothing to draw with.

    Raises:
        SystemExit: matplotlib is missing.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("--plot needs matplotlib: pip install 'vllm-xyserve[bench]'")


def plot(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw ratios and computed tokens, one bar group per workload and concurrency.

    Args:
        rows: of the workloads, as `benchmarks.prefix` makes them.
        folder: made if it is missing.

    Returns:
        The files.
    """
    import matplotlib

    matplotlib.use("agg")
    folder.mkdir(parents=True, exist_ok=True)
    ratios = {
        "throughput": [row["throughput_ratio"] for row in rows],
        "time to first token": [row["ttft_ratio"] for row in rows],
    }
    shares = {
        "stock": [_share(row, "peer_computed_tokens") for row in rows],
        "token-level": [_share(row, "ours_computed_tokens") for row in rows],
        "the law": [1 - _share(row, "ours_law_tokens") for row in rows],
    }
    return [
        _bars(rows, ratios, "times as fast as stock vLLM", folder / "prefix_ratios.png", line=1.0),
        _bars(rows, shares, "share of prompt tokens computed", folder / "prefix_computed.png"),
    ]


def _share(row: Row, column: str) -> float:
    return float(row[column] or 0) / float(row["prompt_tokens"] or 1)


def _bars(
    rows: Sequence[Row],
    series: dict[str, list[Any]],
    label: str,
    path: Path,
    line: float | None = None,
) -> Path:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 4.5), layout="constrained")
    width = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        places = [place + (number - (len(series) - 1) / 2) * width for place in range(len(rows))]
        axes.bar_label(axes.bar(places, values, width, label=name), fmt="%.2f", fontsize=7)
    axes.set_xticks(
        range(len(rows)), [f"{r['name']}\nconcurrency {r['concurrency']}" for r in rows]
    )
    axes.tick_params(axis="x", labelsize=8)
    axes.set_ylabel(label)
    if line is not None:
        axes.axhline(line, color="grey", linewidth=0.8)
    axes.legend()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path
