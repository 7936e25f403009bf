"""Planning of task tables: what it costs, and how even each dealing makes the cores.

plan_us_1024_rows                   1,024 decode rows, 8 KV heads, 24 cores, columns in, table out
balance_p50_{C}_cores_{H}_heads     predicted work of the least over the most loaded core: median
                                    over the steps of a trace, of several traces the lowest
plain_balance_p50_24_cores_8_heads  the same for plain round-robin over tiles and heads, uncut

Steps come from `plan_traces`: a busy server with 64 running requests and a budget of 4,096 tokens
on the Azure traces of 2023 (an excerpt; --trace takes a whole one). Balance is the planner's own
prediction: it says how good the dealing is, not how good its cost model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks import plan_traces
from benchmarks.harness import Case, Options, Result, Row, main, measure
from benchmarks.plan_traces import Step
from vllm_xyserve.plan import (
    CPU,
    GPU,
    NPU,
    STRATEGIES,
    Device,
    Geometry,
    Planner,
    Policy,
    native,
    statistics,
)
from vllm_xyserve.plan.reference import plan_reference
from vllm_xyserve.plan.rows import make_rows

# Heads of Llama-3 8B on one device and on two, and of a 70B model on eight.
GEOMETRIES = {8: Geometry(8, 4, 128), 4: Geometry(4, 4, 128), 1: Geometry(1, 8, 128)}
DEVICES = {2: CPU, 8: CPU, 20: NPU, 24: NPU, 64: CPU, 132: GPU}
# What the summary asks for: cores, KV heads.
SUMMARY = ((24, 8), (20, 4), (24, 1))
# "uncut": a task per tile and KV head, as in the paper.
POLICIES = {name: Policy(name) for name in reversed(STRATEGIES)}
POLICIES |= {f"{name} uncut": Policy(name, levels=0) for name in ("lpt", "snake", "plain")}
QUICK_POLICIES = ("fit", "lpt", "snake uncut", "plain uncut")


def decode_rows(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Decodes on contexts of 64 to 4,096 tokens."""
    rng = np.random.default_rng(num_rows)
    return np.ones(num_rows, dtype=np.int32), rng.integers(64, 4097, num_rows, dtype=np.int32)


def planning_case(num_rows: int, device: Device, geometry: Geometry) -> Case:
    """The planner that serves against its NumPy reference."""
    planner = Planner(device, geometry)
    query_lens, key_lens = decode_rows(num_rows)

    def reference() -> np.ndarray:
        return plan_reference(planner.spec, make_rows(query_lens, key_lens))

    def check() -> None:
        if planner.plan(query_lens, key_lens).tobytes() != reference().tobytes():
            raise AssertionError(f"{num_rows} rows: the two planners write different tables")

    return Case(
        name=f"plan {num_rows} rows",
        check=check,
        ours=lambda: planner.plan(query_lens, key_lens),
        peer=reference,
        facts={"cores": device.num_cores, "kv_heads": geometry.num_kv_heads, "peer": "NumPy"},
    )


def balance_row(trace: str, steps: Sequence[Step], cores: int, heads: int, policy: str) -> Row:
    """Medians and 90th percentiles over the steps of a trace."""
    planner = Planner(DEVICES[cores].with_cores(cores), GEOMETRIES[heads], POLICIES[policy])
    found, times = [], []
    for step in steps:
        lens = np.asarray(step.query_lens, np.int32), np.asarray(step.key_lens, np.int32)
        planner.plan(*lens)  # warm: a table is planned once per step, but every step
        start = time.perf_counter()
        buffer = planner.plan(*lens)
        times.append((time.perf_counter() - start) * 1e6)
        found.append(statistics(buffer))
    makespans = [s.makespan_over_mean for s in found]
    return {
        "name": f"{trace} {cores} cores {heads} heads {policy}",
        "steps": len(steps),
        "balance_p50": float(np.median([s.balance for s in found])),
        "balance_p10": float(np.percentile([s.balance for s in found], 10)),
        "makespan_p50": float(np.median(makespans)),
        "makespan_p90": float(np.percentile(makespans, 90)),
        "longest_ms_p50": float(np.median([s.makespan_ns for s in found])) / 1e6,
        "tasks_p50": float(np.median([s.num_tasks for s in found])),
        "partial_p50": float(np.median([s.num_split_tasks for s in found])),
        "plan_us_p50": float(np.median(times)),
    }


def traces(options: Options) -> dict[str, list[Step]]:
    """Sampled steps per trace."""
    extra = options.extra
    paths = {path.stem: path for path in extra.trace} or plan_traces.EXCERPTS
    count = 40 if options.quick else 200
    sampled = {}
    for name, path in paths.items():
        every = list(plan_traces.steps(plan_traces.load(path), extra.budget, extra.running))
        if not every:
            raise SystemExit(f"{path} holds too few requests to keep {extra.running} running")
        sampled[name] = plan_traces.sample(every, count)
    return sampled


def cases(quick: bool) -> Iterator[tuple[int, int, str]]:
    """Cores, KV heads and policy of each row."""
    pairs = SUMMARY if quick else [(c, h) for c in DEVICES for h in GEOMETRIES]
    for cores, heads in pairs:
        for policy in QUICK_POLICIES if quick else POLICIES:
            yield cores, heads, policy


def run(options: Options) -> Result:
    if native.library() is None:
        raise SystemExit(f"native planner not loaded: {native.missing()}")
    rows: list[Row] = []
    timing, row = measure(planning_case(1024, NPU, GEOMETRIES[8]), options)
    rows.append(row)
    for num_rows in () if options.quick else (1, 4, 16, 64, 256, 4096):
        rows.append(measure(planning_case(num_rows, NPU, GEOMETRIES[8]), options)[1])
    lowest: dict[tuple[int, int, str], float] = {}
    for name, steps in traces(options).items():
        for case in cases(options.quick):
            row = balance_row(name, steps, *case)
            rows.append(row)
            balance = row["balance_p50"]
            assert isinstance(balance, float)
            lowest[case] = min(balance, lowest.get(case, 1.0))
    summary = {"plan_us_1024_rows": timing.ours_us}
    for cores, heads in SUMMARY:
        key = f"balance_p50_{cores}_cores_{heads}_head{'s' if heads > 1 else ''}"
        summary[key] = lowest[cores, heads, "fit"]
    summary["plain_balance_p50_24_cores_8_heads"] = lowest[24, 8, "plain uncut"]
    return Result(summary, rows)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trace",
        type=Path,
        action="append",
        default=[],
        help="an Azure LLM inference trace (CSV); may be repeated; default: excerpts of two",
    )
    parser.add_argument("--budget", type=int, default=4096, help="tokens per step (4096)")
    parser.add_argument("--running", type=int, default=64, help="running requests (64)")


def cli(argv: Sequence[str] | None = None) -> None:
    main(run, __doc__, add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    cli()
