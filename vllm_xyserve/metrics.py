"""The figures that we publish at ``/metrics``, and their way there from the engine core.

vLLM carries statistics from the engine core to its API servers in objects that drop what they do
not declare. So each engine core keeps its totals in a small file of its own, in the format of
prometheus_client's multi-process mode. With several API servers vLLM reads such files already, from
``PROMETHEUS_MULTIPROC_DIR``. With one it does not: then that process makes a folder, hands it on to
its engine cores in ``XYSERVE_METRICS_DIR`` and reads it when it is scraped. See docs/metrics.md.

Nothing here raises: an engine whose figures cannot be published still serves, and says so once.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import itertools
import multiprocessing
import os
import shutil
import struct
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import util
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.mmap_dict import mmap_key
from prometheus_client.multiprocess import MultiProcessCollector

from vllm_xyserve.log import get_logger
from vllm_xyserve.plan.step import REPLAN_REASONS

logger = get_logger("metrics")

ENV_DIR = "XYSERVE_METRICS_DIR"
ENV_MULTIPROC_DIR = "PROMETHEUS_MULTIPROC_DIR"
"""prometheus_client's own; vLLM sets it for several API servers."""

_PREFIX = "xyserve-metrics-"
_LOCK = "lock"
_file_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Figure:
    """One series per engine.

    Attributes:
        counter: attribute of the scheduler's counters that it shows.
        name: of the Prometheus counter, without the suffix ``_total`` of its samples.
        labels: besides ``engine``.
    """

    counter: str
    name: str
    help: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def key(self, engine: int) -> str:
        """The entry's key in a file of prometheus_client."""
        labels = {"engine": str(engine), **self.labels}
        return mmap_key(
            self.name, f"{self.name}_total", list(labels), list(labels.values()), self.help
        )


_HIT_HELP = "Prompt tokens of admitted requests that the prefix cache served."
PREFIX_FIGURES = (
    Figure("block_hit_tokens", "xyserve_prefix_hit_tokens", _HIT_HELP, {"kind": "block"}),
    Figure("sub_block_hit_tokens", "xyserve_prefix_hit_tokens", _HIT_HELP, {"kind": "sub_block"}),
    Figure(
        "num_prompt_tokens",
        "xyserve_prefix_prompt_tokens",
        "Prompt tokens of admitted requests that were looked up in the prefix cache.",
    ),
    Figure(
        "resumed_hit_tokens",
        "xyserve_prefix_resumed_hit_tokens",
        "Tokens that the prefix cache served to preempted requests when they resumed.",
    ),
    Figure("num_lookups", "xyserve_prefix_lookups", "Lookups of a partly matching block."),
    Figure(
        "lookup_seconds",
        "xyserve_prefix_lookup_seconds",
        "Seconds spent in these lookups, on top of vLLM's own.",
    ),
    Figure("num_copies", "xyserve_prefix_copies", "KV blocks copied for partial hits."),
    Figure("copied_bytes", "xyserve_prefix_copied_bytes", "Bytes of the copied KV blocks."),
    Figure(
        "num_refused",
        "xyserve_prefix_refused",
        "Lookups whose partial hit was not offered, since the request would not have fitted.",
    ),
)


_SAMPLED = "over the sampled task tables (every sixteenth)."
PLAN_FIGURES = (
    Figure("num_tables", "xyserve_plan_tables", "Task tables that attention steps have used."),
    Figure(
        "num_handed_over",
        "xyserve_plan_handed_over",
        "Task tables that the scheduler had planned.",
    ),
    Figure("plan_seconds", "xyserve_plan_seconds", "Seconds that workers spent planning."),
    Figure(
        "complete_seconds",
        "xyserve_plan_complete_seconds",
        "Seconds that workers spent checking and completing the scheduler's task tables.",
    ),
    Figure("num_samples", "xyserve_plan_samples", "Task tables that were sampled."),
    Figure("num_tasks", "xyserve_plan_tasks", f"Tasks, summed {_SAMPLED}"),
    Figure(
        "padding_rows_avoided",
        "xyserve_plan_padding_rows_avoided",
        f"Rows that fixed tiles would have padded, summed {_SAMPLED}",
    ),
    Figure(
        "balance_sum",
        "xyserve_plan_balance",
        f"Predicted load of the least over the most loaded core, summed {_SAMPLED}",
    ),
    *(
        Figure(
            f"replanned.{reason}",
            "xyserve_plan_replanned",
            "Task tables planned in the worker although the scheduler plans.",
            {"reason": reason},
        )
        for reason in REPLAN_REASONS
    ),
)
"""In the order of `PlanCounters.totals`."""


class FigureFile:
    """The totals of one engine core, for prometheus_client's multi-process mode.

    The file is built beside and renamed, so that no reader sees half of it, and written through a
    descriptor: through a memory map, a full disk would end the process with SIGBUS.
    """

    def __init__(self, folder: Path, engine: int, figures: Sequence[Figure]) -> None:
        """Make the file, with zeros.

        Args:
            folder: exists already.
            engine: data-parallel rank, as in vLLM's label ``engine``.

        Raises:
            OSError: the folder is missing or full, or may not be written to.
        """
        self._image, self._places = _image([figure.key(engine) for figure in figures])
        # A type and an underscore begin the name of every file of prometheus_client.
        name = f"counter_xyserve-{engine}-{os.getpid()}-{next(_file_numbers)}"
        self.path = folder / f"{name}.db"
        unfinished = folder / f"{name}.new"
        self._fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self._write_all()
            unfinished.rename(self.path)
        except OSError:
            self.close()
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise

    def write(self, values: Sequence[float]) -> None:
        """Publish the totals, one per figure and in their order.

        Raises:
            OSError: the file cannot be written any more.
        """
        for place, value in zip(self._places, values, strict=True):
            _DOUBLE.pack_into(self._image, place, value)
        self._write_all()

    def close(self) -> None:
        """Give the descriptor back; the totals stay."""
        os.close(self._fd)

    def _write_all(self) -> None:
        written = os.pwrite(self._fd, self._image, 0)
        if written != len(self._image):
            raise OSError(f"only {written} of {len(self._image)} bytes were written: {self.path}")


