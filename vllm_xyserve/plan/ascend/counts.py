"""What a tile moves and computes: bytes per path, cube cycles, vector cycles.

No time in here. The same figures can be counted by the emulation of the kernels, and a test compares
the two. Every field is a number or an array with one element per tile.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt

from vllm_xyserve.plan.ascend import chip
from vllm_xyserve.plan.ascend.chip import Array

FP32: Final = 4
# Keys that one page holds, which is what one transfer of keys or values brings.
PAGE_KEYS: Final = 128
# The two AIVs of a core take a transfer in pieces of this size at most.
UB_PIECE_BYTES: Final = 32 * 1024

# Cycles per repeat of 64 fp32 values (PTO cost model; the vendor's table gives 1 for those of two
# sources): scale 1, maximum 2, subtract 2, exp 2, sum 2, cast 1.
SOFTMAX_CYCLES: Final = 10
# The running output: times the rescaling factor 2, plus the new part 2.
UPDATE_CYCLES: Final = 4
# A score on the vector cores, per 64 values: product 2, sum of products 2 (the first for free), and
# per score two block reductions of 1 and 1/8.
PRODUCT_CYCLES: Final = 2
REDUCE_CYCLES: Final = 1.125


class Form(Enum):
    """Ways to run an attention tile.

    TWO_STAGE: scores on the vector cores, then the second product; one query per request.
    THREE_STAGE: scores, softmax, product; the keys of a tile in one go. FOUR_STAGE: keys in steps,
    and the running output rescaled after each.
    """

    TWO_STAGE = "two_stage"
    THREE_STAGE = "three_stage"
    FOUR_STAGE = "four_stage"


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one tile. Bytes, but for cycles and steps; gm_to_ub, ub_to_gm and vector_cycles are of
    both AIVs together. steps: handshakes between cube and vector cores.

    *_transfer: bytes of a single transfer. kv_bytes: what of the reads is keys and values, so may
    come from HBM; workspace_bytes: scores and the like, written and read again.
    """

    gm_to_l1: Array
    gm_to_ub: Array
    ub_to_gm: Array
    l0c_to_gm: Array
    l1_to_l0a: Array
    l1_to_l0b: Array
    mmad_cycles: Array
    vector_cycles: Array
    steps: Array
    kv_bytes: Array
    workspace_bytes: Array
    gm_to_l1_transfer: Array
    gm_to_ub_transfer: Array
    ub_to_gm_transfer: Array
    l0c_to_gm_transfer: Array

    @property
    def gm_bytes(self) -> Array:
        """Everything read from or written to global memory."""
        total: Array = self.gm_to_l1 + self.gm_to_ub + self.ub_to_gm + self.l0c_to_gm
        return total

    def select(self, which: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Counts:
        """The tiles at `which`."""
        return Counts(**{f.name: getattr(self, f.name)[which] for f in fields(self)})


def mmad_cycles(m: Array, n: Array, k: Array, element_bytes: int) -> Array:
    """Cycles of a product of m x k and k x n: one per fractal of 16 x 32 bytes x 16, fp32 two."""
    depth = chip.FRACTAL_BYTES // element_bytes
    fractals = np.ceil(m / chip.MAC_FRACTAL) * np.ceil(n / chip.MAC_FRACTAL) * np.ceil(k / depth)
    cycles: Array = fractals * (2.0 if element_bytes == FP32 else 1.0)
    return cycles


@dataclass(frozen=True, slots=True)
class Heads:
    """head_dim: of keys and values. element_bytes: of queries, keys, values and output."""

    head_dim: int = 128
    element_bytes: int = 2


def attention_counts(
    form: Form, heads: Heads, rows: Array, tile_rows: Array, keys: Array, step_keys: int
) -> Counts:
    """Counts of tiles of one KV head.

    rows, tile_rows: queries times query heads, real ones and what the cube computes. keys: of the
    tile. step_keys: keys between two handshakes in the four-stage form.
    """
    rows, tile_rows, keys = (np.asarray(x, dtype=np.float64) for x in (rows, tile_rows, keys))
    if form is Form.TWO_STAGE:
        return _two_stage(heads, rows, keys, step_keys)
    whole = form is Form.THREE_STAGE
    steps = np.ones_like(keys) if whole else np.maximum(np.ceil(keys / step_keys), 1)
    per_step = np.ceil(keys / steps)
    element, dim = heads.element_bytes, heads.head_dim
    kv = 2 * keys * dim * element
    scores, probabilities = rows * keys * FP32, rows * keys * element
    # A running output goes to the vector cores after every step, a final one straight out.
    partial = np.zeros_like(keys) if whole else steps * rows * dim * FP32
    query = rows * dim * element
    out = query if whole else np.zeros_like(query)
    update = np.zeros_like(keys) if whole else steps * rows * dim * UPDATE_CYCLES / 64
    block = np.minimum(per_step, PAGE_KEYS)
    return Counts(
        gm_to_l1=query + kv + probabilities,
        gm_to_ub=scores + partial,
        ub_to_gm=probabilities + (query - out),
        l0c_to_gm=scores + partial + out,
        l1_to_l0a=steps * tile_rows * dim * element + tile_rows * keys * element,
        l1_to_l0b=kv,
        mmad_cycles=mmad_cycles(tile_rows, keys, np.float64(dim), element)
        + mmad_cycles(tile_rows, np.float64(dim), keys, element),
        vector_cycles=rows * keys * SOFTMAX_CYCLES / 64 + update,
        steps=steps,
        kv_bytes=kv,
        workspace_bytes=2 * (scores + probabilities + partial),
        gm_to_l1_transfer=block * dim * element,
        gm_to_ub_transfer=np.minimum(UB_PIECE_BYTES, rows * per_step * FP32 / 2),
        ub_to_gm_transfer=np.minimum(UB_PIECE_BYTES, rows * per_step * element / 2),
        l0c_to_gm_transfer=rows * block * FP32,
    )


def _two_stage(heads: Heads, rows: Array, keys: Array, step_keys: int) -> Counts:
    """Keys go to the vector cores and values to the cube, which has sixteen rows to fill."""
    element, dim = heads.element_bytes, heads.head_dim
    steps = np.maximum(np.ceil(keys / step_keys), 1)
    per_step = np.ceil(keys / steps)
    half_kv = keys * dim * element
    probabilities = rows * keys * element
    query, partial = rows * dim * element, steps * rows * dim * FP32
    tile_rows = np.ceil(rows / chip.MAC_FRACTAL) * chip.MAC_FRACTAL
    repeats = dim / 64
    scores = keys * (repeats + rows * (2 * repeats * PRODUCT_CYCLES - 2 + REDUCE_CYCLES))
    block = np.minimum(per_step, PAGE_KEYS)
    return Counts(
        gm_to_l1=half_kv + probabilities,
        gm_to_ub=half_kv + query + partial,
        ub_to_gm=probabilities + query,
        l0c_to_gm=partial,
        l1_to_l0a=tile_rows * keys * element,
        l1_to_l0b=half_kv,
        mmad_cycles=mmad_cycles(tile_rows, np.float64(dim), keys, element),
        vector_cycles=scores
        + rows * keys * SOFTMAX_CYCLES / 64
        + steps * rows * dim * UPDATE_CYCLES / 64,
        steps=steps,
        kv_bytes=2 * half_kv,
        workspace_bytes=2 * (probabilities + partial),
        gm_to_l1_transfer=block * dim * element,
        gm_to_ub_transfer=np.minimum(UB_PIECE_BYTES, block * dim * element / 2),
        ub_to_gm_transfer=np.minimum(UB_PIECE_BYTES, rows * per_step * element / 2),
        l0c_to_gm_transfer=rows * dim * FP32 + np.zeros_like(keys),
    )


def merge_counts(heads: Heads, rows: Array, splits: Array) -> Counts:
    """Counts of combining the partial results of split tiles: fp32 rows and two statistics each.

    On the vector cores alone: read every part, rescale and add it, write the result.
    """
    rows, splits = np.asarray(rows, dtype=np.float64), np.asarray(splits, dtype=np.float64)
    none = np.zeros_like(rows)
    part = rows * splits * (heads.head_dim + 2 * chip.FRACTAL_BYTES // FP32) * FP32
    out = rows * heads.head_dim * heads.element_bytes
    return Counts(
        gm_to_l1=none,
        gm_to_ub=part,
        ub_to_gm=out,
        l0c_to_gm=none,
        l1_to_l0a=none,
        l1_to_l0b=none,
        mmad_cycles=none,
        vector_cycles=rows * splits * heads.head_dim * UPDATE_CYCLES / 64,
        steps=none,
        kv_bytes=none,
        workspace_bytes=part,
        gm_to_l1_transfer=none,
        gm_to_ub_transfer=np.minimum(UB_PIECE_BYTES, part / 2),
        ub_to_gm_transfer=np.minimum(UB_PIECE_BYTES, out / 2),
        l0c_to_gm_transfer=none,
    )


@dataclass(frozen=True, slots=True)
class LinearTile:
    """rows, columns: of the output tile that a core computes at a time. depth: of a step along K
    in the first-level buffer."""

    rows: int
    columns: int
    depth: int


def linear_tile(rows: int, columns: int, element_bytes: int) -> LinearTile:
    """The deepest step that fits L1 twice: loads of the next overlap the work on this one."""
    deepest = chip.L1_BYTES // 2 // ((rows + columns) * element_bytes)
    fractal = chip.FRACTAL_BYTES // element_bytes
    return LinearTile(rows, columns, max(fractal, min(deepest, 512 // element_bytes) // fractal * fractal))


def linear_counts(
    tile: LinearTile,
    rows: Array,
    columns: Array,
    depth: int,
    element_bytes: int,
    out_bytes: int,
    physical: bool = False,
) -> Counts:
    """Counts of output tiles of x @ w.T, [rows, columns] each, over K = depth.

    With virtual padding a tile reads and writes its real rows. physical: the rows of x and of the
    result are padded in memory to whole tiles, so all of them are moved.
    """
    rows, columns = np.asarray(rows, dtype=np.float64), np.asarray(columns, dtype=np.float64)
    full = np.full_like(rows, tile.rows)
    moved = full if physical else rows
    none = np.zeros_like(rows)
    a, b = moved * depth * element_bytes, columns * depth * element_bytes
    out = moved * columns * out_bytes
    return Counts(
        gm_to_l1=a + b,
        gm_to_ub=none,
        ub_to_gm=none,
        l0c_to_gm=out,
        l1_to_l0a=full * depth * element_bytes,
        l1_to_l0b=b,
        mmad_cycles=mmad_cycles(full, columns, np.float64(depth), element_bytes),
        vector_cycles=none,
        steps=none,
        kv_bytes=a + b,
        workspace_bytes=none,
        gm_to_l1_transfer=(a + b) / 2 * min(tile.depth / depth, 1),
        gm_to_ub_transfer=none,
        ub_to_gm_transfer=none,
        l0c_to_gm_transfer=out,
    )
