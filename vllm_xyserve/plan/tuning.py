"""Measured choices for linear layers: reads the files that `vllm-xyserve tune` writes.

A file holds what was measured on one device: per (N, K, dtype, instruction set, threads) and range
of M, how a call is best cut and ordered. Shipped files are in ``plan/tuned``; the user's own are in
``$XDG_DATA_HOME/vllm-xyserve/tuned`` (default ``~/.local/share``) and win over them. Where no entry
fits, the kernel's rule decides. No choice changes a bit of a result.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ENV_TUNED: Final = "XYSERVE_TUNED"
FORMAT: Final = 1
SHIPPED: Final = Path(__file__).with_name("tuned")
DTYPES: Final = ("f32", "bf16", "f16")
# Ranges of M that share a choice. Above the last one the rule decides.
BUCKETS: Final = (
    (1, 1),
    (2, 4),
    (5, 8),
    (9, 16),
    (17, 32),
    (33, 64),
    (65, 128),
    (129, 256),
    (257, 512),
    (513, 2048),
)
_MAX_WORD: Final = 2**31 - 1


class TunedError(ValueError):
    """A file of tuned data that cannot be used; the message names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a call is cut and ordered; 0 leaves a choice to the rule.

    tile_rows: most rows of a register tile. block_steps: steps of K per cache block (a step is two
    values in bf16, else one). threads: how many of the threads work. row_parts: blocks of rows that
    are dealt to threads beside panels of 32 columns. pass_rows, pass_panels: rows and panels that
    one pass covers; within a block of panels come the blocks of rows one after the other.
    split_k: 1 never deals segments of K to threads, 2 wherever there are segments.
    """

    tile_rows: int = 0
    block_steps: int = 0
    threads: int = 0
    row_parts: int = 0
    pass_rows: int = 0
    pass_panels: int = 0
    split_k: int = 0

    def __str__(self) -> str:
        chosen = (f"{name}={value}" for name, value in dataclasses.asdict(self).items() if value)
        return " ".join(chosen) or "rule"


RULE: Final = Tiling()
_TILING_FIELDS: Final = tuple(field.name for field in dataclasses.fields(Tiling))


@dataclass(frozen=True, slots=True)
class TunedEntry:
    """One measured choice, for M from ``m_first`` to ``m_last``.

    isa: instruction set of the kernel. threads: of the process. measured_us, rule_us: time of a
    call at M = ``measured_m`` with this choice and with the rule.
    """

    n: int
    k: int
    dtype: str
    isa: str
    threads: int
    m_first: int
    m_last: int
    tiling: Tiling
    measured_m: int
    measured_us: float
    rule_us: float

    @property
    def key(self) -> tuple[int, int, str, str, int]:
        """What the entry is looked up by, besides M."""
        return self.n, self.k, self.dtype, self.isa, self.threads


@dataclass(frozen=True, slots=True)
class TunedFile:
    """What was measured on one device. date: ISO, of the last measurement."""

    device: str
    date: str
    entries: tuple[TunedEntry, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Entries for a device from all files; problems: a message per file that cannot be used."""

    entries: tuple[TunedEntry, ...]
    problems: tuple[str, ...]


def user_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the user's own files are; it need not exist."""
    base = environ.get("XDG_DATA_HOME") or ""
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "share"
    return root / "vllm-xyserve" / "tuned"


def file_name(device: str) -> str:
    """Name of a device's file."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") + ".json"


def sources(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Files to read, those that win last. ``XYSERVE_TUNED``: 0 is none, a path is that one only."""
    wanted = environ.get(ENV_TUNED, "")
    if wanted == "0":
        return []
    places = [Path(wanted).expanduser()] if wanted else [SHIPPED, user_folder(environ)]
    found: list[Path] = []
    for place in places:
        found += sorted(place.glob("*.json")) if place.is_dir() else [place] if wanted else []
    return found


def load(device: str, environ: Mapping[str, str] = os.environ) -> Loaded:
    """Entries for ``device``. A file that cannot be used is a problem, never an exception."""
    kept: list[TunedEntry] = []
    problems = []
    for path in sources(environ):
        try:
            file = read(path)
        except TunedError as error:
            problems.append(str(error))
            continue
        if file.device == device:
            kept = merge(kept, file.entries)
    return Loaded(tuple(kept), tuple(problems))


