"""Block copies against vLLM's own helper, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace

from vllm_xyserve.worker.block_copy import copy_blocks


@pytest.mark.parametrize("kernel_blocks", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_copies_what_vllm_copies(kernel_blocks: int, dtype: torch.dtype) -> None:
    caches = [torch.randn(12 * kernel_blocks, 3, 32, 16).to(dtype) for _ in range(3)]
    caches[1][5] = float("nan")
    expected = [cache.clone() for cache in caches]
    copies = [KVCacheBlockCopy(2, 7), KVCacheBlockCopy(2, 8), KVCacheBlockCopy(5, 11)]
    copy_blocks([*caches, caches[0]], 12, copies)
    copy_kv_cache_blocks_inplace(expected, 12, copies)
    for cache, want in zip(caches, expected, strict=True):
        assert torch.equal(cache.nan_to_num(9.0), want.nan_to_num(9.0))
        assert not torch.equal(cache[7 * kernel_blocks], cache[6 * kernel_blocks])


@pytest.mark.parametrize("copies", [[(1, 2), (2, 3)], [(1, 3), (2, 3)], [(1, 1)]])
def test_copies_that_build_on_each_other_are_refused(copies: list[tuple[int, int]]) -> None:
    cache = torch.randn(4, 2)
    before = cache.clone()
    with pytest.raises(ValueError, match="must not build on each other"):
        copy_blocks([cache], 4, copies)
    assert torch.equal(cache, before)


def test_a_cache_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="does not divide"):
        copy_blocks([torch.zeros(5, 2)], 4, [(0, 1)])


def test_no_copies_is_legal() -> None:
    copy_blocks([torch.zeros(4, 2)], 4, [])
