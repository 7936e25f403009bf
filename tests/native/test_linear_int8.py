"""The int8 linear kernels: exact against integer references, for every kernel of the registry."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.compare import assert_close
from tests.native.linear_cases import poisoned_rows
from vllm_xyserve.ops import linear_int8 as ops
from vllm_xyserve.ops import registry
from vllm_xyserve.ops.reference import linear_int8 as reference

RUNNABLE = [
    k for k in registry.kernels("linear_int8") if k.isa != registry.REFERENCE and k.available
]
each_kernel = pytest.mark.parametrize("kernel", RUNNABLE, ids=[k.name for k in RUNNABLE])
pytestmark = pytest.mark.usefixtures("needs_native")


def weights(n: int, k: int, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    weight = torch.randint(-128, 128, (n, k), generator=rng).to(torch.int8)
    return weight, torch.rand(n, generator=rng) + 0.1


def check(
    kernel: registry.Kernel,
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    symmetric: bool = True,
) -> torch.Tensor:
    """Run exactly this kernel with dynamic quantisation, and require the twin's bits."""
    n = weight.shape[0]
    packed, sums = ops.linear_pack_int8(weight, scale)
    before = registry.calls()
    with registry.isa_cap(kernel.isa):
        out = ops.linear_int8(x, packed, scale, sums, bias, None, None, n, symmetric)
        rows = ops.quantize_rows(x, symmetric)
    after = registry.calls()
    for name in (kernel.name, kernel.name.replace("linear_int8", "quantize_rows")):
        assert (after[name] > before[name]) == (x.numel() > 0), f"{name}: wrong number of runs"
    expected = reference.quantize_rows(x, symmetric)
    for got, want in zip(rows, expected, strict=True):
        assert torch.equal(got, want), f"{kernel.name}: quantised rows differ"
    twin = reference.linear_int8(expected, weight, scale, bias, x.dtype)
    assert out.dtype == x.dtype
    assert torch.equal(out.reshape(twin.shape), twin), f"{kernel.name}: not exact"
    return out


def test_registry_has_all_kernels() -> None:
    assert {k.dtype for k in RUNNABLE if k.isa == "scalar"} == set(registry.DTYPES)


@each_kernel
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("k", "n"), [(3, 5), (1, 1), (2048, 1), (200, 77), (577, 97), (64, 64)])
def test_exact(
    kernel: registry.Kernel, k: int, n: int, symmetric: bool, rng: torch.Generator
) -> None:
    weight, scale = weights(n, k, rng)
    dtype = registry.DTYPES[kernel.dtype]
    bias = torch.randn(n, generator=rng).to(dtype)
    for m in (*range(9), 13, 25):
        check(kernel, poisoned_rows(m, k, dtype, rng), weight, scale, bias, symmetric)


@pytest.mark.parametrize(("m", "k", "n"), [(2, 3, 5), (1, 2048, 1), (4, 1024, 16), (33, 577, 961)])
def test_odd_shapes(m: int, k: int, n: int, rng: torch.Generator) -> None:
    weight, scale = weights(n, k, rng)
    kernel = next(k for k in RUNNABLE if k.name == best_name())
    check(kernel, poisoned_rows(m, k, torch.bfloat16, rng), weight, scale, None)


def test_every_eighth_k(rng: torch.Generator) -> None:
    kernel = next(k for k in RUNNABLE if k.name == best_name())
    for k in range(200, 1601, 8):
        weight, scale = weights(64, k, rng)
        check(kernel, poisoned_rows(1, k, torch.bfloat16, rng), weight, scale, None)


def best_name() -> str:
    return registry.chosen("linear_int8", torch.bfloat16).name


@each_kernel
def test_zeros_extremes_and_special_values(kernel: registry.Kernel, rng: torch.Generator) -> None:
    """A row of zeros gives the bias; +-127 everywhere does not overflow; NaN stays in its row."""
    dtype = registry.DTYPES[kernel.dtype]
    bias = torch.randn(40, generator=rng).to(dtype)
    weight = torch.full((40, 1536), 127, dtype=torch.int8)
    weight[1::2] = -128
    x = torch.ones(5, 1536, dtype=dtype)
    x[1] = 0.0
    x[2] = -1.0
    scale = torch.full((1,), 0.125)  # 1,536 * 127 alone is above the range of fp16
    out = check(kernel, x, weight, scale, bias)
    assert torch.equal(out[1], bias)
    exact = 0.125 * (x[2].double() @ weight.double().T) + bias.double()
    assert_close(out[2], exact, atol=2.0, rtol=2.0**-7, check_dtype=False)
    x[3, 7], x[4, 1535] = math.nan, -math.inf
    packed, sums = ops.linear_pack_int8(weight, scale)
    with registry.isa_cap(kernel.isa):
        spoilt = ops.linear_int8(x, packed, scale, sums, bias, None, None, 40)
    assert torch.equal(spoilt[:3], out[:3])
    assert spoilt[3:].isnan().all()


