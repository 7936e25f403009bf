"""The copies of KV blocks that a step begins with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

KVCache = torch.Tensor | Sequence[torch.Tensor]

# Up to so many copies a slice each is fewer launches than gathering and scattering all (2).
_SLICES_AT_MOST = 2


def copy_blocks(
    kv_caches: Iterable[KVCache],
    num_blocks: int,
    copies: Sequence[tuple[int, int]],
) -> None:
    """Copy whole blocks within each layer's cache.

    On a CPU one memory copy a block and layer; on a device at most two launches a tensor.

    Args:
        kv_caches: a tensor ``[num_blocks * k, ...]`` a layer, or a tuple of them (keys and values
            apart, as on Ascend); written. Aliases of one cache are copied once.
        num_blocks: blocks of the scheduler; a cache may hold ``k`` kernel blocks for each.
        copies: ``(source, target)`` block ids. No target is a source, nor a target twice, so
            that the order does not matter.

    Raises:
        ValueError: a target is a source or a target twice, or a cache does not divide into blocks.
    """
    check_copies(copies)
    for cache in _tensors(kv_caches):
        kernel_blocks, remainder = divmod(cache.shape[0], num_blocks)
        if remainder or not kernel_blocks:
            raise ValueError(
                f"a KV cache of {cache.shape[0]} kernel blocks does not divide into {num_blocks=}"
            )
        if cache.is_cpu or len(copies) <= _SLICES_AT_MOST:
            _copy_slices(cache, kernel_blocks, copies)
        else:
            _gather_and_scatter(cache, kernel_blocks, copies)


def check_copies(copies: Sequence[tuple[int, int]]) -> None:
    """Raise `ValueError` for a target that is a source, or a target twice."""
    targets = {target for _, target in copies}
    if len(targets) != len(copies) or any(source in targets for source, _ in copies):
        raise ValueError(f"block copies of one step must not build on each other; got {copies}")


def _tensors(kv_caches: Iterable[KVCache]) -> Iterator[torch.Tensor]:
    """Each tensor once, whatever number of layers shares it."""
    seen: set[int] = set()
    for layer in kv_caches:
        for cache in (layer,) if isinstance(layer, torch.Tensor) else layer:
            if cache.data_ptr() not in seen:
                seen.add(cache.data_ptr())
                yield cache


def _copy_slices(
    cache: torch.Tensor, kernel_blocks: int, copies: Sequence[tuple[int, int]]
) -> None:
    for source, target in copies:
        first, last = source * kernel_blocks, (source + 1) * kernel_blocks
        place = target * kernel_blocks
        cache[place : place + kernel_blocks].copy_(cache[first:last])


def _gather_and_scatter(
    cache: torch.Tensor, kernel_blocks: int, copies: Sequence[tuple[int, int]]
) -> None:
    ids = torch.tensor(copies, dtype=torch.int64).T[:, :, None] * kernel_blocks
    sources, targets = (ids + torch.arange(kernel_blocks)).flatten(1).to(cache.device)
    cache.index_copy_(0, targets, cache.index_select(0, sources))
