"""Cycles of the attention kernels' vector cores: softmax, running output, scores, merges.

As csrc/ascendc/kernel/meta_attention_{vector,rows,decode}.h work: sets of rows, each operation over
a whole set and a barrier behind it. Sums over both AIVs of a core.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vllm_xyserve.plan.ascend.chip import Array

LANES: Final = 64  # fp32 values of a repeat

# Cycles per repeat (PTO cost model; the vendor's table gives 1 for most with two sources).
CYCLES: Final = {
    "Add": 2,
    "Adds": 1,
    "Brcb": 1,
    "Cast": 1,
    "Div": 4,
    "Duplicate": 1,
    "Exp": 2,
    "Ln": 2,
    "Max": 2,
    "Maxs": 1,
    "Mins": 1,
    "Mul": 2,
    "MulAddDst": 2,
    "Muls": 1,
    "Sub": 2,
    "WholeReduceMax": 7,
    "WholeReduceSum": 7,
}
# Until the first result of an operation: published are 24 to 31 cycles. A barrier stands behind
# each operation of our kernels, so that nothing hides them.
START_CYCLES: Final = 27

# Of a softmax, per repeat: scale 1, subtract 2, exp 2, cast 1; and 2 to normalise.
_SOFTMAX: Final = 6
_NORMALISE: Final = 2
_REDUCE: Final = 7
# Per row and step, on eight values each: two broadcasts, bounds, factors, sums.
_PER_ROW: Final = 2
# Barriers per set beside those of the two reductions.
_BARRIERS: Final = 13
_MAX_ROWS: Final = 32
SET_SCORES: Final = {"three_stage": 12288, "four_stage": 8192, "two_stage": 4096}
# Keys that the two-stage form widens to fp32 at a time.
WIDE_KEYS: Final = 64
# The running output: times the rescaling factor 2, plus the new part 2.
UPDATE: Final = 4


def softmax_cycles(form: str, rows: Array, keys: Array, steps: Array) -> Array:
    """Softmax of [rows, keys] in `steps` steps. In two stages the AIVs share keys, else rows."""
    shares_keys = form == "two_stage"
    half_rows = rows if shares_keys else np.ceil(rows / 2)
    columns = np.ceil(keys / steps / (2 if shares_keys else 1))
    repeats = np.maximum(np.ceil(columns / LANES), 1)
    most = np.clip(SET_SCORES[form] // (repeats * LANES), 1, _MAX_ROWS)
    set_rows = np.minimum(most, half_rows)
    sets = np.ceil(half_rows / np.maximum(set_rows, 1))
    # Row by row where rows are few and long, else block by block over all rows of the set.
    is_long = set_rows < repeats
    per_row = np.where(
        is_long, repeats * _REDUCE + np.ceil(repeats / LANES) + _REDUCE, 2 * repeats - 2 + _REDUCE
    )
    barriers = _BARRIERS + 2 * np.where(is_long, 3, repeats)
    each = repeats * (_SOFTMAX + (_NORMALISE if form == "three_stage" else 0))
    worked = half_rows * (each + 2 * per_row + _PER_ROW) + sets * barriers * START_CYCLES
    cycles: Array = 2 * steps * worked
    return cycles


def update_cycles(rows: Array, head_dim: int, halves: Array) -> Array:
    """Running outputs rescaled and added to, `halves` times."""
    sets = np.ceil(rows / 2 / _MAX_ROWS)
    worked = rows * head_dim * UPDATE / LANES + 2 * sets * 2 * START_CYCLES
    cycles: Array = halves * worked
    return cycles


def score_cycles(rows: Array, keys: Array, head_dim: int) -> Array:
    """Scores on the vector cores: keys widened once, per query head products and a reduction."""
    blocks = head_dim / LANES
    per_key = blocks + rows * (2 * blocks + _REDUCE)
    starts = keys / WIDE_KEYS * (1 + rows * (np.ceil(blocks) + 1)) * START_CYCLES
    cycles: Array = keys * per_key + starts
    return cycles


def merge_cycles(rows: Array, splits: Array, head_dim: int) -> Array:
    """Parts weighted and added up."""
    sets = np.ceil(rows / _MAX_ROWS)
    worked = rows * splits * head_dim * UPDATE / LANES
    cycles: Array = worked + sets * (6 * splits + 8) * START_CYCLES
    return cycles
