"""The planner in NumPy: the tests' reference, and what runs where the native helper is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from vllm_xyserve.plan import layout
from vllm_xyserve.plan.deal import deal, loads_of, order_by_cost
from vllm_xyserve.plan.fit import fit
from vllm_xyserve.plan.rows import Rows
from vllm_xyserve.plan.spec import PlanSpec
from vllm_xyserve.plan.tiles import Ints, Pieces, Tiles, cut_rows, cut_tiles, total_cost

# Passes of `fit`; each knows better than the one before what its cuts add.
FIT_ROUNDS: Final = 3

Buffer = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Dealt:
    """Pieces in the order of their cores' lists. order: index of the piece; core: who takes it."""

    order: Ints
    core: Ints
    loads: Ints

    @property
    def makespan(self) -> int:
        return int(self.loads.max())


@dataclass(frozen=True, slots=True)
class Merges:
    """One element per piece that is split, at its first split. All int64 [num_merges]."""

    piece: Ints
    cost: Ints


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way of cutting and dealing, judged by the makespan of its tasks and then its merges."""

    pieces: Pieces
    tasks: Dealt
    merges: Merges
    dealt_merges: Dealt

    @property
    def makespan(self) -> int:
        return self.tasks.makespan + self.dealt_merges.makespan


def _deal(spec: PlanSpec, costs: Ints) -> Dealt:
    order = order_by_cost(costs)
    sorted_costs = costs[order]
    core = deal(sorted_costs, spec.device.num_cores, spec.policy.dealing)
    return Dealt(order, core, loads_of(sorted_costs, core, spec.device.num_cores))


def _merges(spec: PlanSpec, tiles: Tiles, pieces: Pieces) -> Merges:
    piece = np.flatnonzero((pieces.num_splits > 1) & (pieces.split == 0)).astype(np.int64)
    queries = tiles.num_queries[pieces.tile[piece]]
    rows = queries * spec.geometry.group_size * pieces.num_heads[piece]
    cost = spec.weights.task + rows * pieces.num_splits[piece] * spec.weights.partial
    return Merges(piece, cost)


def balance_is_good(loads: Ints) -> bool:
    """The least loaded core has at least 98 % of the most loaded one's work."""
    return 100 * int(loads.min()) >= 98 * int(loads.max())


def plan_reference(spec: PlanSpec, rows: Rows, step: int = 0) -> Buffer:
    """The table of one step; the same bytes as the native planner writes.

    Several cuts are tried in the order of `_candidates` until the cores are even. The one with the
    smallest makespan stays, the earlier of equals.
    """
    tiles = cut_rows(spec, rows.query_lens, rows.key_lens)
    best: Candidate | None = None
    for candidate in _candidates(spec, tiles):
        if best is None or candidate.makespan < best.makespan:
            best = candidate
        if balance_is_good(candidate.tasks.loads):
            break
    assert best is not None
    return _pack(spec, rows, tiles, best, step)


