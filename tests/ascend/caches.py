"""KV-write and block-copy problems for the emulation: poisoned caches, and what must be in them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

UNUSED = -1


@dataclass(frozen=True, slots=True)
class WriteProblem:
    """One KV write. `slots` are given per token; `value_size` differs from `head_size` if set."""

    slots: tuple[int, ...]
    blocks: int = 6
    block_size: int = 128
    kv_heads: int = 2
    head_size: int = 64
    value_size: int = 0
    dtype: torch.dtype = torch.float16
    slot_dtype: torch.dtype = torch.int32
    gap: int = 0  # elements between the rows of two tokens, as in a fused QKV output
    block_gap: int = 0  # rows between two blocks
    cores: int = 4
    seed: int = 0


@dataclass(slots=True)
class WriteTensors:
    """Memory in the order of kv_write in tests/ascend/kernels.cc, and the caches expected."""

    key: torch.Tensor
    value: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    slots: torch.Tensor
    expected: tuple[torch.Tensor, torch.Tensor]
    numbers: list[int]


def _side(p: WriteProblem, size: int, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """New rows with a NaN gap behind each, and a cache that is NaN all over."""
    row = p.kv_heads * size
    rows = torch.full((len(p.slots), row + p.gap), float("nan"), dtype=p.dtype)
    rows[:, :row] = torch.randn(len(p.slots), row, generator=g).to(p.dtype)
    # A skipped token's row is not even read.
    rows[torch.tensor([s < 0 for s in p.slots], dtype=torch.bool)] = float("nan")
    cache = torch.full((p.blocks, p.block_size + p.block_gap, row), float("nan"), dtype=p.dtype)
    return rows, cache


def make_write(p: WriteProblem) -> WriteTensors:
    """Fresh inputs of a KV write."""
    g = torch.Generator().manual_seed(p.seed)
    key, key_cache = _side(p, p.head_size, g)
    value, value_cache = _side(p, p.value_size or p.head_size, g)
    expected = key_cache.clone(), value_cache.clone()
    numbers = [p.cores, len(p.slots), p.blocks, p.block_size]
    numbers.append(4 if p.slot_dtype == torch.int32 else 8)
    for rows, cache, want in zip((key, value), (key_cache, value_cache), expected, strict=True):
        row = cache.shape[2]
        for token, slot in enumerate(p.slots):
            if 0 <= slot < p.blocks * p.block_size:
                want[slot // p.block_size, slot % p.block_size] = rows[token, :row]
        size = cache.element_size()
        numbers += [row * size, rows.shape[1] * size, cache.stride(0) * size]
    slots = torch.tensor(p.slots, dtype=p.slot_dtype)
    return WriteTensors(key, value, key_cache, value_cache, slots, expected, numbers)


@dataclass(frozen=True, slots=True)
class CopyProblem:
    """One block copy. The caches have `rows` bytes per token."""

    pairs: tuple[tuple[int, int], ...]
    blocks: int = 8
    block_size: int = 128
    key_row: int = 256
    value_row: int = 256
    cores: int = 4
    seed: int = 0


@dataclass(slots=True)
class CopyTensors:
    """Memory in the order of block_copy in tests/ascend/kernels.cc, and the caches expected."""

    key_cache: torch.Tensor
    value_cache: torch.Tensor
    pairs: torch.Tensor
    expected: tuple[torch.Tensor, torch.Tensor]
    numbers: list[int]


def make_copy(p: CopyProblem) -> CopyTensors:
    """Fresh caches of random bytes, and what a copy makes of them."""
    g = torch.Generator().manual_seed(p.seed)
    numbers = [p.cores, len(p.pairs), p.blocks, p.block_size]
    caches, expected = [], []
    for row in (p.key_row, p.value_row):
        shape = (p.blocks, p.block_size, row)
        cache = torch.randint(0, 256, shape, generator=g, dtype=torch.uint8)
        want = cache.clone()
        for source, target in p.pairs:
            if 0 <= source < p.blocks and 0 <= target < p.blocks:
                want[target] = cache[source]
        caches.append(cache)
        expected.append(want)
        numbers += [row, row, cache.stride(0)]
    pairs = torch.tensor(p.pairs, dtype=torch.int64).reshape(-1, 2)
    return CopyTensors(caches[0], caches[1], pairs, (expected[0], expected[1]), numbers)
