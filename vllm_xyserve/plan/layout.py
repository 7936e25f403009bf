"""NumPy's view of the task table: the mirror of csrc/include/xyserve/task_table.h.

The header explains every field; a test compares sizes and offsets with the compiled ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

MAGIC: Final = 0x54545958
VERSION: Final = 1
ALIGN: Final = 64
MAX_TILE_CLASSES: Final = 8

FLAG_CAUSAL: Final = 1
FLAG_INVARIANT: Final = 2

FORM_MIXED: Final = 0
FORM_DECODE: Final = 1

PREFILL: Final = 0
DECODE: Final = 1
VERIFY: Final = 2

TASK_TREE_MASK: Final = 1

# In the order of `enum Dealing`.
STRATEGIES: Final = ("plain", "snake", "rounds", "lpt", "fit")

_HEADER_FIELDS = (
    "magic",
    "version",
    "num_bytes",
    "num_cores",
    "form",
    "flags",
    "num_kv_heads",
    "group_size",
    "head_dim",
    "window",
    "split_quantum",
    "dealing",
    "step",
    "num_segments",
    "num_tasks",
    "num_merges",
    "num_real_tasks",
    "num_real_merges",
    "num_partial_rows",
    "max_splits",
    "core_begin_offset",
    "merge_begin_offset",
    "segments_offset",
    "tasks_offset",
    "merges_offset",
    "cost_task_ps",
    "cost_key_ps",
    "cost_pair_ps",
    "cost_partial_ps",
    "num_tile_classes",
    "num_query_tokens",
    "split_span",
)

HEADER: Final = np.dtype(
    [(name, "<i4") for name in _HEADER_FIELDS]
    + [("tile_rows", "<i4", (MAX_TILE_CLASSES,))]
    + [("reserved", "<i4", (64 - len(_HEADER_FIELDS) - MAX_TILE_CLASSES,))]
)
SEGMENT: Final = np.dtype(
    [
        ("plan_row", "<i4"),
        ("batch_row", "<i4"),
        ("query_start", "<i4"),
        ("query_len", "<i4"),
        ("key_len", "<i4"),
        ("mask_offset", "<i4"),
        ("window", "<i4"),
        ("kind", "<i2"),
        ("flags", "<i2"),
    ]
)
TASK: Final = np.dtype(
    [
        ("segment", "<i4"),
        ("query_begin", "<i4"),
        ("key_begin", "<i4"),
        ("key_end", "<i4"),
        ("partial", "<i4"),
        ("num_queries", "<i2"),
        ("head_begin", "<i2"),
        ("num_heads", "<i2"),
        ("split", "<i2"),
        ("num_splits", "<i2"),
        ("tile_class", "i1"),
        ("flags", "i1"),
    ]
)
MERGE: Final = np.dtype(
    [
        ("segment", "<i4"),
        ("query_begin", "<i4"),
        ("first_partial", "<i4"),
        ("num_queries", "<i2"),
        ("head_begin", "<i2"),
        ("num_heads", "<i2"),
        ("num_splits", "<i2"),
        ("reserved", "<i4", (3,)),
    ]
)

OFFSET_FIELDS: Final = (
    "core_begin_offset",
    "merge_begin_offset",
    "segments_offset",
    "tasks_offset",
    "merges_offset",
)


@dataclass(frozen=True, slots=True)
class Sections:
    """Views into one buffer; writing to them changes it.

    header: HEADER, 0-d. core_begin, merge_begin: int32 [num_cores + 1]. segments: SEGMENT
    [num_rows]. tasks, merges: TASK and MERGE, with the entries that fill slices up.
    """

    header: npt.NDArray[np.void]
    core_begin: npt.NDArray[np.int32]
    merge_begin: npt.NDArray[np.int32]
    segments: npt.NDArray[np.void]
    tasks: npt.NDArray[np.void]
    merges: npt.NDArray[np.void]


def section_offsets(
    num_cores: int, num_segments: int, num_tasks: int, num_merges: int
) -> list[int]:
    """Offsets in bytes in the order of OFFSET_FIELDS, and the size of the whole table."""
    sizes = (
        HEADER.itemsize,
        4 * (num_cores + 1),
        4 * (num_cores + 1),
        SEGMENT.itemsize * num_segments,
        TASK.itemsize * num_tasks,
        MERGE.itemsize * num_merges,
    )
    offsets, at = [], 0
    for size in sizes:
        at += -(-size // ALIGN) * ALIGN
        offsets.append(at)
    return offsets


def sections(buffer: npt.NDArray[np.uint8]) -> Sections:
    """The sections of a table, without a copy. Trusts the header: `table.view` checks it."""
    header = buffer[: HEADER.itemsize].view(HEADER)[0:1].reshape(())
    num_cores = int(header["num_cores"])

    def part(name: str, dtype: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
        start = int(header[name])
        return buffer[start : start + np.dtype(dtype).itemsize * count].view(dtype)

    return Sections(
        header=header,
        core_begin=part("core_begin_offset", "<i4", num_cores + 1),
        merge_begin=part("merge_begin_offset", "<i4", num_cores + 1),
        segments=part("segments_offset", SEGMENT, int(header["num_segments"])),
        tasks=part("tasks_offset", TASK, int(header["num_tasks"])),
        merges=part("merges_offset", MERGE, int(header["num_merges"])),
    )


def aligned_buffer(num_bytes: int) -> npt.NDArray[np.uint8]:
    """`num_bytes` of uninitialised uint8 whose first byte lies on a 64-byte boundary."""
    raw = np.empty(num_bytes + ALIGN - 1, dtype=np.uint8)
    shift = -raw.ctypes.data % ALIGN
    return raw[shift : shift + num_bytes]
