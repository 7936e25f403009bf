"""Linear layers of three models: ours, vLLM's prepacked oneDNN path, and F.linear.

The peer is held to the instruction set of our kernels (ONEDNN_MAX_CPU_ISA; XYSERVE_ISA=avx2 chooses
a lower one for both); --amx adds what it does without that limit, for information. Where oneDNN has
no kernel (bf16 and fp16 on AVX2), stock vLLM calls F.linear, and that is the peer. Both sides are
called as a model calls them, output allocated, and alternate. The summary is of one thread;
--threads adds rows.

geomean_ratio_m_1_8, _m_9_32, _m_33_64, _m_96_up   peer's time over ours in --dtype
min_ratio            the worst point of them
int8_over_bf16       our time in --dtype over our int8 time (quantisation included), M >= 16
int8_over_peer       the peer's int8 time over ours, quantisation included, M = 1..32
int8_peer_error      the peer's largest int8 error, relative; ours is checked to be below 0.02
random_order_ratio   as the first, each M called for the first time, M = 1..32 in random order
unseen_over_order    our time for 200 row counts in random order, each for the first time, over that
                     for the same in rising order; the worst layer
worst_edge           largest t(M+1) * M / (t(M) * (M+1)), M = 8..512
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks import gemm_plot
from benchmarks.gemm_child import Plan
from benchmarks.harness import Options, Result, Row, Value, main
from benchmarks.stopping import stopped_by_signals
from vllm_xyserve.ops import native

SHAPES = Path(__file__).with_name("data") / "gemm"
# What holds oneDNN to the instruction set of our kernels.
PEER_ISA = {"avx512_bf16": "AVX512_CORE_BF16", "avx512": "AVX512_CORE", "avx2": "AVX2"}
ALL_ROWS = (*range(1, 65), 96, 128, 129, 192, 256, 257, 511, 512, 1024)
QUICK_ROWS = (1, 2, 4, 6, 7, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64, 96, 128, 257)
INT8_ROWS = (1, 2, 4, 8, 16, 17, 32, 64, 128, 256)
QUICK_LAYERS = (("smollm2-135m", ("qkv", "o", "gate_up", "down")), ("llama-3-8b", ("o",)))
QUICK_EDGE_ROWS = (*range(8, 50), 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512)


def read_shapes(model: str) -> list[tuple[str, int, int]]:
    """(layer, N, K) of a file of ``name N K`` lines; ``#`` starts a comment."""
    shapes = []
    for line in (SHAPES / f"{model}.txt").read_text(encoding="utf-8").splitlines():
        if fields := line.partition("#")[0].split():
            name, n, k = fields
            shapes.append((f"{model}/{name}", int(n), int(k)))
    return shapes


def models() -> list[str]:
    return sorted(path.stem for path in SHAPES.glob("*.txt"))


def make_plan(options: Options, threads: int) -> Plan:
    """What one child times."""
    if options.quick:
        shapes = [
            shape
            for model, layers in QUICK_LAYERS
            for shape in read_shapes(model)
            if shape[0].partition("/")[2] in layers
        ]
    else:
        shapes = [s for model in options.extra.models for s in read_shapes(model)]
    edges = [s for s in shapes if s[1] * s[2] <= 1_000_000][: 1 if options.quick else 8]
    return Plan(
        shapes=shapes,
        row_counts=list(QUICK_ROWS if options.quick else ALL_ROWS),
        threads=threads,
        seconds=0.03 if options.quick else 0.1,
        num_rounds=5 if options.quick else 9,
        edge_shapes=edges if threads == 1 else [],
        edge_rows=list(QUICK_EDGE_ROWS if options.quick else range(8, 514)),
        int8_row_counts=list(INT8_ROWS if threads == 1 else ()),
        peer_only=False,
        dtype=options.extra.dtype,
    )


def run_child(plan: Plan, peer_isa: str | None) -> list[Row]:
    """Rows of a fresh process; its progress goes to standard error."""
    env = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    if peer_isa is not None:
        env["ONEDNN_MAX_CPU_ISA"] = peer_isa
    command = [sys.executable, "-m", "benchmarks.gemm_child", json.dumps(dataclasses.asdict(plan))]
    result = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"the measuring process ended with status {result.returncode}")
    rows: list[Row] = json.loads(result.stdout.splitlines()[-1])["rows"]
    return rows


