"""Diagram of the linear benchmark: time against the number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Row
from benchmarks.prefix_plot import require

__all__ = ["plot", "require"]

LINES = (("ours_us", "ours"), ("peer_us", "vLLM oneDNN"), ("f_linear_us", "F.linear"))


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw one panel per layer of the one-thread bf16 rows, both axes logarithmic."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    layers: dict[str, list[Row]] = {}
    for row in rows:
        if row["kind"] == "float" and row.get("threads") == 1:
            layers.setdefault(f"{row['layer']} {row['n']} x {row['k']}", []).append(row)
    columns = min(3, len(layers))
    lines = -(-len(layers) // columns)
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(5 * columns, 3.6 * lines), squeeze=False, layout="constrained"
    )
    for axis, (title, group) in zip(axes.flat, layers.items(), strict=False):
        for column, label in LINES:
            axis.plot([r["m"] for r in group], [r[column] for r in group], ".-", label=label)
        axis.set(xscale="log", yscale="log", title=title, xlabel="rows (M)", ylabel="us per call")
        axis.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
