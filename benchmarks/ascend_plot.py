"""Diagrams of the Ascend model: how far off it is, and what it predicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Row
from benchmarks.prefix_plot import require
from vllm_xyserve.plan.ascend import chip


def plot(rows: Sequence[Row], folder: Path) -> None:
    """Write ascend_calibration.png and ascend_ratios.png into folder."""
    require()
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    points = [row for row in rows if "list" in row]
    names = [memory.name for memory in chip.MEMORIES]
    figure, axis = pyplot.subplots(figsize=(7, 8), layout="constrained")
    for y, row in enumerate(points):
        errors = [float(row[name] or 0) for name in names]
        colour = "tab:grey" if row["list"] == "fit" else "tab:blue"
        axis.plot([min(errors), max(errors)], [y, y], "|-", color=colour)
    axis.axvline(0, color="black", linewidth=0.5)
    axis.set_yticks(range(len(points)), [f"{r['name']} ({r['list']})" for r in points], fontsize=6)
    axis.set(xlabel="predicted over published time, less 1; over four memory models")
    figure.savefig(folder / "ascend_calibration.png", dpi=110)
    pyplot.close(figure)

    ratios = [row for row in rows if "ratio_low" in row]
    figure, axis = pyplot.subplots(figsize=(8, 0.16 * len(ratios) + 1), layout="constrained")
    for y, row in enumerate(ratios):
        colour = "tab:green" if row["gain"] else "tab:grey"
        axis.plot([row["ratio_low"], row["ratio_high"]], [y, y], "|-", color=colour)
    axis.axvline(1, color="black", linewidth=0.5)
    axis.set_yticks(range(len(ratios)), [str(row["name"]) for row in ratios], fontsize=5)
    axis.set(xlabel="predicted ratio, range over four memory models; green: all above 1")
    figure.savefig(folder / "ascend_ratios.png", dpi=110)
    pyplot.close(figure)
