"""Meta-Attention and the KV write in front of it."""

from __future__ import annotations

from typing import Final

import torch

from vllm_xyserve.ops import native, registry
from vllm_xyserve.ops.checks import check_kv_write, check_meta_attention
from vllm_xyserve.ops.reference import attention as reference
from vllm_xyserve.ops.reference import pages

# Resolved at import, so that torch.compile sees a constant and a call costs no look-up.
_STATUS: Final = native.load()
_NATIVE: Final = _STATUS.loaded

# Places of task-table fields in 4-byte units (csrc/include/xyserve/task_table.h; a test compares).
FLAGS_AT: Final = 5
WINDOW_AT: Final = 9
NUM_SEGMENTS_AT: Final = 13
NUM_PARTIAL_ROWS_AT: Final = 18
SEGMENTS_AT: Final = 22
SEGMENT_SIZE: Final = 8
BATCH_ROW_AT: Final = 1
QUERY_LEN_AT: Final = 3
MASK_OFFSET_AT: Final = 5
FLAG_CAUSAL: Final = 1
# Floats of a partial row beyond its head_size values.
PARTIAL_TAIL: Final = 16


def supports(
    *, dtype: torch.dtype, head_size: int, block_size: int, device: str = "cpu"
) -> registry.Support:
    """Whether `kv_write` and `meta_attention` run natively for a layer, with the reason if not."""
    if head_size % 16 or not 16 <= head_size <= 512:
        return registry.Support(False, f"head sizes are multiples of 16 up to 512, got {head_size}")
    if block_size % pages.SUB_BLOCK or block_size < pages.SUB_BLOCK:
        return registry.Support(False, f"block sizes are multiples of 16, got {block_size}")
    return registry.supports("meta_attention", dtype=dtype, device=device)


def kv_write(
    key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Write the step's new keys and values into their pages; complete when it returns.

    key, value: [>= num_slots, num_kv_heads, head_size], elements of a head adjacent, rows beyond
    the slots ignored. kv_cache: [num_blocks, num_kv_heads, block_size, 2 * head_size], pages
    contiguous, inside layout `reference.pages`; fp32, bf16 or fp16 like key and value.
    slot_mapping: [num_slots] int64, block * block_size + offset; negative: skip. Two tokens must
    not share a slot.

    Raises RuntimeError for other shapes, dtypes or strides, ValueError for an unusable XYSERVE_ISA.
    """
    if _NATIVE and kv_cache.is_cpu:
        torch.ops.xyserve.kv_write(key, value, kv_cache, slot_mapping)
        return
    if _STATUS.misconfigured:
        raise ValueError(_STATUS.reason)
    check_kv_write(key, value, kv_cache, slot_mapping)
    registry.count_reference("kv_write")
    pages.write(kv_cache, key, value, slot_mapping)


def meta_attention(
    out: torch.Tensor,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    table: torch.Tensor,
    scale: float,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    tree_mask: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """Attention of every row's new tokens over its own pages, as the task table says.

    out, query: [num_tokens, num_heads, head_size]; only the tokens of the table's rows are written.
    kv_cache: as for `kv_write`, which has run for all new tokens. block_table: [num_rows,
    max_blocks] int32; only entries that hold a needed key are read. seq_lens: [num_rows] int32,
    tokens of a row with this step's, at most what the table was planned for. query_start_loc:
    [num_rows + 1] int32. table: a completed table of `plan`, uint8 or int32; it fixes causality,
    window, head geometry and the number of lists, of which each thread walks one or several.
    softcap: 0 for none. alibi_slopes, sinks: [num_heads] fp32. tree_mask: int64 words; at a
    segment's mask offset query_len bit rows of ceil(query_len / 64) words, bit j of row i: query i
    sees new token j. It narrows causality. workspace: fp32, `workspace_floats` of the table; None:
    a buffer that the calling thread keeps. fp32 arithmetic; weights are rounded to bf16 once if the
    kernel multiplies bf16. A row that sees no key gives zeros. No gradient.

    Raises RuntimeError for other shapes, dtypes or strides, a table of another batch, or a needed
    block outside of the cache; ValueError for an unusable XYSERVE_ISA.
    """
    if _NATIVE and query.is_cpu:
        torch.ops.xyserve.meta_attention(
            out,
            query,
            kv_cache,
            block_table,
            seq_lens,
            query_start_loc,
            table,
            scale,
            softcap,
            alibi_slopes,
            sinks,
            tree_mask,
            workspace,
        )
        return
    if _STATUS.misconfigured:
        raise ValueError(_STATUS.reason)
    check_meta_attention(out, query, kv_cache, block_table, seq_lens, query_start_loc)
    registry.count_reference("meta_attention")
    window = int(_words(table)[WINDOW_AT]) or None
    params = reference.AttentionParams(scale, window, softcap, alibi_slopes, sinks)
    _run_reference(
        out, query, kv_cache, block_table, seq_lens, query_start_loc, table, params, tree_mask
    )


def workspace_floats(table: torch.Tensor, head_size: int) -> int:
    """fp32 elements that a table needs as `workspace`."""
    return int(_words(table)[NUM_PARTIAL_ROWS_AT]) * (head_size + PARTIAL_TAIL)


def _words(table: torch.Tensor) -> torch.Tensor:
    return table.view(torch.int32)


def tree_masks(
    table: torch.Tensor, tree_mask: torch.Tensor | None, num_rows: int
) -> list[torch.Tensor | None]:
    """The bit rows of each batch row as bool [query_len, query_len], None where there are none."""
    words = _words(table)
    first, count = int(words[SEGMENTS_AT]) // 4, int(words[NUM_SEGMENTS_AT])
    segments = words[first : first + count * SEGMENT_SIZE].view(count, SEGMENT_SIZE).tolist()
    masks: list[torch.Tensor | None] = [None] * num_rows
    for segment in segments:
        at, length = segment[MASK_OFFSET_AT], segment[QUERY_LEN_AT]
        if tree_mask is None or at < 0:
            continue
        per_row = -(-length // 64)
        rows = tree_mask[at : at + length * per_row].view(length, per_row)
        bits = rows.unsqueeze(-1) >> torch.arange(64)
        masks[segment[BATCH_ROW_AT]] = (bits & 1).bool().flatten(1)[:, :length]
    return masks


def _run_reference(
    out: torch.Tensor,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    table: torch.Tensor,
    params: reference.AttentionParams,
    tree_mask: torch.Tensor | None,
) -> None:
    """Unpack the pages that the rows name, and run the plain twin over them."""
    num_valid = -(-seq_lens // kv_cache.shape[2])
    named = torch.arange(block_table.shape[1]) < num_valid.unsqueeze(1)
    used, index = torch.unique(block_table[named], return_inverse=True)
    local = torch.zeros_like(block_table)
    local[named] = index.to(local.dtype)
    keys, values = pages.unpack(kv_cache[used.to(torch.int64)])
    reference.paged_attention(
        out,
        query,
        keys,
        values,
        query_start_loc,
        seq_lens,
        local,
        bool(_words(table)[FLAGS_AT] & FLAG_CAUSAL),
        params,
        tree_masks(table, tree_mask, len(seq_lens)),
    )
