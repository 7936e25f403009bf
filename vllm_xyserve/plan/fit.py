"""Cutting to fit: cores are filled one after the other and a tile is cut where a core is full.

McNaughton's wrap-around rule (Management Science 6, 1959) with a fixed cost per piece: at most one
cut per core, against the many of cutting every tile finely enough for list scheduling. Reference of
csrc/plan/fit.cc.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from vllm_xyserve.plan.spec import PlanSpec
from vllm_xyserve.plan.tiles import Ints, Pieces, Tiles, total_cost

# A core is full when it is within this share (a power of two) of the target.
SLACK_SHIFT = 7


@dataclass(slots=True)
class _Piece:
    tile: int
    head_begin: int
    num_heads: int
    begin: int
    end: int
    cost: int
    core: int
    split: int = 0
    num_splits: int = 1
    partial: int = -1


@dataclass(slots=True)
class _Filler:
    """State of one pass: the core being filled, its load, and the pieces so far."""

    spec: PlanSpec
    tiles: Tiles
    cut_cost: int
    remaining: int
    target: int = 0
    core: int = 0
    load: int = 0
    partial_rows: int = 0
    pieces: list[_Piece] = field(default_factory=list)

    @property
    def is_last(self) -> bool:
        return self.core == self.spec.device.num_cores - 1

    def room(self, fixed: int) -> int:
        """Work that the core can still take beside a fixed cost."""
        return self.target - self.load - fixed

    def start_core(self, core: int) -> None:
        """The target of a core is its share of what is left, and so are earlier deviations."""
        self.core, self.load = core, 0
        after = self.spec.device.num_cores - 1 - core
        self.target = -(-(self.remaining + self.cut_cost * after) // (after + 1))

    def next_core(self) -> None:
        self.start_core(self.core + 1)

    def place(self, piece: _Piece, work: int) -> None:
        """work: what the piece takes off the work that is left."""
        self.pieces.append(piece)
        self.load += piece.cost
        self.remaining -= work

    def add_tile(self, tile: int) -> None:
        """Whole heads while they fit, then one head cut along its keys, then the next core."""
        task, num_heads = self.spec.weights.task, self.spec.geometry.num_kv_heads
        slack = self.target >> SLACK_SHIFT
        first = int(self.tiles.key_begin[tile]) // self.spec.device.split_quantum
        num_quanta, unit = int(self.tiles.num_quanta[tile]), int(self.tiles.unit_ps[tile])
        head = 0
        while head < num_heads:
            left = num_heads - head
            room = self.room(task) + slack
            whole = left if self.is_last or left * unit <= room else room // max(unit, 1)
            if whole < 1 and self._add_cut_head(tile, head):
                head += 1
                continue
            if whole < 1 and self.load > 0:
                self.next_core()
                continue
            whole = max(whole, 1)
            cost = task + whole * unit
            piece = _Piece(tile, head, whole, first, first + num_quanta, cost, self.core)
            self.place(piece, whole * unit)
            head += whole
        self.remaining -= task

    def _add_cut_head(self, tile: int, head: int) -> bool:
        """One head over as many cores as its keys take; False if it is too short to be cut."""
        device, weights = self.spec.device, self.spec.weights
        num_quanta = int(self.tiles.num_quanta[tile])
        per_quantum = max(int(self.tiles.unit_ps[tile]) // max(num_quanta, 1), 1)
        rows = int(self.tiles.num_queries[tile]) * self.spec.geometry.group_size
        fixed = weights.task + rows * weights.partial
        # A split is at least as much work as its own overhead.
        least = max(-(-device.min_split_keys // device.split_quantum), -(-fixed // per_quantum))
        if num_quanta < 2 * least:
            return False
        slack = self.target >> SLACK_SHIFT
        at = int(self.tiles.key_begin[tile]) // device.split_quantum
        end = at + num_quanta
        splits: list[_Piece] = []
        while at < end:
            left = end - at
            own = fixed if splits else weights.task
            ends = self.is_last or len(splits) == device.max_splits - 1
            if ends or left * per_quantum <= self.room(own) + slack:
                count = left
            else:
                nearest = (max(self.room(fixed), 0) + per_quantum // 2) // per_quantum
                count = min(nearest, left - least)
                if count < least and self.load > 0:
                    self.next_core()
                    continue
                count = max(count, least) if left >= 2 * least else left
            cost = (fixed if splits or count < left else weights.task) + count * per_quantum
            piece = _Piece(tile, head, 1, at, at + count, cost, self.core, len(splits))
            splits.append(piece)
            self.place(piece, count * per_quantum)
            at += count
            if at < end:
                self.next_core()
        if len(splits) > 1:
            for piece in splits:
                piece.num_splits, piece.partial = len(splits), self.partial_rows
                self.partial_rows += rows
        return True


def fit(spec: PlanSpec, tiles: Tiles, cut_cost: int) -> tuple[Pieces, Ints]:
    """Pieces and the core of each. cut_cost: work that a cut between two cores is expected to add.

    The last core takes whatever is left.
    """
    filler = _Filler(spec, tiles, cut_cost, total_cost(spec, tiles))
    filler.start_core(0)
    for tile in range(len(tiles.segment)):
        filler.add_tile(tile)
    return _as_arrays(spec, tiles, filler)


def _as_arrays(spec: PlanSpec, tiles: Tiles, filler: _Filler) -> tuple[Pieces, Ints]:
    def column(name: str) -> Ints:
        return np.array([getattr(piece, name) for piece in filler.pieces], dtype=np.int64)

    tile, quantum = column("tile"), spec.device.split_quantum
    pieces = Pieces(
        tile=tile,
        head_begin=column("head_begin"),
        num_heads=column("num_heads"),
        split=column("split"),
        num_splits=column("num_splits"),
        key_begin=np.maximum(tiles.key_begin[tile], column("begin") * quantum),
        key_end=np.minimum(tiles.key_end[tile], column("end") * quantum),
        cost=column("cost"),
        partial=column("partial"),
        num_partial_rows=filler.partial_rows,
    )
    return pieces, column("core")
