"""The plain fp32 twin of Meta-Attention: any mix of rows over a paged KV cache, one row at a time.

Pages here are plain: K and V of a block lie as ``[num_kv_heads, block_size, head_size]`` each.
`pages` converts them from and to the kernels' layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """What a layer fixes for all of its rows.

    Attributes:
        scale: factor on the scores.
        window: keys that a row sees, itself included; None for all.
        softcap: scores become ``softcap * tanh(score / softcap)``; 0 leaves them.
        alibi_slopes: ``[num_heads]`` fp32 or None; adds ``slope * (key - query position)``.
        sinks: ``[num_heads]`` or None; one more logit per head, without a value.
    """

    scale: float
    window: int | None = None
    softcap: float = 0.0
    alibi_slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None


def write_kv(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Write the step's new keys and values into their pages.

    Args:
        key_cache, value_cache: ``[num_blocks, num_kv_heads, block_size, head_size]``, written.
        key, value: ``[num_tokens, num_kv_heads, head_size]``; rows beyond the slots are ignored.
        slot_mapping: ``[num_slots]`` integer, ``block * block_size + offset``; negative: skip.
    """
    block_size = key_cache.shape[2]
    tokens = torch.nonzero(slot_mapping >= 0).flatten()
    slots = slot_mapping[tokens].to(torch.int64)
    blocks, offsets = slots // block_size, slots % block_size
    key_cache[blocks, :, offsets] = key[tokens].to(key_cache.dtype)
    value_cache[blocks, :, offsets] = value[tokens].to(value_cache.dtype)


def paged_attention(
    out: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    causal: bool | torch.Tensor,
    params: AttentionParams,
    tree_masks: Sequence[torch.Tensor | None] | None = None,
) -> None:
    """Attention of every row's new tokens over its own keys, computed in fp32.

    A row is a request's query tokens of this step: the last ``query_len`` of its ``seq_len``
    tokens. Only valid keys and values are read, so whatever else the pages hold is inert.

    Args:
        out: ``[num_tokens, num_heads, head_size]``; only the rows' tokens are written.
        query: ``[num_tokens, num_heads, head_size]``.
        key_cache, value_cache: ``[num_blocks, num_kv_heads, block_size, head_size]``.
        query_start_loc: ``[num_rows + 1]`` int; bounds of each row's tokens.
        seq_lens: ``[num_rows]`` int; tokens of the request with this step's. May be zero.
        block_table: ``[num_rows, max_blocks]`` int; entries beyond a row's blocks are not read.
        causal: for all rows, or ``[num_rows]`` bool.
        params: the layer's constants.
        tree_masks: per row, bool ``[query_len, query_len]`` or None: which of the row's new tokens
            a query sees, beside all of the history. It narrows causality and window.
    """
    starts = query_start_loc.tolist()
    block_size = key_cache.shape[2]
    for row, seq_len in enumerate(seq_lens.tolist()):
        tokens = slice(starts[row], starts[row + 1])
        if tokens.start == tokens.stop:
            continue
        blocks = block_table[row, : -(-seq_len // block_size)].to(torch.int64)
        keys = _gather(key_cache, blocks, seq_len)
        values = _gather(value_cache, blocks, seq_len)
        row_causal = bool(causal[row]) if isinstance(causal, torch.Tensor) else causal
        tree = None if tree_masks is None else tree_masks[row]
        out[tokens] = _attend(query[tokens], keys, values, row_causal, params, tree).to(out.dtype)


def _gather(cache: torch.Tensor, blocks: torch.Tensor, seq_len: int) -> torch.Tensor:
    """``[num_kv_heads, seq_len, head_size]`` fp32, from a row's pages."""
    pages = cache[blocks].transpose(0, 1)
    return pages.flatten(1, 2)[:, :seq_len].to(torch.float32)


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    causal: bool,
    params: AttentionParams,
    tree: torch.Tensor | None = None,
) -> torch.Tensor:
    """One row: query ``[q, heads, dim]``, keys and values ``[kv_heads, s, dim]``; gives query's."""
    num_tokens, num_heads, head_size = query.shape
    num_kv_heads, seq_len = keys.shape[:2]
    grouped = query.to(torch.float32).transpose(0, 1)
    grouped = grouped.reshape(num_kv_heads, num_heads // num_kv_heads * num_tokens, head_size)
    scores = torch.matmul(grouped, keys.transpose(1, 2)) * params.scale
    scores = scores.view(num_heads, num_tokens, seq_len)
    if params.softcap:
        scores = params.softcap * torch.tanh(scores / params.softcap)

    query_pos = torch.arange(seq_len - num_tokens, seq_len).unsqueeze(1)
    distance = query_pos - torch.arange(seq_len).unsqueeze(0)
    if params.alibi_slopes is not None:
        scores = scores - params.alibi_slopes.to(torch.float32)[:, None, None] * distance
    hidden = distance < 0 if causal else torch.zeros_like(distance, dtype=torch.bool)
    if params.window is not None:
        hidden = hidden | (distance.abs() >= params.window)
    if tree is not None:
        hidden[:, seq_len - num_tokens :] |= ~tree
    scores = scores.masked_fill(hidden, float("-inf"))

    weights = _softmax(scores, params.sinks)
    weights = weights.view(num_kv_heads, -1, seq_len)
    out = torch.matmul(weights, values).view(num_heads, num_tokens, head_size)
    return out.transpose(0, 1)


def _softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Softmax over the last axis with the sinks' share of the sum; zeros where nothing is seen."""
    if sinks is not None:
        sink = sinks.to(torch.float32)[:, None, None].expand(*scores.shape[:2], 1)
        scores = torch.cat([scores, sink], dim=-1)
    top = scores.amax(dim=-1, keepdim=True) if scores.shape[-1] else scores.sum(-1, keepdim=True)
    shifted = torch.exp(scores - top.masked_fill(torch.isneginf(top), 0.0))
    total = shifted.sum(dim=-1, keepdim=True)
    weights = shifted / total.masked_fill(total == 0.0, 1.0)
    return weights if sinks is None else weights[..., :-1]
