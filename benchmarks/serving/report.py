"""One page that shows a run: everything is in the file, diagrams as inline SVG."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from benchmarks.serving import plots
from benchmarks.serving.plan import HEADLINE_USERS
from benchmarks.serving.results import AGAIN, STOCK, Results
from benchmarks.serving.servers import ABLATION, VARIANTS
from benchmarks.serving.statistics import HEADLINES, HIGHER_IS_BETTER, Comparison, Spread

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto;
       padding: 0 1rem; }
table { border-collapse: collapse; margin: .6rem 0 1.4rem; font-size: 13px; }
th, td { border-bottom: 1px solid #ddd; padding: .2rem .6rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
.gain { background: #dff3df; } .loss { background: #f8dede; } .error { color: #666; }
svg { max-width: 100%; height: auto; } pre { white-space: pre-wrap; font-size: 12px; }
summary { cursor: pointer; }
"""
_CSS = {"gain": "gain", "loss": "loss"}


def require() -> None:
    """End the run before it begins if there is nothing to draw with.

    Raises:
        SystemExit: matplotlib is missing.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("the report needs matplotlib: pip install 'vllm-xyserve[bench]'")


def page(whole: Mapping[str, Any], results: Results) -> str:
    """The page.

    Args:
        whole: what the JSON file holds: ``summary``, ``machine``, ``settings``, ``plan``,
            ``agreements``, ``note``.
        results: figures.
    """
    parts = [
        "<h1>Serving: vllm-xyserve against stock vLLM</h1>",
        _intro(whole, results),
        _h("Ratios to stock"),
        *[_headlines(results, variant) for variant in results.ours if variant not in ABLATION],
        _h("Throughput"),
        plots.throughput(results),
        _h("Latency against rate"),
        plots.latency(results),
        _h("Ablation: one part at a time left to vLLM"),
        _ablation(results),
        _h("Same answers"),
        _answers(whole["agreements"]),
        _h("Start-up and memory"),
        _servers(results),
        _h("Prefix cache"),
        _prefix(results),
        _h("Every figure of every cell"),
        *[_everything(results, variant) for variant in results.ours],
        _h("To repeat it"),
        _settings(whole),
    ]
    body = "\n".join(parts)
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        f"<title>Serving benchmark</title><style>{_STYLE}</style></head>\n"
        f"<body>{body}</body></html>\n"
    )


def _h(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def _intro(whole: Mapping[str, Any], results: Results) -> str:
    machine, error = whole["machine"], results.harness_error().headline()
    repeats = max((len(v) for c in results.figures.values() for v in c.values()), default=0)
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
    amx = "present" if machine["amx_bf16"] else "absent"
    known = f"{error:.1%}" if error is not None else "not measured"
    return (
        f"<p>{escape(machine['date'])} &middot; {escape(machine['cpu'])}, "
        f"{machine['num_cores']} cores, {escape(str(machine['isa']))}, AMX {amx} &middot; "
        f"{escape(versions)} &middot; load average {machine['load_average']}</p>"
        f"<p>{escape(whole['note'])}</p>"
        f"<p>Lengths are those of the workloads times {whole['plan']['lengths_times']:.2g}. Left "
        f"out for want of time: {escape(', '.join(whole['plan']['left_out'])) or 'nothing'}.</p>"
        f"<p>Medians of {repeats} alternating repeats; in brackets the extremes over the repeats. "
        "A ratio above 1 is better. Two servers of stock vLLM compared with each other differ by "
        f"<b>{known}</b> (the largest root mean square over all cells of {', '.join(HEADLINES)}); "
        "a ratio is called a gain (green) or a loss (red) only beyond twice the error of its own "
        "figure and cell.</p>"
    )


def _headlines(results: Results, variant: str) -> str:
    lines = []
    for cell in results.cells(variant):
        workload, _, load = cell.partition(" ")
        if load == f"closed-{HEADLINE_USERS}":
            found = {c.figure: c for c in results.comparisons(variant, cell)}
            lines.append([escape(workload), *[_ratio(found.get(name)) for name in HEADLINES]])
    note = f"{variant} ({VARIANTS[variant].note}), {HEADLINE_USERS} users in a closed loop"
    return f"<h3>{escape(note)}</h3>" + _table(["workload", *HEADLINES], lines)


def _ratio(comparison: Comparison | None) -> str:
    if comparison is None or comparison.ratio is None:
        return "-"
    text = f"{comparison.ratio:.2f} ({comparison.low or 0:.2f} to {comparison.high or 0:.2f})"
    return f"<span class='{_CSS.get(comparison.verdict, 'error')}'>{text}</span>"


def _ablation(results: Results) -> str:
    if not any(name in results.figures for name in ABLATION):
        return "<p>Not part of this run.</p>"
    lines = []
    for variant in (results.whole_native, *ABLATION):
        for cell in results.cells(ABLATION[0]):
            found = {c.figure: c for c in results.comparisons(variant, cell)}
            note = f"{variant}: {VARIANTS[variant].note}"
            lines.append([escape(note), escape(cell), *[_ratio(found.get(n)) for n in HEADLINES]])
    return _table(["server", "cell", *HEADLINES], lines) + plots.ablation(results)


def _answers(agreements: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        [
            escape(a["variant"]),
            str(a["num_requests"]),
            str(a["num_tokens"]),
            str(a["num_equal"]),
            str(len(a["differences"])),
            f"{a['hit_tokens']:.0f}",
        ]
        for a in agreements
    ]
    head = ["server", "requests", "tokens", "equal", "part at a tie", "hit tokens"]
    note = "<p>One request at a time, float32, greedy, compared with stock token by token.</p>"
    return note + _table(head, lines)


def _servers(results: Results) -> str:
    lines = []
    for variant in results.servers:
        startup = results.whole_server(variant, "startup_s")
        peak = results.whole_server(variant, "peak_bytes")
        if startup and peak:
            memory = Spread(peak.median / 2**20, peak.low / 2**20, peak.high / 2**20)
            lines.append([escape(variant), _spread(startup, ".1f"), _spread(memory, ".0f")])
    return _table(["server", "start to ready, s", "peak memory of all processes, MiB"], lines)


def _prefix(results: Results) -> str:
    """Hit tokens are no ratio: stock often has none."""
    lines = []
    variants = [v for v in results.figures if v not in (AGAIN, *ABLATION)]
    for cell in results.cells(STOCK):
        line = [escape(cell)]
        for variant in variants:
            hits = results.values(variant, cell, "hit_tokens")
            prompts = results.values(variant, cell, "prompt_tokens")
            preempted = results.values(variant, cell, "preemptions")
            text = "-"
            if hits and prompts[0]:
                text = f"{Spread.of(hits).median:.0f} of {prompts[0]:.0f}"
                text += f", {max(preempted):.0f} preempted" if max(preempted, default=0) else ""
            line.append(text)
        lines.append(line)
    return _table(["cell: hit tokens", *map(escape, variants)], lines)


def _everything(results: Results, variant: str) -> str:
    lines = []
    for cell in results.cells(variant):
        for c in results.comparisons(variant, cell):
            better = "more" if c.figure in HIGHER_IS_BETTER else "less"
            error = f"{c.error:.1%}" if c.error is not None else "-"
            lines.append(
                [
                    escape(f"{cell}: {c.figure}"),
                    _spread(c.stock, ".4g"),
                    _spread(c.ours, ".4g"),
                    _ratio(c),
                    error,
                    escape(c.verdict),
                    better,
                ]
            )
    head = ["figure (seconds, per second)", "stock", "ours", "ratio", "error", "verdict", "better"]
    return f"<details><summary>{escape(variant)}</summary>{_table(head, lines)}</details>"


def _settings(whole: Mapping[str, Any]) -> str:
    shown = {key: whole[key] for key in ("settings", "plan", "machine")}
    return (
        "<p>The same command on the same versions gives the same requests (the digests below are "
        "of their token ids and arrival times).</p>"
        f"<pre>{escape(json.dumps(shown, indent=1))}</pre>"
    )


def _spread(spread: Spread, form: str) -> str:
    middle, low, high = (format(v, form) for v in (spread.median, spread.low, spread.high))
    return middle if low == high else f"{middle} ({low} to {high})"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already."""
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>\n" for line in lines
    )
    return f"<table><tr>{cells}</tr>\n{body}</table>"
