"""What a tile moves and computes: bytes per path, cube cycles, vector cycles.

No time in here. The emulation of the kernels can count the same figures. Every field is an
array with one element per tile.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt

from vllm_xyserve.plan.ascend import chip, vectors
from vllm_xyserve.plan.ascend.chip import Array

FP32: Final = 4
# Keys of a page of the cache, which one transfer brings and one product takes.
PAGE_KEYS: Final = 128
# What a vector core works on at a time, in fp32 scores.
UB_SCORES: Final = 8192
# A partial row: values, eight times the log-sum-exp; the merge reads the latter twice.
LSE_FLOATS: Final = 8

# Of the published kernel with other steps than ours, per 64 scores: scale 1, maximum 2, subtract 2,
# exp 2, sum 2, cast 1. Its model has 2,489 cycles for 16,384 scores on a vector core, transfers
# included; this gives 2,560.
OTHER_SOFTMAX_CYCLES: Final = 10


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


def mmad_cycles(m: Array, n: Array | float, k: Array | float, element_bytes: int) -> Array:
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


def sixteens(values: Array) -> Array:
    """Rounded up to whole fractals of rows or columns."""
    rounded: Array = np.ceil(values / chip.MAC_FRACTAL) * chip.MAC_FRACTAL
    return rounded


def step_keys(form: Form, rows: Array, keys: Array) -> Array:
    """Keys between two handshakes: all in the three-stage form, else so many pages that a vector
    core has some 16 K scores to work on."""
    if form is Form.THREE_STAGE:
        return np.maximum(keys, 1)
    pages = np.where(rows > 64, 4, np.where(rows > 32, 8, 16))
    steps: Array = (pages * PAGE_KEYS).astype(np.float64)
    return steps


def attention_counts(
    form: Form,
    heads: Heads,
    rows: Array,
    keys: Array,
    is_split: npt.NDArray[np.bool_] | None = None,
    per_step: Array | None = None,
) -> Counts:
    """Counts of tiles of one KV head, whose keys begin on a page.

    rows: queries times query heads. keys: of the tile. is_split: leaves a partial result for a
    merge, default none. per_step: other kernels' `step_keys`.
    """
    rows, keys = np.asarray(rows, dtype=np.float64), np.asarray(keys, dtype=np.float64)
    whole = rows * heads.head_dim * heads.element_bytes
    part = rows * (heads.head_dim + LSE_FLOATS) * FP32
    result = whole if is_split is None else np.where(is_split, part, whole)
    is_ours = per_step is None
    per_step = step_keys(form, rows, keys) if per_step is None else per_step
    steps = np.maximum(np.ceil(keys / per_step), 1)
    if form is Form.TWO_STAGE:
        return _two_stage(heads, rows, keys, steps, result)
    is_whole = form is Form.THREE_STAGE
    element, dim = heads.element_bytes, heads.head_dim
    padded, columns, pages = sixteens(rows), sixteens(keys), np.ceil(keys / PAGE_KEYS)
    kv = 2 * keys * dim * element
    scores, probabilities = rows * columns * FP32, rows * columns * element
    # A running output goes to the vector cores after every step, a final one straight out.
    partial = np.zeros_like(keys) if is_whole else steps * rows * dim * FP32
    straight = whole if is_whole else np.zeros_like(whole)
    # A head beyond 128 elements is multiplied in two parts.
    parts = 2 if dim > 128 else 1
    if is_ours:
        vector = vectors.softmax_cycles(form.value, rows, keys, steps)
        vector = vector if is_whole else vector + vectors.update_cycles(rows, dim, steps)
    else:
        update = steps * dim * vectors.UPDATE
        vector = rows * (columns * OTHER_SOFTMAX_CYCLES + update) / vectors.LANES
    piece = np.minimum(UB_SCORES, rows * np.minimum(keys, per_step) / 2)
    page = np.minimum(keys, PAGE_KEYS)
    return Counts(
        gm_to_l1=whole + kv + probabilities,
        gm_to_ub=scores + partial,
        ub_to_gm=probabilities + (0 if is_whole else result),
        l0c_to_gm=scores + partial + straight,
        l1_to_l0a=pages * padded * dim * element + parts * padded * columns * element,
        l1_to_l0b=2 * columns * dim * element,
        mmad_cycles=2 * mmad_cycles(padded, columns, dim, element),
        vector_cycles=vector,
        steps=steps,
        kv_bytes=kv,
        workspace_bytes=2 * (scores + probabilities + partial),
        gm_to_l1_transfer=page * dim * element,
        gm_to_ub_transfer=piece * FP32,
        ub_to_gm_transfer=piece * element,
        l0c_to_gm_transfer=rows * page * FP32,
    )


def _two_stage(heads: Heads, rows: Array, keys: Array, steps: Array, result: Array) -> Counts:
    """Keys go to the vector cores, half of the pages to each, and values to the cube. Either half
    has a running output of its own; the first core combines the two."""
    element, dim = heads.element_bytes, heads.head_dim
    padded, columns = sixteens(rows), sixteens(keys)
    half_kv = keys * dim * element
    probabilities = rows * columns * element
    query = rows * dim * element
    # A step of a single page is one half's.
    last_pages = np.ceil(keys / PAGE_KEYS) - (steps - 1) * step_keys(Form.TWO_STAGE, rows, keys) / (
        PAGE_KEYS
    )
    halves = 2 * steps - (last_pages <= 1)
    partial = halves * rows * dim * FP32
    exchange = 2 * rows * (dim + LSE_FLOATS) * FP32
    page = np.minimum(keys, PAGE_KEYS)
    return Counts(
        gm_to_l1=half_kv + probabilities,
        gm_to_ub=half_kv + 2 * query + partial + exchange + 2 * rows * LSE_FLOATS * FP32,
        ub_to_gm=probabilities + exchange + result,
        l0c_to_gm=partial,
        l1_to_l0a=(2 if dim > 128 else 1) * padded * columns * element,
        l1_to_l0b=columns * dim * element,
        mmad_cycles=mmad_cycles(padded, dim, columns, element),
        vector_cycles=vectors.score_cycles(rows, keys, dim)
        + vectors.softmax_cycles("two_stage", rows, keys, steps)
        + vectors.update_cycles(rows, dim, halves),
        steps=steps,
        kv_bytes=2 * half_kv,
        workspace_bytes=2 * (probabilities + partial + exchange),
        gm_to_l1_transfer=page * dim * element,
        gm_to_ub_transfer=page * dim * element,
        ub_to_gm_transfer=np.minimum(UB_SCORES, rows * keys / 2) * element,
        l0c_to_gm_transfer=rows * dim * FP32 + np.zeros_like(keys),
    )


def merge_counts(heads: Heads, rows: Array, splits: Array) -> Counts:
    """Counts of combining the partial results of split tiles: fp32 rows and two statistics each.

    On the vector cores alone: read every part, rescale and add it, write the result.
    """
    rows, splits = np.asarray(rows, dtype=np.float64), np.asarray(splits, dtype=np.float64)
    none = np.zeros_like(rows)
    part = rows * splits * (heads.head_dim + 2 * LSE_FLOATS) * FP32
    out = rows * heads.head_dim * heads.element_bytes
    return Counts(
        gm_to_l1=none,
        gm_to_ub=part,
        ub_to_gm=out,
        l0c_to_gm=none,
        l1_to_l0a=none,
        l1_to_l0b=none,
        mmad_cycles=none,
        vector_cycles=vectors.merge_cycles(rows, splits, heads.head_dim),
        steps=none,
        kv_bytes=none,
        workspace_bytes=part,
        gm_to_l1_transfer=none,
        gm_to_ub_transfer=np.minimum(UB_SCORES * FP32, part / 2),
        ub_to_gm_transfer=np.minimum(UB_SCORES * FP32, out / 2),
        l0c_to_gm_transfer=none,
    )


@dataclass(frozen=True, slots=True)
class LinearTile:
    """rows, columns: of the output tile that a core computes at a time. row_bytes: of K per row and
    step in the first-level buffer."""

    rows: int
    columns: int
    row_bytes: int


def linear_tile(rows: int, columns: int) -> LinearTile:
    """512 bytes of each row per step, or 1,024 where half of the buffer holds them."""
    room = min(64 * chip.KIB // rows, 128 * chip.KIB // columns)
    return LinearTile(rows, columns, 1024 if room >= 1024 else 512)


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

    With virtual padding a tile moves its real rows and computes them rounded up to 16. physical:
    the rows of x and of the result are padded in memory to whole tiles, so all are moved.
    """
    rows, columns = np.asarray(rows, dtype=np.float64), np.asarray(columns, dtype=np.float64)
    moved = np.full_like(rows, tile.rows) if physical else rows
    padded, wide = sixteens(moved), sixteens(columns)
    none = np.zeros_like(rows)
    a, b = moved * depth * element_bytes, columns * depth * element_bytes
    out = moved * columns * out_bytes
    return Counts(
        gm_to_l1=a + b,
        gm_to_ub=none,
        ub_to_gm=none,
        l0c_to_gm=out,
        l1_to_l0a=padded * depth * element_bytes,
        l1_to_l0b=wide * depth * element_bytes,
        mmad_cycles=mmad_cycles(padded, wide, depth, element_bytes),
        vector_cycles=none,
        steps=none,
        kv_bytes=none,
        workspace_bytes=none,
        gm_to_l1_transfer=(moved + columns) / 2 * min(tile.row_bytes, depth * element_bytes),
        gm_to_ub_transfer=none,
        ub_to_gm_transfer=none,
        l0c_to_gm_transfer=out,
    )
