"""silu_and_mul: every kernel of the registry against the fp32 twin and against fp64."""

import ctypes
import math
import mmap

import pytest
import torch

from tests.helpers.compare import assert_close
from vllm_xyserve.ops import registry
from vllm_xyserve.ops.activation import silu_and_mul
from vllm_xyserve.ops.reference import activation as reference

KERNELS = [k for k in registry.kernels("silu_and_mul") if k.isa != registry.REFERENCE]
RUNNABLE = [k for k in KERNELS if k.available]
each_kernel = pytest.mark.parametrize("kernel", RUNNABLE, ids=[k.name for k in RUNNABLE])
pytestmark = pytest.mark.usefixtures("needs_native")

# Rounding of the result, as a share of it: half a unit in the last place, which is 2^-8 for bf16
# and 2^-11 for fp16 at worst; and fp32 arithmetic before it (measured bound in docs/native.md).
FP32_ERROR = 4.0 * 2.0**-24
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
# Half the smallest subnormal.
UNDERFLOW = {torch.float32: 2.0**-150, torch.bfloat16: 2.0**-134, torch.float16: 2.0**-25}
# silu(-88.73): where e^-g overflows to infinity the answer is -0 instead of -2.6e-37.
EXP_OVERFLOW = 3e-37


def run(kernel: registry.Kernel, out: torch.Tensor, x: torch.Tensor) -> None:
    """Run exactly this kernel, and prove it by its counter."""
    before = registry.calls()[kernel.name]
    with registry.isa_cap(kernel.isa):
        silu_and_mul(out, x)
    assert registry.calls()[kernel.name] == before + 1, f"{kernel.name} did not run"


def exact(x: torch.Tensor) -> torch.Tensor:
    """The answer in fp64."""
    gate, up = x.double().chunk(2, dim=-1)
    return gate / (1.0 + torch.exp(-gate)) * up


def assert_rounded(kernel: registry.Kernel, out: torch.Tensor, x: torch.Tensor) -> None:
    """Require the fp64 answer rounded once, up to the fp32 error, for finite answers."""
    up = x.chunk(2, dim=-1)[1].double().abs().max().item()
    assert_close(
        out.double(),
        exact(x),
        atol=UNDERFLOW[out.dtype] + EXP_OVERFLOW * up,
        rtol=ROUNDING[out.dtype] + 1.01 * FP32_ERROR,
        name=kernel.name,
    )


def dtype_of(kernel: registry.Kernel) -> torch.dtype:
    return registry.DTYPES[kernel.dtype]


def test_registry_has_a_kernel_for_each_dtype_and_scalar_for_all() -> None:
    assert {k.dtype for k in KERNELS} == set(registry.DTYPES)
    assert {k.dtype for k in KERNELS if k.isa == "scalar"} == set(registry.DTYPES)
    assert len(RUNNABLE) >= len(registry.DTYPES)


@each_kernel
@pytest.mark.parametrize("d", [1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 1536, 1537])
def test_random(kernel: registry.Kernel, d: int, rng: torch.Generator) -> None:
    for num_rows in (1, 3, 130):
        x = (8 * torch.randn(num_rows, 2 * d, generator=rng)).to(dtype_of(kernel))
        out = torch.full((num_rows, d), math.nan, dtype=x.dtype)
        run(kernel, out, x)
        assert_rounded(kernel, out, x)


@each_kernel
def test_rows_in_poisoned_memory(kernel: registry.Kernel, rng: torch.Generator) -> None:
    """NaN between the rows of x changes nothing, and nothing between the rows of out is written."""
    for d in (1, 5, 16, 37):
        for start in (0, 1, 3):  # misaligned starts
            x_pool = torch.full((9, 2 * d + 11), math.nan, dtype=dtype_of(kernel))
            x = x_pool[:, start : start + 2 * d]
            x.copy_(torch.randn(9, 2 * d, generator=rng))
            out_pool = torch.full((9, d + 7), 777.0, dtype=x.dtype)
            out = out_pool[:, start : start + d]
            run(kernel, out, x)
            assert_rounded(kernel, out, x)
            dense = torch.empty(9, d, dtype=x.dtype)
            run(kernel, dense, x.contiguous())
            assert torch.equal(dense, out)
            out.fill_(777.0)
            assert torch.equal(out_pool, torch.full_like(out_pool, 777.0)), "wrote outside a row"


