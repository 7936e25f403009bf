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
    columns of different lengths, negative lengths or unknown kinds.
    """
    queries, keys = _column(query_lens), _column(key_lens)
    kind = np.where(queries == 1, DECODE, PREFILL) if kinds is None else _column(kinds)
    masks = np.full(len(queries), -1, dtype=np.int64)
    if mask_offsets is not None:
        masks = _column(mask_offsets)
    if not len(queries) == len(keys) == len(kind) == len(masks):
        raise ValueError(
            "the columns must be equally long, got "
            f"{len(queries)} query_lens, {len(keys)} key_lens, {len(kind)} kinds, "
            f"{len(masks)} mask_offsets"
        )
    if len(queries) and min(queries.min(), keys.min()) < 0:
        raise ValueError(f"lengths must be >= 0, got {queries.tolist()} and {keys.tolist()}")
    if len(queries) and max(queries.max(), keys.max(), masks.max()) > MAX_INT32:
        raise ValueError(f"lengths and mask_offsets must be at most {MAX_INT32}")
    if not np.isin(kind, (PREFILL, DECODE, VERIFY)).all():
        raise ValueError(f"kinds must be {PREFILL}, {DECODE} or {VERIFY}, got {kind.tolist()}")
    if (masks < -1).any():
        raise ValueError(f"mask_offsets must be >= -1, got {masks.tolist()}")
    return Rows(queries, keys, kind.astype(np.int64), masks)


def _column(values: IntLike) -> npt.NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"a column must be a list of integers, got {array.dtype} {array.shape}")
    return array.astype(np.int64)
