"""Reading a task table: its sections, whether it fits a batch, completion, statistics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vllm_xyserve.plan import layout
from vllm_xyserve.plan.layout import Sections
from vllm_xyserve.plan.rows import IntLike
from vllm_xyserve.plan.spec import PlanSpec

Buffer = npt.NDArray[np.uint8]


def view(buffer: Buffer) -> Sections:
    """The sections without a copy. Raises ValueError for anything but a whole, aligned table."""
    size = layout.HEADER.itemsize
    if buffer.dtype != np.uint8 or buffer.ndim != 1 or len(buffer) < size:
        raise ValueError(
            f"a task table is a uint8 vector of at least {size} bytes, got {buffer.dtype} "
            f"{buffer.shape}"
        )
    if not buffer.flags.c_contiguous or buffer.ctypes.data % 4:
        raise ValueError("a task table must be contiguous and on a 4-byte boundary; copy it first")
    header = buffer[:size].view(layout.HEADER)[0]
    if header["magic"] != layout.MAGIC or header["version"] != layout.VERSION:
        raise ValueError(
            f"no task table of version {layout.VERSION}: magic {int(header['magic']):#x}, version "
            f"{int(header['version'])}"
        )
    if header["num_bytes"] != len(buffer):
        raise ValueError(
            f"the task table has {int(header['num_bytes'])} bytes, the buffer {len(buffer)}"
        )
    return layout.sections(buffer)


def check(buffer: Buffer, spec: PlanSpec, query_lens: IntLike, key_lens: IntLike) -> str | None:
    """Why the table cannot be used for this batch in this worker, as one word, or None.

    query_lens, key_lens: per plan row, as the batch has them. The words label a counter: `rows`,
    `query_lens`, `key_lens`, `cores`, `window`, `causal`, `heads`, `tiles`, `invariant`,
    `version`. A context shorter than planned is `key_lens`, too: a caller who knows bounds alone
    passes bounds.
    """
    try:
        table = view(buffer)
    except ValueError:
        return "version"
    header, geometry, device = table.header, spec.geometry, spec.device
    tiles = tuple(int(size) for size in header["tile_rows"] if size)
    flags = int(header["flags"])
    agreements = {
        "rows": int(header["num_segments"]) == len(query_lens) == len(key_lens),
        "cores": int(header["num_cores"]) == device.num_cores,
        "window": int(header["window"]) == geometry.window,
        "causal": bool(flags & layout.FLAG_CAUSAL) == geometry.causal,
        "invariant": bool(flags & layout.FLAG_INVARIANT) == spec.policy.invariant,
        "heads": tuple(int(header[name]) for name in ("num_kv_heads", "group_size", "head_dim"))
        == (geometry.num_kv_heads, geometry.group_size, geometry.head_dim),
        "tiles": tiles == device.tile_rows and header["split_quantum"] == device.split_quantum,
    }
    for word, agrees in agreements.items():
        if not agrees:
            return word
    segments = table.segments
    if not np.array_equal(segments["query_len"], query_lens):
        return "query_lens"
    return None if np.array_equal(segments["key_len"], key_lens) else "key_lens"


def complete(buffer: Buffer, batch_rows: IntLike, query_start_loc: IntLike) -> None:
    """Fill in what only the worker knows, in place.

    batch_rows: per plan row, its row in the batch; a permutation of a subset of the batch.
    query_start_loc: vLLM's, [batch size + 1]. Raises ValueError if they do not fit the table.
    """
    segments = view(buffer).segments
    rows = np.asarray(batch_rows, dtype=np.int64)
    starts = np.asarray(query_start_loc, dtype=np.int64)
    if rows.shape != segments.shape:
        raise ValueError(f"{len(segments)} plan rows need as many batch rows, got {rows.shape}")
    if rows.size and not 0 <= rows.min() <= rows.max() < len(starts) - 1:
        raise ValueError(
            f"batch rows must be in 0..{len(starts) - 2}, got {rows.min()}..{rows.max()}"
        )
    lens = starts[rows + 1] - starts[rows]
    if not np.array_equal(lens, segments["query_len"]):
        raise ValueError(
            f"query_start_loc gives the plan rows {lens.tolist()} queries, planned are "
            f"{segments['query_len'].tolist()}"
        )
    segments["batch_row"] = rows
    segments["query_start"] = starts[rows]


@dataclass(frozen=True, slots=True)
class PlanStatistics:
    """What is published about a table.

    num_prefill_rows, num_decode_rows, num_verify_rows: by kind. num_tiles: query tiles times KV
    heads. num_tasks, num_merges: without those that fill up. num_split_tasks: that write partial
    results. balance: predicted work of the least over the most loaded core, 1.0 if there is none.
    makespan_over_mean: of the most loaded core over the mean, 1.0 is even. makespan_ns: predicted
    work of the most loaded core, one layer, merges apart. padding_rows_avoided:
    rows, query x query head, that would be read and written if each tile were padded to its class.
    """

    num_prefill_rows: int
    num_decode_rows: int
    num_verify_rows: int
    num_tiles: int
    num_tasks: int
    num_split_tasks: int
    num_merges: int
    balance: float
    makespan_over_mean: float
    makespan_ns: float
    padding_rows_avoided: int


def task_costs(table: Sections) -> npt.NDArray[np.int64]:
    """Predicted cost of each task in picoseconds, 0 for those that fill up. int64 [num_tasks]."""
    header, tasks = table.header, table.tasks
    quantum, group = int(header["split_quantum"]), int(header["group_size"])
    size = header["tile_rows"].astype(np.int64)[tasks["tile_class"]]
    rows = tasks["num_queries"].astype(np.int64) * group
    begin, end = tasks["key_begin"].astype(np.int64), tasks["key_end"].astype(np.int64)
    quanta = np.where(end > begin, -(-end // quantum) - begin // quantum, 0)
    cost_rows = -(-rows // size) * size
    per_key = int(header["cost_key_ps"]) + cost_rows * int(header["cost_pair_ps"])
    heads = tasks["num_heads"].astype(np.int64)
    cost = int(header["cost_task_ps"]) + heads * quanta * quantum * per_key
    cost += np.where(tasks["partial"] >= 0, rows * heads * int(header["cost_partial_ps"]), 0)
    return np.where(tasks["num_queries"] > 0, cost, 0)


def core_loads(table: Sections) -> npt.NDArray[np.int64]:
    """Predicted work of each core in picoseconds, merges apart. int64 [num_cores]."""
    running = np.concatenate([[0], np.cumsum(task_costs(table))])
    return np.diff(running[table.core_begin]).astype(np.int64)


def statistics(buffer: Buffer) -> PlanStatistics:
    """Counts and predicted balance, from the table alone."""
    table = view(buffer)
    header, tasks = table.header, table.tasks
    kinds = np.bincount(table.segments["kind"], minlength=3)
    loads = core_loads(table)
    whole = tasks[(tasks["split"] == 0) & (tasks["num_queries"] > 0)]
    heads = whole["num_heads"].astype(np.int64)
    rows = whole["num_queries"].astype(np.int64) * int(header["group_size"])
    size = header["tile_rows"].astype(np.int64)[whole["tile_class"]]
    padding = (-(-rows // size) * size - rows) * heads
    most = int(loads.max())
    return PlanStatistics(
        num_prefill_rows=int(kinds[layout.PREFILL]),
        num_decode_rows=int(kinds[layout.DECODE]),
        num_verify_rows=int(kinds[layout.VERIFY]),
        num_tiles=int(heads.sum()),
        num_tasks=int(header["num_real_tasks"]),
        num_split_tasks=int((tasks["num_splits"] > 1).sum()),
        num_merges=int(header["num_real_merges"]),
        balance=int(loads.min()) / most if most else 1.0,
        makespan_over_mean=most * len(loads) / int(loads.sum()) if most else 1.0,
        makespan_ns=most / 1e3,
        padding_rows_avoided=int(padding.sum()),
    )
