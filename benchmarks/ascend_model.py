"""Predicted time of the Ascend kernels on the steps of traces. Predictions: no NPU was used.

mixed_attention_ratio_low, _high    attention of mixed steps, prefill and decode in kernels of their
                                    own over one task-table kernel: lowest and highest of all traces
                                    and memory models; 24 cores, 8 KV heads
balance_p50_{C}_cores               predicted work of the least over the most loaded core, default
                                    dealing: median over steps, lowest of traces and memory models
virtual_over_physical_bytes         linear layers: bytes moved with virtual over physical padding
                                    of M, weights included, over all steps of all traces
calibration_error_median, _max      absolute, of all memory models on published times that no fit
                                    has seen

Every ratio is a range over four memory models (two published sets of rates, two of chip limits);
`gain` says whether the whole range lies above 1. Both sides of a ratio use the same pipes. Stages
against one kernel: each launch has the best of two dealings (`fit` with key splits, `lpt` without)
and two forms under the same model.
Absolute times are shown with the error found on the check points. docs/ascend-model.md.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks import ascend_fit, ascend_plot, plan_traces
from benchmarks.ascend_batches import Launch, plan, stages, with_verify
from benchmarks.harness import Options, Result, Row, main
from benchmarks.plan_traces import Step
from vllm_xyserve.plan import Geometry, Policy
from vllm_xyserve.plan.ascend import chip
from vllm_xyserve.plan.ascend.chip import Chip
from vllm_xyserve.plan.ascend.counts import Form
from vllm_xyserve.plan.ascend.predict import Linear, best_tile

# Llama-3 8B on one NPU, a 70B model on eight, and Llama-2 7B with a KV head per query head.
GEOMETRIES = {
    "8 KV heads": Geometry(8, 4, 128),
    "1 KV head": Geometry(1, 8, 128),
    "32 KV heads": Geometry(32, 1, 128),
}
MAIN = "8 KV heads"
# Qkv, output, gate and up, down of Llama-3 8B: N, K.
LAYERS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
DEVICES = {24: chip.B1, 20: chip.B3}
DEALINGS = {
    "fit": Policy(),
    "snake": Policy("snake"),
    "plain": Policy("plain"),
    "lpt uncut": Policy("lpt", levels=0),
    "snake uncut": Policy("snake", levels=0),
    "plain uncut": Policy("plain", levels=0),
}
QUICK_DEALINGS = ("fit", "lpt uncut", "snake uncut", "plain uncut")
BEST_OF = (DEALINGS["fit"], DEALINGS["lpt uncut"])
VERIFY_LEN = 4


@dataclass(frozen=True, slots=True)
class Range:
    """Lowest and highest value over the memory models."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Range:
        return cls(float(min(values)), float(max(values)))

    @property
    def is_gain(self) -> bool:
        return self.low > 1


def totals(launches: Sequence[Launch], device: Chip) -> np.ndarray:
    """Summed time per memory model. [num_memories]."""
    return np.array([sum(x.seconds(device, m) for x in launches) for m in chip.MEMORIES])


def best_seconds(step: Step, device: Chip, geometry: Geometry) -> np.ndarray:
    """One launch with the best of two dealings and of the host's form and four stages, per memory
    model. [num_memories]. A form that does badly must not make a ratio."""
    found = []
    for policy in BEST_OF:
        launch = plan(device, geometry, policy, step)
        for form in {launch.form, Form.FOUR_STAGE}:
            found.append(totals([replace(launch, form=form)], device))
    best: np.ndarray = np.min(found, axis=0)
    return best


def is_mixed(step: Step) -> bool:
    return max(step.query_lens) > 1 and 1 in step.query_lens


