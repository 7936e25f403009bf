"""The subcommand ``tune``: from a model to a file of entries, with progress shown."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vllm_xyserve.ops import native
from vllm_xyserve.ops.isa import cpu_info, device_name
from vllm_xyserve.plan import tuning
from vllm_xyserve.plan.tuning import RULE, Tiling, TunedEntry
from vllm_xyserve.tune import search, shapes, trials

_HOPELESS: Final = 5  # failures at the beginning: no child can work here


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for. dtype: None is the model's. threads: empty is all CPUs.

    output: None is the user's data folder. timeout: seconds without an answer after which a
    measuring process is ended. rows: the largest M that is tuned for.
    """

    model: str
    dtype: str | None = None
    threads: tuple[int, ...] = ()
    tensor_parallel: int = 1
    output: str | None = None
    timeout: float = 120.0
    rows: int = 2048


def run(options: Options) -> int:
    """Measure and write; exit status 0 if that worked, whether or not anything was gained."""
    try:
        config = shapes.read_config(options.model)
        dtype = options.dtype or shapes.dtype_of(config)
        layers = shapes.layers(config, options.tensor_parallel)
        path = output_path(options.output)
        old = tuning.read(path) if path.exists() else None
    except (shapes.ShapeError, tuning.TunedError) as error:
        return _fail(str(error))
    status = native.load()
    if not status.loaded:
        return _fail(f"there is no native library to tune: {status.reason}; {status.mend}")
    device = device_name()
    if old is not None and old.device != device:
        return _fail(
            f"{path} is of another device ({old.device}, this is {device}); give another --output"
        )
    threads = options.threads or (len(cpu_info().cpuset),)
    named = tasks_of(layers, threads, options.rows)
    _say(f"{len(layers)} layers of {options.model} in {dtype}, {len(named)} tasks, on {device}")
    start = time.monotonic()
    entries, isa, errors = measure(dtype, named, options.timeout)
    if not isa:
        return _fail("no task could be measured; see the messages above")
    kept = [] if old is None else _without(old.entries, named, dtype, isa)
    file = tuning.TunedFile(device, datetime.date.today().isoformat(), (*kept, *entries))
    try:
        if file.entries or old is not None:
            tuning.write(path, file)
    except OSError as error:
        return _fail(f"{path} cannot be written: {error.strerror or error}; give another --output")
    where = f"in {path}" if file.entries else "nothing to write"
    print(
        f"{len(entries)} of {len(named)} tasks gained over the rule, {where} "
        f"({time.monotonic() - start:.0f} s, {errors} not measured)"
    )
    return 0


def output_path(output: str | None) -> Path:
    """The file to write: in the user's folder, a given folder, or a given file."""
    name = tuning.file_name(device_name())
    if output is None:
        return tuning.user_folder() / name
    path = Path(output).expanduser()
    return path if path.suffix == ".json" else path / name


def tasks_of(
    layers: Iterable[shapes.Layer], threads: Iterable[int], rows: int
) -> list[tuple[str, search.Task]]:
    """(name of the layer, task) for every range of M that a layer sees."""
    return [
        (layer.name, search.Task(layer.n, layer.k, first, last, count))
        for count in threads
        for layer in layers
        for first, last in tuning.BUCKETS
        if first <= rows and last <= layer.max_rows
    ]


def measure(
    dtype: str, named: list[tuple[str, search.Task]], timeout: float
) -> tuple[list[TunedEntry], str, int]:
    """Entries that a second process confirmed, the instruction set, and the number of failures."""
    isa, errors = "", 0
    found: list[tuple[str, search.Task, search.Found]] = []
    tasks = [task for _, task in named]
    for i, answer in enumerate(trials.answers(dtype, tasks, None, timeout)):
        name, task = named[i]
        head = f"[{i + 1:3}/{len(named)}] {_label(name, task)}"
        if "error" in answer:
            errors += 1
            _say(f"{head} left out: {answer['error']}")
            if not isa and errors == _HOPELESS:
                break
            continue
        isa = answer["isa"]
        best = _found(answer["found"])
        if best.tiling != RULE:
            found.append((name, task, best))
        gain = "" if best.tiling == RULE else f" {1 / best.ratio:.2f} times as fast"
        _say(f"{head} {best.tiling}{gain}")
    return confirm(dtype, found, timeout, isa), isa, errors


def confirm(
    dtype: str, found: list[tuple[str, search.Task, search.Found]], timeout: float, isa: str
) -> list[TunedEntry]:
    """Measure what was found once more, in another process, and keep what shows again."""
    if found:
        _say(f"measuring {len(found)} gains once more")
    entries = []
    tasks, tilings = [task for _, task, _ in found], [best.tiling for *_, best in found]
    for i, answer in enumerate(trials.answers(dtype, tasks, tilings, timeout)):
        name, task, best = found[i]
        label = _label(name, task)
        if "error" in answer:
            _say(f"{label} dropped: {answer['error']}")
            continue
        ratios = answer["ratios"]
        mean = sum(ratios) / len(ratios)
        if not search.reproduces(best, ratios, answer["noise"]):
            _say(f"{label} dropped: {1 / best.ratio:.2f} times as fast, then {1 / mean:.2f}")
            continue
        _say(f"{label} kept: {best.tiling}, {1 / best.ratio:.2f} and {1 / mean:.2f} times as fast")
        entries.append(_entry(task, best.tiling, dtype, isa, answer))
    return entries


def _entry(
    task: search.Task, tiling: Tiling, dtype: str, isa: str, answer: dict[str, Any]
) -> TunedEntry:
    rule_us = answer["rule_us"][-1]
    return TunedEntry(
        n=task.n,
        k=task.k,
        dtype=dtype,
        isa=isa,
        threads=task.threads,
        m_first=task.m_first,
        m_last=task.m_last,
        tiling=tiling,
        measured_m=answer["m"][-1],
        measured_us=round(rule_us * answer["ratios"][-1], 2),
        rule_us=round(rule_us, 2),
    )


def _without(
    old: Iterable[TunedEntry], named: list[tuple[str, search.Task]], dtype: str, isa: str
) -> list[TunedEntry]:
    """Old entries of what was not measured now: what gains nothing any more is dropped too."""
    now = {(t.n, t.k, dtype, isa, t.threads, t.m_first) for _, t in named}
    return [entry for entry in old if (*entry.key, entry.m_first) not in now]


def _found(data: dict[str, Any]) -> search.Found:
    return search.Found(Tiling(**data["tiling"]), data["ratio"], data["noise"])


def _label(name: str, task: search.Task) -> str:
    rows = f"{task.m_first}..{task.m_last}"
    return f"{name:8} {task.n}x{task.k} M {rows:9} {task.threads} threads:"


def _say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


def _fail(text: str) -> int:
    print(f"vllm-xyserve tune: {text}", file=sys.stderr)
    return 1