@each_kernel
def test_reads_nothing_behind_the_last_row(kernel: registry.Kernel, rng: torch.Generator) -> None:
    """x and out end at a page that must not be touched: a byte too far kills the process."""
    dtype, page = dtype_of(kernel), mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    for d in (1, 7, 17, 33):
        tensors = []
        for num_elements in (2 * d, d):
            region = mmap.mmap(-1, 2 * page)
            address = ctypes.addressof(ctypes.c_char.from_buffer(region))
            assert libc.mprotect(ctypes.c_void_p(address + page), page, 0) == 0  # PROT_NONE
            num_bytes = num_elements * dtype.itemsize
            tensors.append(
                torch.frombuffer(region, dtype=dtype, count=num_elements, offset=page - num_bytes)
            )
        x, out = tensors
        x.copy_(torch.randn(2 * d, generator=rng))
        run(kernel, out, x)
        assert_rounded(kernel, out, x)


@each_kernel
def test_special_values(kernel: registry.Kernel) -> None:
    """NaN, infinities, zeros, overflow and subnormals end as in the fp32 twin, sign included."""
    values = [0.0, 1.0, 1e-3, 30.0, 80.0, 88.0, 100.0, 1e3, 65504.0, 1e30, 3e38, math.inf, 1e-40]
    gates = torch.tensor([*values, *(-v for v in values), math.nan], dtype=torch.float32)
    x = torch.cartesian_prod(gates, gates).T.reshape(1, -1).to(dtype_of(kernel))
    out = torch.empty(1, x.shape[1] // 2, dtype=x.dtype)
    run(kernel, out, x)
    expected = reference.silu_and_mul(x).to(x.dtype)
    ulp = 2 * ROUNDING[x.dtype] + FP32_ERROR
    assert_close(out, expected, atol=2 * UNDERFLOW[x.dtype], rtol=ulp, name=kernel.name)
    zero = expected == 0
    assert torch.equal(torch.signbit(out[zero]), torch.signbit(expected[zero]))
    assert int(expected.isnan().sum()) > 20
    assert int(expected.isinf().sum()) > 20


@each_kernel
def test_subnormal_results_are_kept(kernel: registry.Kernel) -> None:
    """vcvtneps2bf16 alone would flush these to zero."""
    dtype = dtype_of(kernel)
    tiny = torch.finfo(dtype).smallest_normal
    gate = torch.full((1, 40), 20.0)  # silu(20) = 20 to 8 digits
    up = torch.linspace(tiny / 4000, tiny / 40, 40).reshape(1, 40)
    x = torch.cat([gate, up], dim=1).to(dtype)
    out = torch.empty(1, 40, dtype=dtype)
    run(kernel, out, x)
    expected = reference.silu_and_mul(x).to(dtype)
    assert int(((expected > 0) & (expected < tiny)).sum()) > 20
    assert torch.equal(out, expected)


def sixteen_bit_patterns(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)


@pytest.mark.parametrize("kernel", [k for k in RUNNABLE if k.dtype != "f32"], ids=lambda k: k.name)
def test_every_16_bit_gate(kernel: registry.Kernel) -> None:
    """All 65,536 gates: finite answers are rounded right, the others are NaN or infinite alike."""
    gate = sixteen_bit_patterns(dtype_of(kernel))
    x = torch.stack([gate, torch.ones_like(gate)], dim=0).reshape(1, -1)
    out = torch.empty(1, gate.numel(), dtype=gate.dtype)
    run(kernel, out, x)
    expected = reference.silu_and_mul(x).to(gate.dtype)
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.isinf(), expected.isinf())
    finite = expected.isfinite()
    pair = torch.cat([gate[finite[0]], torch.ones_like(gate[finite[0]])]).reshape(1, -1)
    assert_rounded(kernel, out[finite].reshape(1, -1), pair)


@each_kernel
def test_conversions_are_exact(kernel: registry.Kernel) -> None:
    """With a gate of 100, silu is 100 exactly: all values of `up` pass load, multiply and store."""
    dtype = dtype_of(kernel)
    up = sixteen_bit_patterns(torch.float16 if dtype == torch.float16 else torch.bfloat16).to(dtype)
    x = torch.cat([torch.full_like(up, 100.0), up]).reshape(1, -1)
    out = torch.empty(1, up.numel(), dtype=dtype)
    run(kernel, out, x)
    expected = (100.0 * up.float()).to(dtype).reshape(1, -1)
    assert torch.equal(out.isnan(), expected.isnan())
    kept = ~expected.isnan()
    assert torch.equal(out[kept], expected[kept])


