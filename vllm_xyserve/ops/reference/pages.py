"""The inside of a KV page, in torch: the twin of what csrc/include/xyserve/attention.h describes.

A page is one (block, KV head): K half, then V half. Tokens lie in sub-blocks of 16, so one layout
serves every block size. 16-bit elements: K ``[block_size / 16, D / 2, 16, 2]``, V
``[block_size / 2, D, 2]``; fp32: K ``[block_size / 16, D, 16]``, V ``[block_size, D]``.
"""

from __future__ import annotations

import torch

SUB_BLOCK = 16


def key_view(kv_cache: torch.Tensor) -> torch.Tensor:
    """K of all pages as a view ``[num_blocks, heads, block_size / 16, 16, D / e, e]``.

    kv_cache: ``[num_blocks, heads, block_size, 2 * D]`` with contiguous pages. e: elements in 4
    bytes. The last two dimensions are a token's key.
    """
    size, width = kv_cache.shape[2:]
    dim, pair = width // 2, 4 // kv_cache.element_size()
    half = kv_cache.flatten(2)[..., : size * dim]
    view = half.view(*half.shape[:2], size // SUB_BLOCK, dim // pair, SUB_BLOCK, pair)
    return view.transpose(3, 4)


def value_view(kv_cache: torch.Tensor) -> torch.Tensor:
    """V of all pages as a view ``[num_blocks, heads, block_size / e, e, D]``."""
    size, width = kv_cache.shape[2:]
    dim, pair = width // 2, 4 // kv_cache.element_size()
    half = kv_cache.flatten(2)[..., size * dim :]
    return half.view(*half.shape[:2], size // pair, dim, pair).transpose(3, 4)


def unpack(kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Plain copies of K and V, ``[num_blocks, heads, block_size, D]`` each."""
    keys = key_view(kv_cache).flatten(4, 5).flatten(2, 3)
    return keys, value_view(kv_cache).flatten(2, 3)


def write(
    kv_cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Write new tokens in place.

    key, value: ``[num_tokens, heads, D]``. slot_mapping: ``[num_slots]`` integer, ``block *
    block_size + offset``; negative: skip.
    """
    block_size, pair = kv_cache.shape[2], 4 // kv_cache.element_size()
    tokens = torch.nonzero(slot_mapping >= 0).flatten()
    slots = slot_mapping[tokens].to(torch.int64)
    block, offset = slots // block_size, slots % block_size
    keys = key[tokens].to(kv_cache.dtype)
    keys = keys.view(*keys.shape[:2], keys.shape[2] // pair, pair)
    key_view(kv_cache)[block, :, offset // SUB_BLOCK, offset % SUB_BLOCK] = keys
    values = value[tokens].to(kv_cache.dtype)
    value_view(kv_cache)[block, :, offset // pair, offset % pair] = values
