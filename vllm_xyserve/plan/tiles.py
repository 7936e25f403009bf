"""Decomposition in NumPy: rows into query tiles, tiles into pieces that a core can take.

The reference of csrc/plan/planner.cc; both compute in int64 and agree to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vllm_xyserve.plan.spec import MAX_INT16, PlanSpec

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tiles:
    """One element per query tile, for all KV heads. All int64 [num_tiles].

    unit_ps: cost of the whole key range for one KV head, without the fixed part. cost_rows: rows
    that the tile computes, padding included.
    """

    segment: Ints
    query_begin: Ints
    num_queries: Ints
    tile_class: Ints
    cost_rows: Ints
    key_begin: Ints
    key_end: Ints
    num_quanta: Ints
    unit_ps: Ints


@dataclass(frozen=True, slots=True)
class Pieces:
    """One element per task to be, in the order tile, head range, split. All int64 [num_pieces].

    partial: first row in the partial buffer, -1 if the tile is not split. num_partial_rows: of all.
    """

    tile: Ints
    head_begin: Ints
    num_heads: Ints
    split: Ints
    num_splits: Ints
    key_begin: Ints
    key_end: Ints
    cost: Ints
    partial: Ints
    num_partial_rows: int


def ranges(counts: Ints) -> tuple[Ints, Ints]:
    """For counts [2, 0, 3]: owners [0, 0, 2, 2, 2] and positions [0, 1, 0, 1, 2]."""
    owner = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    starts = np.cumsum(counts) - counts
    return owner, np.arange(len(owner), dtype=np.int64) - starts[owner]


def cut_rows(spec: PlanSpec, query_lens: Ints, key_lens: Ints) -> Tiles:
    """Tiles of the largest size per row; the last one takes the smallest class that holds it.

    The key range of a tile ends at its last query's own key and begins, with a window, at the first
    key that its first query sees.
    """
    group = spec.geometry.group_size
    sizes = np.asarray(spec.device.tile_rows, dtype=np.int64)
    max_queries = max(1, int(sizes[-1]) // group)
    segment, index = ranges(-(-query_lens // max_queries))
    query_begin = index * max_queries
    num_queries = np.minimum(query_lens[segment] - query_begin, max_queries)
    rows = num_queries * group
    tile_class = np.minimum(np.searchsorted(sizes, rows), len(sizes) - 1).astype(np.int64)
    size = sizes[tile_class]
    cost_rows = -(-rows // size) * size
    history = (key_lens - query_lens)[segment]
    key_begin, key_end = key_range(
        spec, history + query_begin, history + query_begin + num_queries, key_lens[segment]
    )
    quantum = spec.device.split_quantum
    num_quanta = np.where(key_end > key_begin, -(-key_end // quantum) - key_begin // quantum, 0)
    per_key = spec.weights.key + cost_rows * spec.weights.pair
    return Tiles(
        segment=segment,
        query_begin=query_begin,
        num_queries=num_queries,
        tile_class=tile_class,
        cost_rows=cost_rows,
        key_begin=key_begin,
        key_end=key_end,
        num_quanta=num_quanta,
        unit_ps=num_quanta * quantum * per_key,
    )


def key_range(spec: PlanSpec, first: Ints, last: Ints, key_lens: Ints) -> tuple[Ints, Ints]:
    """Keys that queries at positions [first, last) of their contexts need together."""
    geometry = spec.geometry
    if geometry.causal:
        end = np.clip(last, 0, key_lens)
    elif geometry.window:
        end = np.clip(last + geometry.window - 1, 0, key_lens)
    else:
        end = key_lens
    begin = np.zeros_like(end)
    if geometry.window:
        begin = np.clip(first - geometry.window + 1, 0, end)
    return begin, end


def total_cost(spec: PlanSpec, tiles: Tiles) -> int:
    """Cost of the step with one task per tile, in picoseconds."""
    per_tile = spec.weights.task + spec.geometry.num_kv_heads * tiles.unit_ps
    return int(per_tile.sum())


def cut_tiles(spec: PlanSpec, tiles: Tiles, limit: int) -> Pieces:
    """Cut every tile that costs more than `limit`: heads first, then, within one head, keys.

    limit 0: one piece per tile and head, keys whole. Splits are even in quanta of the device, or
    lie at multiples of its split_span if the policy is invariant.
    """
    num_heads = spec.geometry.num_kv_heads
    room = max(limit - spec.weights.task, 1)
    unit = np.maximum(tiles.unit_ps, 1)
    heads = np.clip(room // unit, 1, num_heads) if limit else np.ones_like(unit)
    parts = -(-num_heads // heads)
    splits = _num_splits(spec, tiles, room if limit else 0, unit)
    part_tile, part = ranges(parts)
    base, extra = num_heads // parts[part_tile], num_heads % parts[part_tile]
    owner, split = ranges(splits[part_tile])
    tile = part_tile[owner]
    begin_q, end_q = _split_quanta(spec, tiles, splits, tile, split)
    quantum = spec.device.split_quantum
    piece_heads = (base + (part < extra))[owner]
    rows = tiles.num_queries[tile] * spec.geometry.group_size * piece_heads
    is_split = splits[tile] > 1
    partial = np.cumsum(rows * is_split) - rows * is_split
    per_key = spec.weights.key + tiles.cost_rows[tile] * spec.weights.pair
    cost = spec.weights.task + piece_heads * (end_q - begin_q) * quantum * per_key
    return Pieces(
        tile=tile,
        head_begin=(part * base + np.minimum(part, extra))[owner],
        num_heads=piece_heads,
        split=split,
        num_splits=splits[tile],
        key_begin=np.maximum(tiles.key_begin[tile], begin_q * quantum),
        key_end=np.minimum(tiles.key_end[tile], end_q * quantum),
        cost=cost + np.where(is_split, rows * spec.weights.partial, 0),
        partial=np.where(is_split, partial, -1),
        num_partial_rows=int((rows * is_split).sum()),
    )


def _num_splits(spec: PlanSpec, tiles: Tiles, room: int, unit: Ints) -> Ints:
    """Key splits per tile; room 0: none."""
    device = spec.device
    if spec.policy.invariant:
        last = np.maximum(tiles.key_end - 1, 0) // device.split_span
        splits: Ints = last - np.minimum(tiles.key_begin // device.split_span, last) + 1
        if len(splits) and int(splits.max()) > MAX_INT16:
            raise ValueError(
                f"{int(splits.max())} splits of split_span={device.split_span} keys exceed "
                f"{MAX_INT16}: use a larger span"
            )
        return splits
    if not room:
        return np.ones_like(unit)
    most = tiles.num_quanta * device.split_quantum // device.min_split_keys
    wanted = np.minimum(-(-unit // room), np.minimum(most, device.max_splits))
    found: Ints = np.maximum(np.minimum(wanted, tiles.num_quanta), 1)
    return found


def _split_quanta(
    spec: PlanSpec, tiles: Tiles, splits: Ints, tile: Ints, split: Ints
) -> tuple[Ints, Ints]:
    """First and end quantum of each split of each piece."""
    first: Ints = tiles.key_begin[tile] // spec.device.split_quantum
    end: Ints = first + tiles.num_quanta[tile]
    if spec.policy.invariant:
        span = spec.device.split_span // spec.device.split_quantum
        at = first // span + split
        begin, stop = np.maximum(first, at * span), np.minimum(end, (at + 1) * span)
        return begin, stop
    base: Ints = tiles.num_quanta[tile] // splits[tile]
    extra: Ints = tiles.num_quanta[tile] % splits[tile]
    begin = first + split * base + np.minimum(split, extra)
    stop = begin + base + (split < extra)
    return begin, stop
