"""The token table: one row per request segment of the step, in plan order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vllm_xyserve.plan.layout import DECODE, FORM_DECODE, FORM_MIXED, PREFILL, VERIFY
from vllm_xyserve.plan.spec import MAX_INT32

IntLike = Sequence[int] | npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Rows:
    """Checked columns, all int64 [num_rows] so that no product overflows.

    query_lens: tokens of this step. key_lens: context with them (vLLM's seq_lens). kinds: PREFILL,
    DECODE or VERIFY. mask_offsets: place of the row's tree mask, -1 for none; such a row is causal,
    too: a tree token's ancestors stand before it.
    """

    query_lens: npt.NDArray[np.int64]
    key_lens: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int64]
    mask_offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.query_lens)

    @property
    def form(self) -> int:
        """FORM_DECODE if no row has more than one query."""
        return FORM_MIXED if (self.query_lens > 1).any() else FORM_DECODE


def make_rows(
    query_lens: IntLike,
    key_lens: IntLike,
    kinds: IntLike | None = None,
    mask_offsets: IntLike | None = None,
) -> Rows:
    """Rows from integer columns of one length.

    Without kinds a row of one query is a decode and any other a prefill. Raises ValueError for
    columns of different lengths, lengths or masks beyond int32, or unknown kinds.
    """
    queries, keys = _column(query_lens), _column(key_lens)
    num_rows = len(queries)
    if kinds is None:
        kind = np.where(queries == 1, DECODE, PREFILL)
    else:
        kind = _column(kinds)
        if ((kind < PREFILL) | (kind > VERIFY)).any():
            raise ValueError(f"kinds must be in {PREFILL}..{VERIFY}, got {kind.tolist()}")
    if mask_offsets is None:
        masks = np.full(num_rows, -1, dtype=np.int64)
    else:
        masks = _column(mask_offsets)
        if masks.size and not -1 <= masks.min() <= masks.max() <= MAX_INT32:
            raise ValueError(f"mask_offsets must be in -1..{MAX_INT32}, got {masks.tolist()}")
    if not num_rows == len(keys) == len(kind) == len(masks):
        raise ValueError(
            f"the columns must be equally long, got {num_rows} query_lens, {len(keys)} key_lens, "
            f"{len(kind)} kinds, {len(masks)} mask_offsets"
        )
    # One unsigned maximum finds negative and excessive lengths alike; every check costs 3 us.
    if num_rows and np.maximum(queries.view(np.uint64), keys.view(np.uint64)).max() > MAX_INT32:
        raise ValueError(
            f"lengths must be in 0..{MAX_INT32}, got {queries.tolist()} and {keys.tolist()}"
        )
    return Rows(queries, keys, kind, masks)


def _column(values: IntLike) -> npt.NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"a column must be a list of integers, got {array.dtype} {array.shape}")
    return array.astype(np.int64)
