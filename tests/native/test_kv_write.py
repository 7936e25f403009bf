"""The KV write: every kernel of the registry gives the twin's bytes, and none beside them."""

import pytest
import torch

from tests.helpers.attention import Layer, expected, make_batch, plan
from vllm_xyserve.ops import attention, registry
from vllm_xyserve.ops.reference import pages

KERNELS = [k for k in registry.kernels("kv_write") if k.isa != registry.REFERENCE and k.available]
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=[k.name for k in KERNELS])
pytestmark = pytest.mark.usefixtures("needs_native")


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@each_kernel
@pytest.mark.parametrize(("head_size", "block_size"), [(64, 32), (128, 16), (80, 48), (16, 128)])
@pytest.mark.parametrize("adjacent", [True, False])
def test_bytes_of_the_twin(
    kernel: registry.Kernel, head_size: int, block_size: int, adjacent: bool, rng: torch.Generator
) -> None:
    dtype = registry.DTYPES[kernel.dtype]
    cache = torch.randn(9, 3, block_size, 2 * head_size, generator=rng).to(dtype)
    num_slots = 9 * block_size
    slots = torch.arange(num_slots) if adjacent else torch.randperm(num_slots, generator=rng)
    slots = slots[5 : num_slots - 7].clone()
    slots[[0, 11, 40]] = -1
    # A slice of a fused projection: strides of more than the heads themselves.
    fused = torch.randn(len(slots) + 3, 12, head_size, generator=rng).to(dtype)
    key, value = fused[:, 2:5], fused[:, 6:9]
    want, got = cache.clone(), cache.clone()
    pages.write(want, key, value, slots)
    before = registry.calls()[kernel.name]
    with registry.isa_cap(kernel.isa):
        attention.kv_write(key, value, got, slots)
    assert registry.calls()[kernel.name] == before + 1
    assert same_bytes(got, want)


@each_kernel
@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3, 15, 16, 17, 33])
def test_few_tokens(kernel: registry.Kernel, num_tokens: int, rng: torch.Generator) -> None:
    dtype = registry.DTYPES[kernel.dtype]
    cache = torch.full((3, 2, 32, 128), torch.nan, dtype=dtype)
    kv = torch.randn(2, num_tokens, 2, 64, generator=rng).to(dtype)
    slots = torch.arange(num_tokens) + 31
    want = cache.clone()
    pages.write(want, kv[0], kv[1], slots)
    with registry.isa_cap(kernel.isa):
        attention.kv_write(kv[0], kv[1], cache, slots)
    assert same_bytes(cache, want)


def test_slots_outside_of_the_cache_are_refused() -> None:
    cache, kv = torch.zeros(2, 1, 32, 64), torch.zeros(1, 1, 32)
    with pytest.raises(RuntimeError, match="slots below 64"):
        attention.kv_write(kv, kv, cache, torch.tensor([64]))
    with pytest.raises(RuntimeError, match="key and value"):
        attention.kv_write(kv[..., :16], kv, cache, torch.tensor([1]))


def test_twins_of_one_step_share_blocks_that_one_of_them_writes(rng: torch.Generator) -> None:
    """K9: two equal prompts in one step, the second on the first one's two blocks."""
    layer = Layer(dtype=torch.bfloat16)
    for _ in range(20):
        batch = make_batch(layer, [(64, 64), (5, 69)], rng)
        batch.block_table[1, :2] = batch.block_table[0, :2]
        fresh = torch.full_like(batch.kv_cache, torch.nan)
        kv = torch.randn(2, 69, 3, 64, generator=rng).to(layer.dtype)
        blocks = batch.block_table[1, :3].long()
        slots = (blocks.unsqueeze(1) * 32 + torch.arange(32)).flatten()[:69]
        attention.kv_write(kv[0], kv[1], fresh, slots)
        batch.kv_cache = fresh
        out = torch.full_like(batch.query, torch.nan)
        attention.meta_attention(
            out,
            batch.query,
            fresh,
            batch.block_table,
            batch.seq_lens,
            batch.query_start_loc,
            plan(batch, num_cores=2),
            layer.scale,
        )
        assert (out.float() - expected(batch)).abs().max() < 2e-2