def stage_row(trace: str, steps: Sequence[Step], cores: int, name: str, verify_len: int) -> Row:
    """Kernels per stage over one kernel, on mixed steps."""
    device, geometry = DEVICES[cores], GEOMETRIES[name]
    mixed = [step for step in steps if is_mixed(step)]
    if not mixed:
        return {"name": f"stages {trace} {cores} cores {name}", "steps": 0}
    table, staged = np.zeros(len(chip.MEMORIES)), np.zeros(len(chip.MEMORIES))
    for step in mixed:
        table += best_seconds(step, device, geometry)
        for part in stages(step, verify_len):
            staged += best_seconds(part, device, geometry)
    ratio = Range.of((staged / table).tolist())
    launches = len(mixed) * np.array([m.launch_s for m in chip.MEMORIES])
    # What is left of the ratio when a launch costs nothing: sharing of bandwidth and balance.
    count = sum(len(stages(step, verify_len)) for step in mixed) / len(mixed)
    beside = Range.of(((staged - launches * count) / (table - launches)).tolist())
    return {
        "name": f"stages {trace} {cores} cores {name}",
        "steps": len(mixed),
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
        "gain": ratio.is_gain,
        "ratio_without_launches_low": beside.low,
        "ratio_without_launches_high": beside.high,
        **microseconds(table / len(mixed)),
    }


@functools.cache
def check_errors() -> tuple[float, ...]:
    """Absolute errors of the committed models on the check points."""
    return tuple(ascend_fit.check_errors(chip.MEMORIES))


def microseconds(seconds: np.ndarray) -> Row:
    """A predicted time, never without how far off such a time may be."""
    errors = check_errors()
    span = Range.of((seconds * 1e6).tolist())
    return {
        "us_low": span.low,
        "us_high": span.high,
        "error": f"{np.median(errors):.0%} median, {np.max(errors):.0%} max",
    }


def dealing_rows(
    trace: str, steps: Sequence[Step], cores: int, name: str, dealings: Sequence[str]
) -> Iterator[Row]:
    """Balance and time of each dealing; the ratio is plain uncut dealing's time over its own."""
    device, geometry = DEVICES[cores], GEOMETRIES[name]
    found = {}
    for dealing in dealings:
        launches = [plan(device, geometry, DEALINGS[dealing], step) for step in steps]
        balance = []
        for memory in chip.MEMORIES:
            loads = [launch.core_seconds(device, memory) for launch in launches]
            balance.append(float(np.median([x.min() / x.max() for x in loads])))
        splits = float(np.mean([len(launch.merging.core) > 0 for launch in launches]))
        found[dealing] = totals(launches, device), Range.of(balance), splits
    plain = found["plain uncut"][0]
    for dealing, (seconds, balance_range, splits) in found.items():
        ratio = Range.of((plain / seconds).tolist())
        yield {
            "name": f"dealing {trace} {cores} cores {name} {dealing}",
            "steps": len(steps),
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
            "gain": ratio.is_gain,
            "balance_low": balance_range.low,
            "balance_high": balance_range.high,
            "steps_with_splits": splits,
            **microseconds(seconds / len(steps)),
        }


def form_rows(quick: bool) -> Iterator[Row]:
    """Decode steps with the scores on the cube core, as four stages, over two stages."""
    for cores, device in DEVICES.items():
        for group in (1, 2, 4) if quick else (1, 2, 3, 4):
            for num_rows, keys in ((8, 1024), (64, 4096)):
                step = Step((1,) * num_rows, (keys,) * num_rows)
                launch = plan(device, Geometry(8, group, 128), Policy(), step)
                two = totals([replace(launch, form=Form.TWO_STAGE)], device)
                four = totals([replace(launch, form=Form.FOUR_STAGE)], device)
                ratio = Range.of((four / two).tolist())
                yield {
                    "name": f"two stages {cores} cores group {group}, {num_rows} x {keys}",
                    "ratio_low": ratio.low,
                    "ratio_high": ratio.high,
                    "gain": ratio.is_gain,
                    **microseconds(two),
                }