def _candidates(spec: PlanSpec, tiles: Tiles) -> Iterator[Candidate]:
    """List scheduling of tiles that are cut to the mean load of a core, to half of it and so on;
    with `fit` no finer than the mean, then cuts at the cores' borders.
    """
    num_cores = spec.device.num_cores
    total = total_cost(spec, tiles)
    mean = -(-total // num_cores)
    fits = spec.policy.dealing == "fit" and not spec.policy.invariant
    levels = min(spec.policy.levels, 1) if fits else spec.policy.levels
    for limit in [max(1, mean >> level) for level in range(levels)] or [0]:
        pieces = cut_tiles(spec, tiles, limit)
        yield _candidate(spec, tiles, pieces, _deal(spec, pieces.cost))
    cut_cost = spec.weights.task
    for _ in range(FIT_ROUNDS if fits and levels else 0):
        pieces, core = fit(spec, tiles, cut_cost)
        order = np.arange(len(core), dtype=np.int64)
        loads = loads_of(pieces.cost, core, num_cores)
        yield _candidate(spec, tiles, pieces, Dealt(order, core, loads))
        cut_cost = (int(loads.sum()) - total) // max(num_cores - 1, 1)


def _candidate(spec: PlanSpec, tiles: Tiles, pieces: Pieces, tasks: Dealt) -> Candidate:
    merges = _merges(spec, tiles, pieces)
    return Candidate(pieces, tasks, merges, _deal(spec, merges.cost))


def _slices(core: Ints, num_cores: int, per_line: int) -> tuple[Ints, Ints]:
    """First entry of each core's slice, [num_cores + 1], and the place of every dealt piece.

    Slices are rounded up to whole 64-byte lines.
    """
    counts = np.bincount(core, minlength=num_cores).astype(np.int64)
    begin = np.zeros(num_cores + 1, dtype=np.int64)
    begin[1:] = np.cumsum(-(-counts // per_line) * per_line)
    by_core = np.argsort(core, kind="stable")
    place = np.empty(len(core), dtype=np.int64)
    place[by_core] = np.arange(len(core)) - np.repeat(np.cumsum(counts) - counts, counts)
    return begin, begin[core] + place


def _pack(spec: PlanSpec, rows: Rows, tiles: Tiles, chosen: Candidate, step: int) -> Buffer:
    pieces, dealt = chosen.pieces, chosen.tasks
    merges, dealt_merges = chosen.merges, chosen.dealt_merges
    num_cores = spec.device.num_cores
    core_begin, task_place = _slices(dealt.core, num_cores, layout.ALIGN // layout.TASK.itemsize)
    merge_begin, merge_place = _slices(
        dealt_merges.core, num_cores, layout.ALIGN // layout.MERGE.itemsize
    )
    header = np.zeros((), dtype=layout.HEADER)
    num_tasks, num_merges = int(core_begin[-1]), int(merge_begin[-1])
    offsets = layout.section_offsets(num_cores, len(rows), num_tasks, num_merges)
    for name, value in zip(layout.OFFSET_FIELDS, offsets, strict=False):
        header[name] = value
    _fill_header(header, spec, rows, pieces, step)
    header["num_bytes"] = offsets[-1]
    header["num_tasks"], header["num_merges"] = num_tasks, num_merges
    header["num_real_merges"] = len(merges.piece)
    buffer = layout.aligned_buffer(offsets[-1])
    buffer[:] = 0
    buffer[: layout.HEADER.itemsize] = np.frombuffer(header.tobytes(), dtype=np.uint8)
    sections = layout.sections(buffer)
    sections.core_begin[:] = core_begin
    sections.merge_begin[:] = merge_begin
    _fill_segments(sections.segments, spec, rows)
    _fill_tasks(sections.tasks, tiles, pieces, rows, dealt.order, task_place)
    split_pieces = merges.piece[dealt_merges.order]
    _fill_merges(sections.merges, tiles, pieces, split_pieces, merge_place)
    return buffer


def _fill_header(
    header: npt.NDArray[np.void], spec: PlanSpec, rows: Rows, pieces: Pieces, step: int
) -> None:
    device, geometry, weights = spec.device, spec.geometry, spec.weights
    invariant = layout.FLAG_INVARIANT if spec.policy.invariant else 0
    values = {
        "magic": layout.MAGIC,
        "version": layout.VERSION,
        "num_cores": device.num_cores,
        "form": rows.form,
        "flags": (layout.FLAG_CAUSAL if geometry.causal else 0) | invariant,
        "num_kv_heads": geometry.num_kv_heads,
        "group_size": geometry.group_size,
        "head_dim": geometry.head_dim,
        "window": geometry.window,
        "split_quantum": device.split_quantum,
        "dealing": layout.STRATEGIES.index(spec.policy.dealing),
        "step": step,
        "num_segments": len(rows),
        "num_real_tasks": len(pieces.tile),
        "max_splits": pieces.num_splits.max(initial=0),
        "cost_task_ps": weights.task,
        "cost_key_ps": weights.key,
        "cost_pair_ps": weights.pair,
        "cost_partial_ps": weights.partial,
        "num_tile_classes": len(device.tile_rows),
        "num_query_tokens": int(rows.query_lens.sum()),
        "split_span": device.split_span if spec.policy.invariant else 0,
        "num_partial_rows": pieces.num_partial_rows,
    }
    for name, value in values.items():
        header[name] = value
    header["tile_rows"][: len(device.tile_rows)] = device.tile_rows


def _fill_segments(segments: npt.NDArray[np.void], spec: PlanSpec, rows: Rows) -> None:
    segments["plan_row"] = np.arange(len(rows))
    segments["batch_row"] = -1
    segments["query_start"] = -1
    segments["query_len"] = rows.query_lens
    segments["key_len"] = rows.key_lens
    segments["mask_offset"] = rows.mask_offsets
    segments["window"] = spec.geometry.window
    segments["kind"] = rows.kinds


def _fill_tasks(
    tasks: npt.NDArray[np.void],
    tiles: Tiles,
    pieces: Pieces,
    rows: Rows,
    order: Ints,
    place: Ints,
) -> None:
    tile = pieces.tile[order]
    filled = np.zeros(len(order), dtype=layout.TASK)
    filled["segment"] = tiles.segment[tile]
    filled["query_begin"] = tiles.query_begin[tile]
    filled["key_begin"] = pieces.key_begin[order]
    filled["key_end"] = pieces.key_end[order]
    filled["partial"] = pieces.partial[order]
    filled["num_queries"] = tiles.num_queries[tile]
    filled["head_begin"] = pieces.head_begin[order]
    filled["num_heads"] = pieces.num_heads[order]
    filled["split"] = pieces.split[order]
    filled["num_splits"] = pieces.num_splits[order]
    filled["tile_class"] = tiles.tile_class[tile]
    masked = rows.mask_offsets[tiles.segment[tile]] >= 0
    filled["flags"] = np.where(masked, layout.TASK_TREE_MASK, 0)
    tasks[place] = filled


def _fill_merges(
    merges: npt.NDArray[np.void], tiles: Tiles, pieces: Pieces, chosen: Ints, place: Ints
) -> None:
    tile = pieces.tile[chosen]
    filled = np.zeros(len(chosen), dtype=layout.MERGE)
    filled["segment"] = tiles.segment[tile]
    filled["query_begin"] = tiles.query_begin[tile]
    filled["first_partial"] = pieces.partial[chosen]
    filled["num_queries"] = tiles.num_queries[tile]
    filled["head_begin"] = pieces.head_begin[chosen]
    filled["num_heads"] = pieces.num_heads[chosen]
    filled["num_splits"] = pieces.num_splits[chosen]
    merges[place] = filled
