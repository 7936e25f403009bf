"""Gives a worker's linear layers what was measured for this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch

from vllm_xyserve.log import get_logger
from vllm_xyserve.ops import linear_tuned, native, registry
from vllm_xyserve.ops.isa import ISAS, device_name
from vllm_xyserve.plan import tuning

logger = get_logger("linear")

_entries: tuple[tuning.TunedEntry, ...] = ()
_said: set[tuple[int, int, str, str, int]] = set()


def install() -> None:
    """Load the entries for this machine into the process; once per worker, before layers are built.

    A file that cannot be used is named in a warning, and the rule serves instead.
    """
    global _entries
    if not native.load().loaded:
        return
    loaded = tuning.load(device_name())
    for problem in loaded.problems:
        logger.warning("xyserve: tuned data is not used: %s", problem)
    _entries = loaded.entries
    count = set_table(_entries)
    if count:
        logger.info("xyserve: %d tuned entries for linear layers on this machine", count)


def set_table(entries: Iterable[tuning.TunedEntry]) -> int:
    """Replace the kernels' table, without entries of an instruction set that we do not know.

    Returns how many entries it has.
    """
    rows = [_words(entry) for entry in entries if entry.isa in ISAS]
    linear_tuned.set_tuned(rows)
    return len(rows)


def _words(entry: tuning.TunedEntry) -> list[int]:
    key = [linear_tuned.DTYPES.index(entry.dtype), ISAS.index(entry.isa)]
    key += [entry.threads, entry.n, entry.k, entry.m_first, entry.m_last]
    return [*key, *dataclasses.astuple(entry.tiling)]


def note(n: int, k: int, dtype: torch.dtype) -> None:
    """Say once per key, at level debug, for which row counts of a layer the rule decides."""
    kernel = registry.chosen("linear", dtype)
    key = (n, k, kernel.dtype, kernel.isa, torch.get_num_threads())
    if key in _said:
        return
    _said.add(key)
    having = {(entry.m_first, entry.m_last) for entry in _entries if entry.key == key}
    missing = [f"{first}..{last}" for first, last in tuning.BUCKETS if (first, last) not in having]
    if missing:
        logger.debug(
            "xyserve: no tuned entry for N=%d K=%d %s %s on %d threads, the rule decides at M = %s",
            *key,
            ", ".join(missing),
        )