def test_vector_kernels_agree_bitwise(rng: torch.Generator) -> None:
    """Same polynomial, same fused operations: AVX2, AVX-512 and AVX-512-BF16 give the same bits."""
    vector = [k for k in RUNNABLE if k.isa != "scalar"]
    if not vector:
        pytest.skip("this CPU has no vector kernel")
    for name, dtype in registry.DTYPES.items():
        x = (20 * torch.randn(64, 2 * 333, generator=rng)).to(dtype)
        results = []
        for kernel in (k for k in vector if k.dtype == name):
            results.append(torch.empty(64, 333, dtype=dtype))
            run(kernel, results[-1], x)
        assert all(torch.equal(results[0], result) for result in results)


def test_threads_and_neighbours_change_nothing(rng: torch.Generator) -> None:
    """Bitwise the same with one thread, with several, and row by row (rule K5)."""
    x = torch.randn(517, 2 * 301, generator=rng)
    outs = []
    num_threads = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            outs.append(torch.empty(517, 301))
            silu_and_mul(outs[-1], x)
    finally:
        torch.set_num_threads(num_threads)
    rows = torch.empty(517, 301)
    for row in range(517):
        silu_and_mul(rows[row], x[row])
    assert all(torch.equal(outs[0], other) for other in (*outs[1:], rows))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (0, 3), (2, 3), (2, 1, 3), (4, 0, 2, 3)])
@pytest.mark.parametrize("d", [0, 1, 5])
def test_leading_dimensions(shape: tuple[int, ...], d: int, rng: torch.Generator) -> None:
    x = torch.randn(*shape, 2 * d, generator=rng)
    out = torch.full((*shape, d), 777.0)
    silu_and_mul(out, x)
    assert_close(
        out,
        reference.silu_and_mul(x),
        atol=0,
        rtol=2 * FP32_ERROR,
        allow_empty=math.prod((*shape, d)) == 0,
    )


def test_foldable_strides(rng: torch.Generator) -> None:
    """A slice of the last dimension folds; one row repeated (stride 0) is a legal input."""
    pool = torch.randn(3, 4, 30, generator=rng)
    out = torch.empty(3, 4, 10)
    silu_and_mul(out, pool[..., 5:25])
    assert_close(out, reference.silu_and_mul(pool[..., 5:25]), atol=0, rtol=2 * FP32_ERROR)
    repeated = pool[:1, 0, :20].expand(6, 20)
    out = torch.empty(6, 10)
    silu_and_mul(out, repeated)
    assert_close(out, reference.silu_and_mul(repeated), atol=0, rtol=2 * FP32_ERROR)


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype)


@pytest.mark.parametrize(
    ("out", "x", "message"),
    [
        (ones(2, 3), ones(2, 4), r"x of shape \[\.\.\., 2 \* d\].*got x \[2, 4\] and out \[2, 3\]"),
        (ones(2, 3), ones(3, 6), r"got x \[3, 6\] and out \[2, 3\]"),
        (ones(2, 3), ones(6), r"got x \[6\] and out \[2, 3\]"),
        (ones(()), ones(()), r"got x \[\] and out \[\]"),
        (ones(2, 2), ones(2, 5), r"got x \[2, 5\]"),
        (ones(2, 3), ones(2, 6, dtype=torch.bfloat16), "one dtype, got out Float and x BFloat16"),
        (ones(2, 3).double(), ones(2, 6).double(), r"float16, got Double; convert"),
        (ones(2, 3).int(), ones(2, 6).int(), r"float16, got Int; convert"),
        (ones(2, 3), ones(6, 2).T, r"x with adjacent elements.*stride 2; call \.contiguous"),
        (ones(3, 2).T, ones(2, 6), r"out with adjacent elements.*stride 2; call \.contiguous"),
        (ones(2, 2, 3), ones(2, 3, 6)[:, :2], r"leading dimensions of x that fold.*contiguous"),
        (ones(3).expand(2, 3), ones(2, 6), "rows of out that do not overlap, got row stride 0"),
    ],
)
def test_bad_arguments(out: torch.Tensor, x: torch.Tensor, message: str) -> None:
    """A clear error each, and the next call works."""
    with pytest.raises(RuntimeError, match=message):
        silu_and_mul(out, x)
    good = torch.zeros(1, 3)
    silu_and_mul(good, torch.ones(1, 6))
    assert_close(good, torch.full((1, 3), 0.7310586), atol=1e-6, rtol=0)


def test_other_device_is_refused() -> None:
    """There is no second device here, so the meta device stands for one."""
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.ops.xyserve.silu_and_mul(torch.ones(2, 3), torch.ones(2, 6, device="meta"))
