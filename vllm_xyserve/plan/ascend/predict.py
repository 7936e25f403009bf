"""Predicted time of one kernel: an attention launch over dealt tiles, or a linear layer.

Predictions, not measurements: see benchmarks.ascend_fit for how far off they are where somebody has
measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vllm_xyserve.plan.ascend import chip
from vllm_xyserve.plan.ascend.chip import Array, Chip, Memory
from vllm_xyserve.plan.ascend.cores import Work, makespan
from vllm_xyserve.plan.ascend.counts import (
    Counts,
    Form,
    Heads,
    LinearTile,
    attention_counts,
    linear_counts,
    linear_tile,
    merge_counts,
)
from vllm_xyserve.plan.ascend.times import linear_seconds, tile_seconds

Ints = npt.NDArray[np.int64]

# Keys between two handshakes of the four-stage and two-stage forms.
STEP_KEYS = 256


@dataclass(frozen=True, slots=True)
class Tiles:
    """Attention tiles in the order of their cores' lists, one element each.

    core: whose list. rows, tile_rows: as in `attention_counts`. keys: of the tile. num_heads: KV
    heads that the task runs one after the other. cold: share of its keys and values that no tile
    before it has brought into the second-level cache.
    """

    core: Ints
    rows: Array
    tile_rows: Array
    keys: Array
    num_heads: Array
    cold: Array


@dataclass(frozen=True, slots=True)
class Merging:
    """Merges of split tiles, one element each: core, rows of all their heads, number of splits."""

    core: Ints
    rows: Array
    splits: Array


def workspace_bytes(form: Form, tile_rows: int, keys: int, num_cores: int) -> int:
    """Global memory that lives between cube and vector cores, for the longest tile.

    fp32 scores for two tiles per core, in the three-stage form over all their keys.
    """
    per_row = keys if form is Form.THREE_STAGE else min(keys, 2 * STEP_KEYS)
    return 2 * num_cores * tile_rows * per_row * 4


def attention_work(
    device: Chip, memory: Memory, form: Form, heads: Heads, tiles: Tiles
) -> Work:
    """Tiles as work of the cores."""
    counts = attention_counts(
        form, heads, tiles.rows, tiles.tile_rows, tiles.keys, STEP_KEYS
    )
    steady, fill = tile_seconds(device, memory, counts)
    seconds = steady * tiles.num_heads
    first = np.unique(tiles.core, return_index=True)[1]
    seconds[first] += fill[first]
    ends = 2 * tiles.rows * heads.head_dim * heads.element_bytes
    fresh = counts.kv_bytes * tiles.cold + ends * (tiles.cold > 0)
    longest = int(tiles.keys.max(initial=0))
    if workspace_bytes(form, int(tiles.tile_rows.max(initial=0)), longest, device.num_cores) > (
        chip.L2_BYTES
    ):
        fresh = fresh + counts.workspace_bytes
    return Work(tiles.core, seconds, counts.gm_bytes * tiles.num_heads, fresh * tiles.num_heads)


def attention_seconds(
    device: Chip,
    memory: Memory,
    form: Form,
    heads: Heads,
    tiles: Tiles,
    merging: Merging | None = None,
) -> float:
    """One launch. Merges begin when all tiles of all cores are done."""
    if not len(tiles.core):
        return 0.0
    work = attention_work(device, memory, form, heads, tiles)
    limits = memory.l2_bytes_per_s, memory.hbm_bytes_per_s
    total = memory.launch_s + makespan(work, device.num_cores, *limits)
    if merging is not None and len(merging.core):
        counts = merge_counts(heads, merging.rows, merging.splits)
        steady, _ = tile_seconds(device, memory, counts)
        merges = Work(merging.core, steady, counts.gm_bytes, np.zeros_like(steady))
        total += chip.HANDSHAKE_CYCLES / device.hertz + makespan(merges, device.num_cores, *limits)
    return total


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x @ w.T of x [m, k] and w [n, k]. Bytes per element of x and w, and of y."""

    m: int
    n: int
    k: int
    element_bytes: int = 2
    out_bytes: int = 2

    def all_counts(self, tile: LinearTile, physical: bool = False) -> Counts:
        """Of every output tile, down the rows first. physical: as in `linear_counts`."""
        starts_m, starts_n = np.arange(0, self.m, tile.rows), np.arange(0, self.n, tile.columns)
        rows = np.minimum(self.m - starts_m, tile.rows).astype(np.float64)
        columns = np.minimum(self.n - starts_n, tile.columns).astype(np.float64)
        return linear_counts(
            tile,
            np.tile(rows, len(columns)),
            np.repeat(columns, len(rows)),
            self.k,
            self.element_bytes,
            self.out_bytes,
            physical,
        )


def linear_layer_seconds(
    device: Chip,
    memory: Memory,
    layer: Linear,
    tile: LinearTile,
    *,
    physical: bool = False,
    is_cold: bool = True,
) -> float:
    """One linear layer, tiles dealt in turn. is_cold: weights and rows come from HBM, once each."""
    counts = layer.all_counts(tile, physical)
    seconds = linear_seconds(device, memory, counts, tile.rows * tile.columns * 4)
    unique = layer.element_bytes * layer.k * (layer.m + layer.n)
    unique += layer.out_bytes * layer.m * layer.n
    fresh = float(unique) if is_cold or unique > chip.L2_BYTES else 0.0
    # Tiles hardly differ, so that all cores ask for the same at any time: no need to follow them.
    core = np.arange(len(seconds)) % device.num_cores
    longest = float(np.bincount(core, seconds).max())
    return memory.launch_s + max(
        longest,
        float(counts.gm_bytes.sum()) / memory.l2_bytes_per_s,
        fresh / memory.hbm_bytes_per_s,
    )


# Tiles that the kernels are built for: rows and columns.
LINEAR_TILES = tuple((m, n) for m in (16, 32, 64, 128) for n in (64, 128, 256))


def best_tile(
    device: Chip, memory: Memory, layer: Linear, *, physical: bool = False
) -> tuple[LinearTile, float]:
    """The tile of LINEAR_TILES that is predicted to be fastest, and its time in seconds."""
    tiles = [linear_tile(m, n, layer.element_bytes) for m, n in LINEAR_TILES]
    times = [linear_layer_seconds(device, memory, layer, t, physical=physical) for t in tiles]
    best = int(np.argmin(times))
    return tiles[best], times[best]
