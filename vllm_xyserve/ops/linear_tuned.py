"""Hands measured choices for linear layers to the native kernels.

The table is the process's: a call looks its shape up in C++, in some ten nanoseconds, and nothing
of it reaches Python or compiled graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from vllm_xyserve.ops.linear import need_native

# Words of a row, all of them whole numbers. dtype, isa: index in DTYPES below and in `isa.ISAS`.
# From tile_rows on 0 leaves a choice to the rule: LinearTuning in csrc/include/xyserve.
TUNED_COLUMNS: Final = (
    "dtype",
    "isa",
    "threads",
    "n",
    "k",
    "m_first",
    "m_last",
    "tile_rows",
    "block_steps",
    "use_threads",
    "row_parts",
    "pass_rows",
    "pass_panels",
    "split_k",
)
DTYPES: Final = ("f32", "bf16", "f16")


def set_tuned(rows: Sequence[Sequence[int]]) -> None:
    """Replace the process's table by ``rows`` of the words in `TUNED_COLUMNS`.

    Rows of one (dtype, isa, threads, n, k) must not overlap in m. Raises RuntimeError if the native
    library is not loaded, or for words that mean nothing.
    """
    need_native()
    table = torch.tensor(rows, dtype=torch.int64).reshape(len(rows), len(TUNED_COLUMNS))
    torch.ops.xyserve.linear_set_tuned(table)


def tuned_calls() -> int:
    """How many calls of this process found a row."""
    need_native()
    return int(torch.ops.xyserve.linear_tuned_calls())
