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
    sixteens,
)
from vllm_xyserve.plan.ascend.times import linear_seconds, tile_seconds

Ints = npt.NDArray[np.int64]

# Of the second-level cache, the share that scores in flight may fill is 1 / ALPHA.
ALPHA = 2.0
# Longest row of scores that a vector core holds, and query heads per KV head up to which the vector
# cores take the scores of decode rows.
THREE_STAGE_MAX_KEYS = 12224
TWO_STAGE_MAX_GROUP = 2


@dataclass(frozen=True, slots=True)
class Tiles:
    """Attention tiles in the order of their cores' lists, one element each.

    core: whose list. rows, keys: as in `attention_counts`. num_heads: KV heads that the task runs
    one after the other. cold: share of its keys and values that no tile before it has brought into
    the second-level cache. is_split: leaves a partial result for a merge.
    """

    core: Ints
    rows: Array
    keys: Array
    num_heads: Array
    cold: Array
    is_split: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Merging:
    """Merges of split tiles, one element each: core, rows of all their heads, number of splits."""

    core: Ints
    rows: Array
    splits: Array


def score_bytes(tile_rows: int, max_keys: int, num_cores: int) -> int:
    """Scores in flight on all cores in the three-stage form: fp32, two tiles each, whole rows."""
    return 2 * num_cores * tile_rows * -(-max_keys // 128) * 128 * 4


def select_form(
    num_cores: int, group_size: int, tile_rows: int, max_keys: int, decode_only: bool, splits: bool
) -> Form:
    """The form that the kernels' host side takes (csrc/ascendc/host/meta_attention.cc).

    tile_rows, max_keys: largest of the launch. splits: keys of a tile may be split.
    """
    if decode_only and group_size <= TWO_STAGE_MAX_GROUP:
        return Form.TWO_STAGE
    is_short = max_keys <= THREE_STAGE_MAX_KEYS and not splits
    stays = ALPHA * score_bytes(tile_rows, max_keys, num_cores) < chip.L2_BYTES
    return Form.THREE_STAGE if is_short and stays else Form.FOUR_STAGE


def attention_work(
    device: Chip,
    memory: Memory,
    form: Form,
    heads: Heads,
    tiles: Tiles,
    per_step: Array | None = None,
) -> Work:
    """Tiles as work of the cores. per_step: as in `attention_counts`."""
    counts = attention_counts(form, heads, tiles.rows, tiles.keys, tiles.is_split, per_step)
    steady, fill = tile_seconds(device, memory, counts)
    seconds = steady * tiles.num_heads
    first = np.unique(tiles.core, return_index=True)[1]
    seconds[first] += fill[first]
    ends = 2 * tiles.rows * heads.head_dim * heads.element_bytes
    fresh = counts.kv_bytes * tiles.cold + ends * (tiles.cold > 0)
    return Work(tiles.core, seconds, counts.gm_bytes * tiles.num_heads, fresh * tiles.num_heads)


def attention_seconds(
    device: Chip,
    memory: Memory,
    form: Form,
    heads: Heads,
    tiles: Tiles,
    merging: Merging | None = None,
    per_step: Array | None = None,
) -> float:
    """One launch. Merges begin when all tiles of all cores are done."""
    if not len(tiles.core):
        return 0.0
    work = attention_work(device, memory, form, heads, tiles, per_step)
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

    def all_counts(
        self, tile: LinearTile, num_cores: int, physical: bool = False, cuts_last: bool = True
    ) -> Counts:
        """Of every output tile, in the order in which cores take them in turn.

        cuts_last: tiles of a last wave that not all cores would get are cut into columns for the
        idle ones. physical: as in `linear_counts`.
        """
        starts_m, starts_n = np.arange(0, self.m, tile.rows), np.arange(0, self.n, tile.columns)
        heights = np.minimum(self.m - starts_m, tile.rows).astype(np.float64)
        widths = np.minimum(self.n - starts_n, tile.columns).astype(np.float64)
        rows, columns = np.tile(heights, len(widths)), np.repeat(widths, len(heights))
        left = len(rows) % num_cores
        pieces = min(num_cores // left, tile.columns // chip.MAC_FRACTAL) if left else 1
        if cuts_last and pieces > 1:
            whole = len(rows) - left
            piece = sixteens(np.ceil(columns[whole:] / pieces))[:, None]
            begin = np.minimum(np.arange(pieces) * piece, columns[whole:, None])
            cut = np.minimum(begin + piece, columns[whole:, None]) - begin
            last_rows = np.repeat(rows[whole:], pieces)[cut.ravel() > 0]
            columns = np.concatenate((columns[:whole], cut.ravel()[cut.ravel() > 0]))
            rows = np.concatenate((rows[:whole], last_rows))
        return linear_counts(
            tile, rows, columns, self.k, self.element_bytes, self.out_bytes, physical
        )


def linear_layer_seconds(
    device: Chip,
    memory: Memory,
    layer: Linear,
    tile: LinearTile,
    *,
    physical: bool = False,
    is_cold: bool = True,
    cuts_last: bool = True,
) -> float:
    """One linear layer. is_cold: weights and rows come from HBM, once each."""
    counts = layer.all_counts(tile, device.num_cores, physical, cuts_last)
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


def candidate_tiles(layer: Linear, num_cores: int) -> list[LinearTile]:
    """Tiles worth a look: as high as M allows or half of it; narrow ones where tiles are few."""
    height = min(128, max(16, -(-layer.m // 16) * 16))
    heights = {height, max(16, height // 32 * 16)}
    is_small = -(-layer.m // height) * -(-layer.n // 128) < 3 * num_cores
    widths = (64, 128, 192, 256) if is_small else (128, 192, 256)
    return [linear_tile(m, n) for m in sorted(heights) for n in widths]


def best_tile(
    device: Chip, memory: Memory, layer: Linear, *, physical: bool = False
) -> tuple[LinearTile, float]:
    """The candidate that is predicted to be fastest, and its time in seconds."""
    tiles = candidate_tiles(layer, device.num_cores)
    times = [linear_layer_seconds(device, memory, layer, t, physical=physical) for t in tiles]
    best = int(np.argmin(times))
    return tiles[best], times[best]
