"""Block copies of caches whose keys and values are tensors of their own."""

from __future__ import annotations

import pytest
import torch

from vllm_xyserve.worker import block_copy

NUM_BLOCKS = 12


def caches(kernel_blocks: int, device: str = "cpu") -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two layers; a value cache has another width, as with MLA's."""
    shape = (NUM_BLOCKS * kernel_blocks, 8, 2)
    return [
        (torch.randn(*shape, 4, device=device), torch.randn(*shape, 3, device=device))
        for _ in range(2)
    ]


@pytest.mark.parametrize("kernel_blocks", [1, 2])
@pytest.mark.parametrize("copies", [[(1, 2)], [(3, 7), (3, 8), (11, 0), (5, 6)]])
def test_tuples(kernel_blocks: int, copies: list[tuple[int, int]]) -> None:
    layers = caches(kernel_blocks)
    before = [[side.clone() for side in layer] for layer in layers]
    block_copy.copy_blocks(layers, NUM_BLOCKS, copies)
    for layer, old in zip(layers, before, strict=True):
        for side, was in zip(layer, old, strict=True):
            expected = was.view(NUM_BLOCKS, kernel_blocks, *was.shape[1:]).clone()
            for source, target in copies:
                expected[target] = expected[source]
            assert torch.equal(side, expected.view_as(side))


@pytest.mark.parametrize("kernel_blocks", [1, 2])
def test_gather_and_scatter_does_the_same(kernel_blocks: int) -> None:
    """What a device runs for many copies, here on the CPU."""
    copies = [(3, 7), (3, 8), (11, 0)]
    (cache, _), _ = caches(kernel_blocks)
    expected = cache.clone()
    block_copy.copy_blocks([expected], NUM_BLOCKS, copies)
    block_copy._gather_and_scatter(cache, kernel_blocks, copies)
    assert torch.equal(cache, expected)


def test_layers_that_share_a_cache_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    key, value = caches(1)[0]
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(block_copy, "_copy_slices", lambda cache, *_: seen.append(cache))
    block_copy.copy_blocks([(key, value), (key, value)], NUM_BLOCKS, [(1, 2)])
    assert [id(cache) for cache in seen] == [id(key), id(value)]


def test_a_cache_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="13 kernel blocks does not divide into num_blocks=12"):
        block_copy.copy_blocks([(torch.zeros(13, 2), torch.zeros(12, 2))], NUM_BLOCKS, [(1, 2)])
