"""The linear kernels: every kernel of the registry against fp64, in poisoned memory."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.compare import assert_close
from tests.native.linear_cases import (
    SENTINEL,
    Layer,
    assert_linear,
    layer,
    poisoned_rows,
)
from vllm_xyserve.ops import linear as ops
from vllm_xyserve.ops import registry
from vllm_xyserve.ops.reference import linear as reference

KERNELS = [k for k in registry.kernels("linear") if k.isa != registry.REFERENCE]
RUNNABLE = [k for k in KERNELS if k.available]
each_kernel = pytest.mark.parametrize("kernel", RUNNABLE, ids=[k.name for k in RUNNABLE])
each_dtype = pytest.mark.parametrize("dtype", registry.DTYPES.values(), ids=str)
pytestmark = pytest.mark.usefixtures("needs_native")

ROW_COUNTS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65)
MANY_ROWS = (127, 128, 129, 255, 256, 257)


def run(kernel: registry.Kernel, x: torch.Tensor, of: Layer, packed: torch.Tensor) -> torch.Tensor:
    """Run exactly this kernel, and prove it by its counter."""
    before = registry.calls()[kernel.name]
    with registry.isa_cap(kernel.isa):
        out = ops.linear(x, packed, of.bias, of.weight.shape[0])
    ran = registry.calls()[kernel.name] - before
    assert ran == (1 if x.numel() else 0), f"{kernel.name} ran {ran} times"
    return out


def test_registry_has_a_kernel_for_each_dtype_and_scalar_for_all() -> None:
    assert {k.dtype for k in KERNELS if k.isa == "scalar"} == set(registry.DTYPES)
    assert len(RUNNABLE) >= len(registry.DTYPES)


@each_kernel
@pytest.mark.parametrize(
    ("k", "n"), [(3, 5), (1, 1), (2, 64), (77, 31), (64, 33), (200, 97), (129, 160)]
)
def test_every_row_count(kernel: registry.Kernel, k: int, n: int, rng: torch.Generator) -> None:
    """Odd N and K, and one to 14 rows: every tile of every kernel, with its neighbours NaN."""
    dtype = registry.DTYPES[kernel.dtype]
    of = layer(n, k, dtype, rng)
    packed = ops.linear_pack(of.weight)
    for m in (*range(15), 25, 33):
        x = poisoned_rows(m, k, dtype, rng)
        assert_linear(run(kernel, x, of, packed), of.exact(x), of.terms(x), kernel.name)


@each_dtype
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("k", "n"), [(576, 960), (576, 576), (576, 3072), (1536, 576)])
def test_model_shapes(k: int, n: int, bias: bool, dtype: torch.dtype, rng: torch.Generator) -> None:
    """All row counts give the bits that the same rows have among 1,023."""
    of = layer(n, k, dtype, rng, bias=bias)
    packed = ops.linear_pack(of.weight)
    x = poisoned_rows(1023 if dtype == torch.bfloat16 else 257, k, dtype, rng)
    whole = ops.linear(x, packed, of.bias, n)
    assert_linear(whole[:33], of.exact(x[:33]), of.terms(x[:33]))
    assert_close(whole, of.exact(x), atol=0.5, rtol=2e-2, check_dtype=False)
    for m in (*ROW_COUNTS, *MANY_ROWS):
        assert torch.equal(ops.linear(x[:m], packed, of.bias, n), whole[:m]), f"{m} rows"


def test_output_head(rng: torch.Generator) -> None:
    of = layer(49152, 576, torch.bfloat16, rng, bias=False)
    packed = ops.linear_pack(of.weight)
    x = poisoned_rows(33, 576, torch.bfloat16, rng)
    whole = ops.linear(x, packed, None, 49152)
    assert_linear(whole[:3], of.exact(x[:3]), of.terms(x[:3]))
    for m in (1, 2, 7, 16):
        assert torch.equal(ops.linear(x[:m], packed, None, 49152), whole[:m])


@each_kernel
def test_row_does_not_depend_on_its_neighbours(
    kernel: registry.Kernel, rng: torch.Generator
) -> None:
    """Row i alone, anywhere among others, on one thread and on more: the same bits."""
    dtype = registry.DTYPES[kernel.dtype]
    of = layer(416, 130, dtype, rng)
    packed = ops.linear_pack(of.weight)
    x = poisoned_rows(29, 130, dtype, rng)
    whole = run(kernel, x, of, packed)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(run(kernel, x, of, packed), whole)
    finally:
        torch.set_num_threads(threads)
    order = torch.randperm(29, generator=rng)
    assert torch.equal(run(kernel, x[order], of, packed), whole[order])
    for i in (0, 5, 28):
        assert torch.equal(run(kernel, x[i : i + 1], of, packed), whole[i : i + 1])


@each_kernel
def test_special_values_stay_in_their_row(kernel: registry.Kernel, rng: torch.Generator) -> None:
    dtype = registry.DTYPES[kernel.dtype]
    of = layer(40, 9, dtype, rng)
    packed = ops.linear_pack(of.weight)
    x = torch.randn(13, 9, generator=rng).to(dtype)
    clean = run(kernel, x, of, packed)
    x[4, 8], x[9, 0] = math.nan, math.inf
    out = run(kernel, x, of, packed)
    others = [i for i in range(13) if i not in (4, 9)]
    assert torch.equal(out[others], clean[others])
    assert out[4].isnan().all()
    assert not out[9].isfinite().any()


@each_dtype
def test_out_writes_its_rows_only(dtype: torch.dtype, rng: torch.Generator) -> None:
    """Guards before, between and after the rows keep their value, for whole and odd panels."""
    for n, k, m in ((64, 33, 7), (33, 20, 13), (1, 5, 3), (97, 64, 1)):
        of = layer(n, k, dtype, rng)
        memory = torch.full((m + 2, n + 6), SENTINEL, dtype=dtype)
        out = memory[1 : m + 1, 3 : 3 + n]
        x = poisoned_rows(m, k, dtype, rng)
        ops.linear_out(out, x, ops.linear_pack(of.weight), of.bias, n)
        assert_linear(out, of.exact(x), of.terms(x))
        out.fill_(SENTINEL)
        assert (memory == SENTINEL).all()


@each_dtype
def test_inputs_of_any_form(dtype: torch.dtype, rng: torch.Generator) -> None:
    """More dimensions, none but the last, transposed, expanded and sliced inputs."""
    of = layer(70, 24, dtype, rng)
    packed = ops.linear_pack(of.weight)
    base = torch.randn(6, 24, 5, generator=rng).to(dtype)
    forms = [
        base.transpose(1, 2),
        base[:, :, 2],
        base[:, :, 0].T.contiguous().T,
        base.transpose(1, 2)[::2, 1:4],
        torch.randn(24, generator=rng).to(dtype),
        torch.randn(1, 24, generator=rng).to(dtype).expand(4, 24),
        torch.randn(2, 3, 24, generator=rng).to(dtype),
        torch.empty(2, 0, 24, dtype=dtype),
    ]
    for x in forms:
        out = ops.linear(x, packed, of.bias, 70)
        assert out.shape == (*x.shape[:-1], 70)
        assert out.is_contiguous()
        assert_linear(out, of.exact(x), of.terms(x), name=str(x.stride()))


def test_pack_takes_any_strides(rng: torch.Generator) -> None:
    for dtype in registry.DTYPES.values():
        weight = torch.randn(37, 50, generator=rng).to(dtype)
        packed = ops.linear_pack(weight)
        assert packed.numel() == ops.packed_elements(37, 50, dtype)
        assert torch.equal(ops.linear_pack(weight.T.contiguous().T), packed)
        assert torch.equal(ops.linear_pack(weight.repeat(1, 2)[:, :50]), packed)
        assert packed.count_nonzero() == weight.count_nonzero()


@each_kernel
def test_silu_mul(kernel: registry.Kernel, rng: torch.Generator) -> None:
    dtype = registry.DTYPES[kernel.dtype]
    for d, k in ((64, 48), (32, 7), (5, 16), (33, 20)):  # the last two do not fill panels
        of = layer(2 * d, k, dtype, rng)
        packed = ops.linear_pack(of.weight)
        for m in (0, 1, 5, 14):
            x = poisoned_rows(m, k, dtype, rng)
            with registry.isa_cap(kernel.isa):
                out = ops.linear_silu_mul(x, packed, of.bias, 2 * d)
            twin = reference.linear_silu_mul(x.float(), of.weight.float(), of.bias.float())
            tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
            atol = tolerance * (twin.abs().max().item() if m else 1.0)
            assert_close(
                out, twin, atol=atol, rtol=tolerance, check_dtype=False, allow_empty=m == 0
            )


@each_kernel
def test_add(kernel: registry.Kernel, rng: torch.Generator) -> None:
    dtype = registry.DTYPES[kernel.dtype]
    for n, k in ((64, 48), (37, 7)):
        of = layer(n, k, dtype, rng)
        packed = ops.linear_pack(of.weight)
        for m in (0, 1, 5, 14):
            x, residual = poisoned_rows(m, k, dtype, rng), poisoned_rows(m, n, dtype, rng)
            with registry.isa_cap(kernel.isa):
                out = ops.linear_add(x, packed, of.bias, n, residual)
            exact = of.exact(x) + residual.double()
            assert_linear(out, exact, of.terms(x) + residual.double().abs(), kernel.name)


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(0, 70),
    n=st.integers(1, 200),
    k=st.integers(1, 300),
    bias=st.booleans(),
    kernel=st.sampled_from(RUNNABLE),
    seed=st.integers(0, 2**31 - 1),
)
def test_random_shapes(
    m: int, n: int, k: int, bias: bool, kernel: registry.Kernel, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    dtype = registry.DTYPES[kernel.dtype]
    of = layer(n, k, dtype, rng, bias=bias)
    x = poisoned_rows(m, k, dtype, rng)
    out = run(kernel, x, of, ops.linear_pack(of.weight))
    assert_linear(out, of.exact(x), of.terms(x), kernel.name)


FIRST_AND_TENTH = """
import torch
from vllm_xyserve.ops import linear as ops
x, packed = torch.randn(17, 576).bfloat16(), ops.linear_pack(torch.randn(960, 576).bfloat16())
first = ops.linear(x, packed, None, 960)
later = [ops.linear(x, packed, None, 960) for _ in range(9)]
print(all(torch.equal(first, out) for out in later), bool(first.isfinite().all()))
"""


def test_first_call_of_a_process_equals_the_tenth() -> None:
    result = subprocess.run(
        [sys.executable, "-c", FIRST_AND_TENTH], capture_output=True, text=True, timeout=120
    )
    assert result.stdout.strip() == "True True", result.stderr


def test_refusals_say_what_was_required() -> None:
    weight = torch.randn(8, 6)
    packed = ops.linear_pack(weight)
    x, out = torch.randn(3, 6), torch.empty(3, 8)
    with pytest.raises(RuntimeError, match=r"linear_pack on a weight \[8, 7\]"):
        ops.linear(torch.randn(3, 7), packed, None, 8)
    with pytest.raises(RuntimeError, match="packed weight of x's dtype BFloat16, got Float"):
        ops.linear(x.bfloat16(), packed, None, 8)
    with pytest.raises(RuntimeError, match=r"bias \[8\] of dtype Float, got \[9\]"):
        ops.linear(x, packed, torch.randn(9), 8)
    with pytest.raises(RuntimeError, match=r"linear_pack: require weight \[N, K\], got \[8\]"):
        ops.linear_pack(torch.randn(8))
    with pytest.raises(RuntimeError, match="float32, bfloat16 or float16, got Int"):
        ops.linear_pack(torch.ones(8, 6, dtype=torch.int32))
    with pytest.raises(RuntimeError, match="even number of output columns"):
        ops.linear_silu_mul(x, ops.linear_pack(torch.randn(7, 6)), None, 7)
    with pytest.raises(RuntimeError, match="rows that do not overlap"):
        ops.linear_out(torch.empty(1, 8).expand(3, 8), x, packed, None, 8)
    with pytest.raises(RuntimeError, match="require out with the leading dimensions"):
        ops.linear_out(out[:2], x, packed, None, 8)
    with pytest.raises(RuntimeError, match="require residual with the leading dimensions"):
        ops.linear_add(x, packed, None, 8, torch.randn(3, 7))


@each_kernel
def test_long_k_in_blocks(kernel: registry.Kernel, rng: torch.Generator) -> None:
    """K of several blocks, odd too; blocked and unblocked row counts give the same bits."""
    dtype = registry.DTYPES[kernel.dtype]
    for k in (4097, 6145):
        of = layer(70, k, dtype, rng)
        packed = ops.linear_pack(of.weight)
        x = poisoned_rows(3 if kernel.isa == "scalar" else 201, k, dtype, rng)
        whole = run(kernel, x, of, packed)
        assert_linear(whole, of.exact(x), of.terms(x), kernel.name)
        assert torch.equal(run(kernel, x[1:2], of, packed), whole[1:2])
