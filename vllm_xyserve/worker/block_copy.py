"""The copies of KV blocks that a step begins with, on a CPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


def copy_blocks(
    kv_caches: Iterable[torch.Tensor],
    num_blocks: int,
    copies: Sequence[tuple[int, int]],
) -> None:
    """Copy whole blocks within each layer's cache, one memory copy a block and layer.

    Args:
        kv_caches: ``[num_blocks * k, ...]`` each, written; aliases of one cache are copied once.
        num_blocks: blocks of the scheduler; a cache may hold ``k`` kernel blocks for each.
        copies: ``(source, target)`` block ids. No target is a source, nor a target twice, so
            that the order does not matter.

    Raises:
        ValueError: a target is a source or a target twice, or a cache does not divide into blocks.
    """
    targets = {target for _, target in copies}
    if len(targets) != len(copies) or any(source in targets for source, _ in copies):
        raise ValueError(f"block copies of one step must not build on each other; got {copies}")
    seen: set[int] = set()
    for cache in kv_caches:
        if cache.data_ptr() in seen:
            continue
        seen.add(cache.data_ptr())
        kernel_blocks, remainder = divmod(cache.shape[0], num_blocks)
        if remainder:
            raise ValueError(
                f"a KV cache of {cache.shape[0]} kernel blocks does not divide into {num_blocks=}"
            )
        for source, target in copies:
            first, last = source * kernel_blocks, (source + 1) * kernel_blocks
            place = target * kernel_blocks
            cache[place : place + kernel_blocks].copy_(cache[first:last])