_DOUBLE = struct.Struct("d")


def _image(keys: Iterable[str]) -> tuple[bytearray, list[int]]:
    """A whole file and the place of each value in it; the format is that of ``MmapedDict``.

    The bytes used (int32) and padding to 8; then per entry the length of the key (int32), the key
    padded with 1 to 8 spaces to a multiple of 8, the value and a time stamp (doubles).
    """
    image, places = bytearray(8), []
    for key in keys:
        encoded = key.encode()
        padding = b" " * (8 - (len(encoded) + 4) % 8)
        image += struct.pack("i", len(encoded)) + encoded + padding
        places.append(len(image))
        image += struct.pack("dd", 0.0, 0.0)
    struct.pack_into("i", image, 0, len(image))
    return image, places


class Publisher:
    """Publishes totals as they change. A failure ends it with one warning.

    Args:
        file: None publishes nothing.
        published: the totals that the file shows already.
    """

    def __init__(self, file: FigureFile | None, published: Sequence[float] = ()) -> None:
        self._file = file
        self._published = published

    def put(self, totals: Sequence[float]) -> None:
        """Publish the totals, in the order of the file's figures, unless they are shown already."""
        if self._file is None or totals == self._published:
            return
        self._published = totals
        try:
            self._file.write(totals)
        except OSError as error:
            report_failure(str(self._file.path), error)
            self.close()

    def close(self) -> None:
        """Publish nothing from now on; what the file shows stays."""
        if self._file is not None:
            self._file.close()
            self._file = None


def engine_number(parallel_config: Any) -> int:
    """The value of the label ``engine``: the data-parallel rank, as in vLLM's figures."""
    # The index keeps the rank where vLLM sets the other to 0, for independent engines of a dense
    # model.
    number: int = getattr(
        parallel_config, "data_parallel_index", parallel_config.data_parallel_rank
    )
    return number


def open_file(engine: int, figures: Sequence[Figure]) -> FigureFile | None:
    """The file of an engine core, or None if nobody collects or it cannot be made."""
    folder = os.environ.get(ENV_MULTIPROC_DIR) or os.environ.get(ENV_DIR)
    if not folder:
        return None
    try:
        return FigureFile(Path(folder), engine, figures)
    except OSError as error:
        report_failure(f"engine {engine}", error)
        return None


def report_failure(where: str, error: Exception) -> None:
    """Say that figures will be missing; callers give up afterwards, so it is said once."""
    logger.warning(
        "xyserve: /metrics will lack the current xyserve_* figures of %s: %s: %s",
        where,
        type(error).__name__,
        error,
    )


class FigureCollector:
    """Reads the files of all engine cores when it is scraped. Skips what is no such file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reported: set[str] = set()

    def describe(self) -> Iterable[Any]:
        """Nothing, so that registering reads no file; without it the registry would collect."""
        return ()

    def collect(self) -> Iterable[Any]:
        """The metrics, merged over engines."""
        files = sorted(glob.glob(str(self.folder / "*.db")))
        return MultiProcessCollector.merge([f for f in files if self._is_sound(f)])

    def _is_sound(self, file: str) -> bool:
        try:
            MultiProcessCollector.merge([file])
        except Exception as error:  # from a short file, struct.error and others
            if file not in self._reported:
                self._reported.add(file)
                report_failure(file, error)
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Channel:
    folder: Path
    pid: int
    lock: int
    """Descriptor that holds the folder's lock: while it is held, nobody sweeps the folder away."""


_channel: _Channel | None = None
_has_failed = False


def open_channel(registry: CollectorRegistry = REGISTRY) -> None:
    """Have a front end collect the figures of the engine cores that it is about to start.

    Does nothing in a child that got its folder from the process that started it, nor where vLLM
    reads a folder of its own (several API servers).
    """
    global _channel, _has_failed
    if os.environ.get(ENV_MULTIPROC_DIR) or _is_open() or _has_failed:
        return
    try:
        _channel = _make_channel()
    except Exception as error:
        _has_failed = True
        os.environ.pop(ENV_DIR, None)
        report_failure("this server", error)
        return
    os.environ[ENV_DIR] = str(_channel.folder)
    registry.register(FigureCollector(_channel.folder))


def _is_open() -> bool:
    if ENV_DIR not in os.environ:
        return False
    if _channel is not None and _channel.pid == os.getpid():
        return True
    # Set by the parent, which collects. Not so where a program with an engine of its own has
    # started us in another way: then both would count in one folder.
    return multiprocessing.parent_process() is not None


def _make_channel() -> _Channel:
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    # Also runs where a child of multiprocessing ends, unlike atexit, and only in this process.
    util.Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=0)
    # Locked before it has the name that others look for.
    unlocked = folder / f"{_LOCK}.new"
    lock = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    unlocked.rename(folder / _LOCK)
    return _Channel(folder, os.getpid(), lock)


def _sweep() -> None:
    """Remove the folders of servers that were killed: their locks are free."""
    for path in glob.glob(str(Path(tempfile.gettempdir()) / f"{_PREFIX}*" / _LOCK)):
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(Path(path).parent, ignore_errors=True)
            finally:
                os.close(lock)