def merge(old: Iterable[TunedEntry], new: Iterable[TunedEntry]) -> list[TunedEntry]:
    """All new entries, and the old ones that none of them overlaps."""
    new = list(new)
    by_key: dict[tuple[int, int, str, str, int], list[TunedEntry]] = {}
    for entry in new:
        by_key.setdefault(entry.key, []).append(entry)
    kept = [e for e in old if not any(_overlap(e, other) for other in by_key.get(e.key, ()))]
    return kept + new


def _overlap(a: TunedEntry, b: TunedEntry) -> bool:
    return a.m_first <= b.m_last and b.m_first <= a.m_last


def read(path: Path) -> TunedFile:
    """Read a file; TunedError says what is wrong with it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TunedError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # not JSON, not UTF-8
        raise TunedError(f"{path}: is no JSON: {error}") from error
    try:
        return _parse(data)
    except TunedError as error:
        raise TunedError(f"{path}: {error}; remove it, or run `vllm-xyserve tune` again") from error


def write(path: Path, file: TunedFile) -> None:
    """Write a file as a whole or not at all; its folder is made. Raises OSError."""
    rows = []
    for entry in file.entries:
        row = dataclasses.asdict(entry)
        row["tiling"] = {name: value for name, value in row["tiling"].items() if value}
        rows.append(json.dumps(row))
    head = json.dumps({"format": FORMAT, "device": file.device, "date": file.date}, indent=1)
    text = head.removesuffix("\n}") + ',\n "entries": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _parse(data: Any) -> TunedFile:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise TunedError(f"requires an object with format {FORMAT}, found {found!r}")
    rows = data.get("entries")
    if not isinstance(rows, list):
        raise TunedError("requires a list of entries")
    for name in ("device", "date"):
        if not isinstance(data.get(name), str):
            raise TunedError(f"requires a text {name!r}, found {data.get(name)!r}")
    entries: list[TunedEntry] = []
    for i, row in enumerate(rows):
        try:
            entries.append(_parse_entry(row))
        except TunedError as error:
            raise TunedError(f"entry {i}: {error}") from error
    _check_ranges(entries)
    return TunedFile(data["device"], data["date"], tuple(entries))


def _parse_entry(row: Any) -> TunedEntry:
    names = {field.name for field in dataclasses.fields(TunedEntry)}
    if not isinstance(row, dict) or set(row) != names:
        found = sorted(row) if isinstance(row, dict) else row
        raise TunedError(f"requires the fields {', '.join(sorted(names))}; found {found}")
    tiling = row["tiling"]
    if not isinstance(tiling, dict) or not set(tiling) <= set(_TILING_FIELDS):
        raise TunedError(f"tiling may have {', '.join(_TILING_FIELDS)}; found {tiling!r}")
    for name in ("n", "k", "threads", "m_first", "m_last", "measured_m"):
        _require_int(name, row[name], 1)
    for name, value in tiling.items():
        _require_int(name, value, 0)
    for name in ("measured_us", "rule_us"):
        if not isinstance(row[name], int | float) or not 0 < row[name] < float("inf"):
            raise TunedError(f"{name} must be a time above 0, found {row[name]!r}")
    if row["dtype"] not in DTYPES or not isinstance(row["isa"], str):
        raise TunedError(f"requires dtype in {DTYPES} and a text isa, found {row!r}")
    if row["m_first"] > row["m_last"]:
        raise TunedError(f"m_first {row['m_first']} is above m_last {row['m_last']}")
    return TunedEntry(**{**row, "tiling": Tiling(**tiling)})


def _require_int(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MAX_WORD:
        raise TunedError(f"{name} must be a whole number from {least} on, found {value!r}")


def _check_ranges(entries: list[TunedEntry]) -> None:
    last: TunedEntry | None = None
    for entry in sorted(entries, key=lambda e: (*e.key, e.m_first)):
        if last is not None and last.key == entry.key and _overlap(last, entry):
            raise TunedError(
                f"two entries for {entry.key} overlap at M = {entry.m_first} to {last.m_last}"
            )
        last = entry