def linear_row(trace: str, steps: Sequence[Step], cores: int) -> Row:
    """Virtual against physical padding of M over the layers of a block, each with its best tile."""
    device = DEVICES[cores]
    sizes, numbers = np.unique([sum(s.query_lens) for s in steps], return_counts=True)
    seconds = np.zeros((2, len(chip.MEMORIES)))
    moved, rows_only = np.zeros(2), np.zeros(2)
    for m, number in zip(sizes.tolist(), numbers.tolist(), strict=True):
        for n, k in LAYERS:
            layer = Linear(m, n, k)
            for i, memory in enumerate(chip.MEMORIES):
                for side in (0, 1):
                    tile, time = best_tile(device, memory, layer, physical=bool(side))
                    counts = layer.all_counts(tile, cores, bool(side))
                    seconds[side, i] += number * time
                    moved[side] += number * float(counts.gm_bytes.sum())
                    padded = -(-m // tile.rows) * tile.rows if side else m
                    rows_only[side] += number * padded * 2 * (k + n)
    ratio = Range.of((seconds[1] / seconds[0]).tolist())
    return {
        "name": f"padding {trace} {cores} cores",
        "steps": len(steps),
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
        "gain": ratio.is_gain,
        "virtual_bytes": moved[0],
        "physical_bytes": moved[1],
        "bytes_ratio": moved[0] / moved[1],
        "rows_bytes_ratio": rows_only[0] / rows_only[1],
        **microseconds(seconds[0] / len(steps)),
    }


def traces(options: Options) -> dict[str, list[Step]]:
    """Sampled steps per trace."""
    extra = options.extra
    paths = {path.stem: path for path in extra.trace} or {
        **plan_traces.EXCERPTS,
        "mooncake": plan_traces.MOONCAKE,
    }
    count = 6 if options.quick else 24
    sampled = {}
    for name, path in paths.items():
        is_mooncake = path.suffix == ".jsonl"
        load = plan_traces.load_mooncake if is_mooncake else plan_traces.load
        every = list(plan_traces.steps(load(path), extra.budget, extra.running))
        if not every:
            raise SystemExit(f"{path} holds too few requests to keep {extra.running} running")
        sampled[name] = plan_traces.sample(every, count)
    return sampled


def replay(sampled: dict[str, list[Step]], quick: bool) -> list[Row]:
    """All rows but the calibration's."""
    rows: list[Row] = []
    dealings = QUICK_DEALINGS if quick else tuple(DEALINGS)
    for trace, steps in sampled.items():
        for cores in DEVICES:
            for name in (MAIN,) if quick else GEOMETRIES:
                rows.append(stage_row(trace, steps, cores, name, 0))
                if not quick:
                    verify = [with_verify(step, VERIFY_LEN) for step in steps]
                    rows.append(stage_row(f"{trace}+verify", verify, cores, name, VERIFY_LEN))
                rows += dealing_rows(trace, steps, cores, name, dealings)
            rows.append(linear_row(trace, steps, cores))
    return rows + list(form_rows(quick))


def numbers(rows: Sequence[Row], prefix: str, suffix: str, column: str) -> list[float]:
    """A column of the rows whose name begins and ends so."""
    found = []
    for row in rows:
        name, value = str(row["name"]), row.get(column)
        if name.startswith(prefix) and name.endswith(suffix) and isinstance(value, float):
            found.append(value)
    return found


def run(options: Options) -> Result:
    sampled = traces(options)
    rows = replay(sampled, options.quick)
    errors = check_errors()
    suffix = f"24 cores {MAIN}"
    plain = [row for row in rows if "+verify" not in str(row["name"])]
    summary = {
        "mixed_attention_ratio_low": min(numbers(plain, "stages", suffix, "ratio_low")),
        "mixed_attention_ratio_high": max(numbers(plain, "stages", suffix, "ratio_high")),
    }
    for cores in (20, 24):
        ending = f"{cores} cores {MAIN} fit"
        summary[f"balance_p50_{cores}_cores"] = min(numbers(rows, "dealing", ending, "balance_low"))
    virtual, physical = (
        sum(numbers(rows, "padding", "", f"{x}_bytes")) for x in ("virtual", "physical")
    )
    summary["virtual_over_physical_bytes"] = virtual / physical
    summary["calibration_error_median"] = float(np.median(errors))
    summary["calibration_error_max"] = float(np.max(errors))
    rows += ascend_fit.error_rows(chip.MEMORIES)
    if options.extra.plot is not None:
        ascend_plot.plot(rows, options.extra.plot)
    return Result(summary, rows)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trace",
        type=Path,
        action="append",
        default=[],
        help="an Azure (CSV) or Mooncake (JSON lines) trace; may be repeated; default: excerpts",
    )
    parser.add_argument("--budget", type=int, default=4096, help="tokens per step (4096)")
    parser.add_argument("--running", type=int, default=64, help="running requests (64)")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write diagrams there")


def cli(argv: Sequence[str] | None = None) -> None:
    main(run, __doc__, add_arguments=add_arguments, argv=argv)


if __name__ == "__main__":
    cli()
