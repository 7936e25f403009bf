"""The planner's cost model, fitted to what `benchmarks.attention --json` measured on one thread.

python -m benchmarks.attention --threads 1 --json > measured.json
python -m benchmarks.attention_fit measured.json

Least squares of the relative error over all attention cases, both head sizes, with task_ns,
gbytes_per_s and gflops not negative, for a dtype of two bytes. partial_ns is not in it: nothing is
cut on one thread.
"""

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.attention import CASES, LARGE, SMALL, trace_cases
from benchmarks.attention_batches import Heads, Rows
from vllm_xyserve.plan import CPU, Planner
from vllm_xyserve.plan.table import view

NAMES = ("ns a task", "GB/s", "GFLOP/s")
Array = npt.NDArray[np.float64]


def terms(heads: Heads, rows: Rows) -> Array:
    """Tasks, bytes and operations of a batch as the planner counts them, one core, [3]."""
    geometry = heads.geometry()
    planner = Planner(CPU.with_cores(1), geometry)
    tasks = view(planner.plan([q for q, _ in rows], [k for _, k in rows])).tasks
    tasks = tasks[tasks["num_queries"] > 0]
    keys = (tasks["key_end"] - tasks["key_begin"]) * tasks["num_heads"].astype(np.int64)
    height = np.array(CPU.tile_rows)[tasks["tile_class"]]
    num_bytes = 2 * heads.head_size * geometry.element_bytes * keys.sum()
    flops = 4 * heads.head_size * (keys * height).sum()
    return np.array([len(tasks), num_bytes, flops], dtype=np.float64)


def fit(counts: Array, measured_ns: Array) -> Array:
    """Factors >= 0 of the terms that miss the times least, relative to each: [num_terms]."""
    scaled = counts / measured_ns[:, None]
    best, least = np.zeros(counts.shape[1]), np.inf
    for size in range(1, counts.shape[1] + 1):
        for chosen in itertools.combinations(range(counts.shape[1]), size):
            factors, *_ = np.linalg.lstsq(scaled[:, chosen], np.ones(len(scaled)), rcond=None)
            missed = float(np.square(scaled[:, chosen] @ factors - 1).sum())
            if (factors >= 0).all() and missed < least:
                best, least = np.zeros(counts.shape[1]), missed
                best[list(chosen)] = factors
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measured", type=Path, help="output of benchmarks.attention --json")
    measured = json.loads(parser.parse_args().measured.read_text(encoding="utf-8"))
    cases = CASES | trace_cases(2)
    counts, times, names = [], [], []
    for row in measured["rows"]:
        if row["name"] in cases and row.get("threads") == 1:
            heads = SMALL if row["D"] == SMALL.head_size else LARGE
            counts.append(terms(heads, cases[row["name"]]))
            times.append(row["ours_us"] * 1e3)
            names.append(f"{row['name']}, D={row['D']}")
    factors = fit(np.array(counts), np.array(times))
    for name, factor in zip(NAMES, factors, strict=True):
        value = factor if name == NAMES[0] else 1 / factor if factor else float("inf")
        print(f"{name:10} {value:.1f}")
    for name, count, time in zip(names, counts, times, strict=True):
        print(f"{name:45} predicted over measured {float(count @ factors) / time:.2f}")


if __name__ == "__main__":
    main()