@each_kernel
@pytest.mark.parametrize("zero_point", [None, -128, 0, 9, 127])
def test_static(kernel: registry.Kernel, zero_point: int | None, rng: torch.Generator) -> None:
    dtype = registry.DTYPES[kernel.dtype]
    weight, scale = weights(45, 70, rng)
    packed, sums = ops.linear_pack_int8(weight, scale)
    x = (3 * torch.randn(2, 4, 70, generator=rng)).to(dtype)  # some values saturate
    input_scale = torch.tensor(0.02)
    zero = None if zero_point is None else torch.tensor([zero_point], dtype=torch.int32)
    with registry.isa_cap(kernel.isa):
        out = ops.linear_int8(x, packed, scale, sums, None, input_scale, zero, 45)
    rows = reference.quantize_rows_static(x, input_scale, zero)
    assert out.shape == (2, 4, 45)
    assert torch.equal(out.reshape(8, 45), reference.linear_int8(rows, weight, scale, None, dtype))


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(0, 40),
    n=st.integers(1, 150),
    k=st.integers(1, 300),
    symmetric=st.booleans(),
    kernel=st.sampled_from(RUNNABLE),
    seed=st.integers(0, 2**31 - 1),
)
def test_random_shapes(
    m: int, n: int, k: int, symmetric: bool, kernel: registry.Kernel, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    weight, scale = weights(n, k, rng)
    x = poisoned_rows(m, k, registry.DTYPES[kernel.dtype], rng)
    check(kernel, x, weight, scale, None, symmetric)


def test_close_to_the_unquantised_layer(rng: torch.Generator) -> None:
    """The whole path, weights quantised too, is within 1.5 % of fp64 on random data."""
    exact_weight = torch.randn(96, 512, generator=rng)
    scale = exact_weight.abs().amax(1) / 127
    weight = (exact_weight / scale[:, None]).round().to(torch.int8)
    packed, sums = ops.linear_pack_int8(weight, scale)
    x = torch.randn(17, 512, generator=rng)
    for symmetric in (True, False):
        out = ops.linear_int8(x, packed, scale, sums, None, None, None, 96, symmetric)
        exact = x.double() @ exact_weight.double().T
        error = (out.double() - exact).norm() / exact.norm()
        assert error < 0.015


def test_can_run_and_refusals() -> None:
    weight, scale = torch.ones(4, 8, dtype=torch.int8), torch.ones(4)
    assert ops.can_run(weight, scale, torch.bfloat16, None).ok
    assert "float64" in ops.can_run(weight, scale, torch.float64, None).reason
    assert "int8" in ops.can_run(weight.float(), scale, torch.bfloat16, None).reason
    assert "[1] or [N]" in ops.can_run(weight, torch.ones(3), torch.bfloat16, None).reason
    assert "not 1" in ops.can_run(weight, scale, torch.bfloat16, torch.ones(2)).reason
    wide = torch.empty(1, ops.MAX_K + 1, dtype=torch.int8)
    assert "overflow" in ops.can_run(wide, scale, torch.bfloat16, None).reason
    with pytest.raises(RuntimeError, match="overflow int32"):
        ops.linear_pack_int8(wide, torch.ones(1))
    packed, sums = ops.linear_pack_int8(weight, scale)
    x = torch.ones(2, 8)
    one = torch.ones(1, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="require input_scale with input_zero_point"):
        ops.linear_int8(x, packed, scale, sums, None, None, one, 4)
    with pytest.raises(RuntimeError, match="positive input_scale, got 0"):
        ops.linear_int8(x, packed, scale, sums, None, torch.zeros(1), None, 4)
    with pytest.raises(RuntimeError, match="from -128 to 127, got 200"):
        ops.linear_int8(x, packed, scale, sums, None, torch.ones(1), 200 * one, 4)
    with pytest.raises(RuntimeError, match="packed weight"):
        ops.linear_int8(x[:, :3], packed, scale, sums, None, None, None, 4)
    with pytest.raises(RuntimeError, match="weight \\[N, K\\] of dtype int8, got"):
        ops.linear_pack_int8(weight.float(), scale)