def geomean(values: Iterable[Value]) -> float:
    numbers = [float(value) for value in values if value is not None]
    return math.exp(sum(map(math.log, numbers)) / len(numbers))


def band(rows: Sequence[Row], kind: str, column: str, first: int, last: int) -> list[Value]:
    """A column of the one-thread rows of a kind with M in [first, last]."""
    return [
        row[column]
        for row in rows
        if row["kind"] == kind
        and row.get("threads", 1) == 1
        and first <= int(row["m"] or 0) <= last
    ]


def summarise(rows: Sequence[Row]) -> dict[str, float]:
    """The summary of the benchmark, from the rows of all children."""
    ratios = [float(value or 0) for value in band(rows, "float", "ratio", 1, 1 << 30)]
    edges = [float(value or 0) for value in band(rows, "edge", "edge", 8, 512)]
    unseen = [row for row in rows if row["kind"] == "unseen"]
    int8_errors = band(rows, "int8", "peer_error", 1, 1 << 30)
    return {
        "geomean_ratio_m_1_8": geomean(band(rows, "float", "ratio", 1, 8)),
        "geomean_ratio_m_9_32": geomean(band(rows, "float", "ratio", 9, 32)),
        "geomean_ratio_m_33_64": geomean(band(rows, "float", "ratio", 33, 64)),
        "geomean_ratio_m_96_up": geomean(band(rows, "float", "ratio", 96, 1 << 30)),
        "min_ratio": min(ratios),
        "int8_over_bf16": geomean(band(rows, "int8", "over_float", 16, 1 << 30)),
        "int8_over_peer": geomean(band(rows, "int8", "ratio", 1, 32)),
        "int8_peer_error": max(float(error or 0) for error in int8_errors),
        "random_order_ratio": geomean(band(rows, "first", "ratio", 1, 32)),
        "unseen_over_order": max(float(row["ours_over_order"] or 0) for row in unseen),
        "worst_edge": max(edges),
    }


def add_shares(rows: Sequence[Row]) -> None:
    """Each rate as a share of the best that any layer reached with as many threads: the limit."""
    for kind in ("float", "int8"):
        for threads in {row.get("threads") for row in rows}:
            group = [r for r in rows if r["kind"] == kind and r.get("threads") == threads]
            limit = max((float(row["gflops"] or 0) for row in group), default=1.0)
            for row in group:
                row["share"] = float(row["gflops"] or 0) / limit


def add_amx(rows: Sequence[Row], plan: Plan) -> None:
    """What the peer takes without a limit to its instruction set, beside ours."""
    free = dataclasses.replace(plan, peer_only=True, int8_row_counts=[], edge_shapes=[])
    found = {(r["n"], r["k"], r["m"]): r["ratio"] for r in run_child(free, None)}
    for row in rows:
        if row["kind"] == "float" and row.get("threads") == plan.threads:
            row["peer_unlimited_ratio"] = found.get((row["n"], row["k"], row["m"]))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", choices=models(), default=models())
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="default: 1 2")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--amx", action="store_true", help="also the peer without a limit")
    parser.add_argument("--plot", metavar="PNG", help="time against M (needs matplotlib)")


def run(options: Options) -> Result:
    isa = native.load().isa
    if isa not in PEER_ISA:
        raise SystemExit(f"needs the native library on one of {', '.join(PEER_ISA)}, have {isa!r}")
    if options.extra.plot:
        gemm_plot.require()
    threads = [1] if options.quick else sorted({1, *options.extra.threads})
    rows: list[Row] = []
    for count in threads:
        plan = make_plan(options, count)
        rows += run_child(plan, PEER_ISA[isa])
        if options.extra.amx:
            add_amx(rows, plan)
    add_shares(rows)
    if options.extra.plot:
        gemm_plot.plot(rows, Path(options.extra.plot))
    return Result(summarise(rows), rows)


if __name__ == "__main__":
    with stopped_by_signals():
        main(run, __doc__, add_arguments=add_arguments)
