"""rms_norm: every kernel of the registry against the fp32 twin, and vLLM's own form."""

import math
from collections.abc import Callable

import pytest
import torch

from tests.helpers.compare import assert_close
from vllm_xyserve.ops import native, registry
from vllm_xyserve.ops.norm import rms_norm
from vllm_xyserve.ops.reference import norm as reference

KERNELS = [k for k in registry.kernels("rms_norm") if k.isa != registry.REFERENCE]
RUNNABLE = [k for k in KERNELS if k.available]
each_kernel = pytest.mark.parametrize("kernel", RUNNABLE, ids=[k.name for k in RUNNABLE])
pytestmark = pytest.mark.usefixtures("needs_native")

EPSILON = 1e-5
# fp32 sums in another order; in bf16 and fp16 a quotient beside a boundary is a whole unit in its
# last place off (2^-7 and 2^-10 of it at worst), and the product is rounded by half a one.
ERROR = {torch.float32: 4e-6, torch.bfloat16: 1.6 * 2.0**-7, torch.float16: 1.6 * 2.0**-10}


def run(kernel: registry.Kernel, *arguments: torch.Tensor | float | None) -> None:
    """Run exactly this kernel, and prove it by its counter."""
    before = registry.calls()[kernel.name]
    with registry.isa_cap(kernel.isa):
        rms_norm(*arguments)  # type: ignore[arg-type]
    assert registry.calls()[kernel.name] == before + 1, f"{kernel.name} did not run"


def dtype_of(kernel: registry.Kernel) -> torch.dtype:
    return registry.DTYPES[kernel.dtype]


def close(kernel: registry.Kernel, got: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = ERROR[got.dtype]
    assert_close(got.float(), expected, atol=tolerance / 4, rtol=tolerance, name=kernel.name)


def test_registry_has_a_kernel_for_each_dtype_and_scalar_for_all() -> None:
    assert {k.dtype for k in KERNELS} == set(registry.DTYPES)
    assert {k.dtype for k in KERNELS if k.isa == "scalar"} == set(registry.DTYPES)
    assert len(RUNNABLE) >= len(registry.DTYPES)


@each_kernel
@pytest.mark.parametrize("weight", ["none", "own", "fp32"])
@pytest.mark.parametrize("d", [1, 2, 7, 8, 9, 31, 33, 64, 65, 100, 576, 1537])
def test_random(kernel: registry.Kernel, d: int, weight: str, rng: torch.Generator) -> None:
    dtype = dtype_of(kernel)
    weights = None if weight == "none" else torch.randn(d, generator=rng)
    if weights is not None and weight == "own":
        weights = weights.to(dtype)
    for num_rows in (1, 3, 130):
        x = (3 * torch.randn(num_rows, d, generator=rng)).to(dtype)
        given = torch.randn(num_rows, d, generator=rng).to(dtype)
        for residual in (None, given):
            expected, total = reference.rms_norm(x, weights, EPSILON, residual)
            kept = None if residual is None else residual.clone()
            out = torch.full_like(x, math.nan)
            run(kernel, out, x, weights, EPSILON, kept)
            close(kernel, out, expected)
            if kept is not None:
                assert torch.equal(kept, total.to(dtype))
                # In place, as a model's step does it.
                again, kept = x.clone(), given.clone()
                run(kernel, again, again, weights, EPSILON, kept)
                assert torch.equal(again, out)


@each_kernel
def test_rows_in_poisoned_memory(kernel: registry.Kernel, rng: torch.Generator) -> None:
    """NaN around the rows changes nothing, and nothing around what is written is touched."""
    for d in (1, 5, 16, 37, 70):
        weight_pool = torch.full((d + 9,), math.nan, dtype=dtype_of(kernel))
        weight = weight_pool[4 : 4 + d]
        weight.copy_(torch.randn(d, generator=rng))
        pools = [torch.full((9, d + 11), math.nan, dtype=weight.dtype) for _ in range(3)]
        x, residual, out = (pool[:, 3 : 3 + d] for pool in pools)
        x.copy_(torch.randn(9, d, generator=rng))
        residual.copy_(torch.randn(9, d, generator=rng))
        expected, total = reference.rms_norm(x, weight, EPSILON, residual)
        run(kernel, out, x, weight, EPSILON, residual)
        close(kernel, out, expected)
        assert torch.equal(residual, total.to(residual.dtype))
        for pool, used in zip(pools, (x, residual, out), strict=True):
            used.fill_(math.nan)
            assert pool.isnan().all(), "wrote outside a row"
        assert int(weight_pool.isnan().sum()) == 9


@each_kernel
def test_special_rows(kernel: registry.Kernel) -> None:
    """Zeros, NaN, infinities and an overflowing square end as in the twin, row by row."""
    dtype = dtype_of(kernel)
    rows = torch.ones(6, 40)
    rows[0] = 0.0
    rows[1, 7] = math.nan
    rows[2, 39] = math.inf
    rows[3] = 6e4 if dtype == torch.float16 else 3e38
    rows[4] = 1e-7
    x = rows.to(dtype)
    out = torch.empty_like(x)
    run(kernel, out, x, None, EPSILON)
    expected = reference.rms_norm(x, None, EPSILON)[0]
    assert expected[1].isnan().all()
    assert expected[0].eq(0).all()
    close(kernel, out, expected)


@each_kernel
def test_a_row_depends_on_no_other(kernel: registry.Kernel, rng: torch.Generator) -> None:
    """Bitwise the same alone, among others, and on several threads (rule K5)."""
    x = torch.randn(200, 301, generator=rng).to(dtype_of(kernel))
    weight = torch.randn(301, generator=rng)
    outs = []
    num_threads = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            outs.append(torch.empty_like(x))
            run(kernel, outs[-1], x, weight, EPSILON)
    finally:
        torch.set_num_threads(num_threads)
    alone = torch.empty_like(x)
    for row in (0, 1, 77, 199):
        run(kernel, alone[row], x[row], weight, EPSILON)
        assert torch.equal(alone[row], outs[0][row])
    assert all(torch.equal(outs[0], other) for other in outs[1:])


@each_kernel
def test_leading_dimensions(kernel: registry.Kernel, rng: torch.Generator) -> None:
    for shape in [(5,), (2, 3, 5), (0, 5), (3, 0), (4, 1, 2, 9)]:
        x = torch.randn(shape, generator=rng).to(dtype_of(kernel))
        out = torch.empty_like(x)
        if x.numel():
            run(kernel, out, x, None, EPSILON)
            close(kernel, out, reference.rms_norm(x, None, EPSILON)[0])
        else:
            rms_norm(out, x, None, EPSILON)


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype)


@pytest.mark.parametrize(
    ("out", "x", "weight", "residual", "message"),
    [
        (ones(2, 3), ones(2, 4), None, None, r"out of the shape and dtype of x, \[2, 4\] Float"),
        (ones(2, 4), ones(2, 4), None, ones(4), r"residual of the shape.*got \[4\] Float"),
        (ones(2, 4), ones(2, 4).half(), None, None, "out of the shape and dtype of x.*Half"),
        (ones(2, 4), ones(2, 4), ones(3), None, r"weight \[4\].*got \[3\] Float"),
        (ones(2, 4), ones(2, 4), ones(4).half(), None, r"weight \[4\].*got \[4\] Half"),
        (ones(1)[0], ones(1)[0], None, None, r"x of shape \[\.\.\., d\], got \[\]"),
        (ones(2, 4).int(), ones(2, 4).int(), None, None, "float16, got Int"),
        (ones(2, 4), ones(4, 2).T, None, None, "x whose leading dimensions fold.*contiguous"),
        (ones(4).expand(2, 4), ones(2, 4), None, None, "rows of out that do not overlap"),
        (ones(2, 4), ones(2, 4), None, ones(4).expand(2, 4), "rows of residual that do not"),
    ],
)
def test_bad_arguments(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    residual: torch.Tensor | None,
    message: str,
) -> None:
    """A clear error each, and the next call works."""
    with pytest.raises(RuntimeError, match=message):
        rms_norm(out, x, weight, EPSILON, residual)
    good = torch.zeros(1, 3)
    rms_norm(good, ones(1, 3), None, 0.0)
    assert_close(good, ones(1, 3), atol=1e-6, rtol=0)


def test_the_operation_is_sound_and_its_twin_answers_without_a_library(
    monkeypatch: pytest.MonkeyPatch, rng: torch.Generator
) -> None:
    x, weight = torch.randn(5, 24, generator=rng), torch.randn(24, generator=rng)
    residual = torch.randn(5, 24, generator=rng)
    arguments = (torch.empty_like(x), x, residual.clone(), weight, EPSILON)
    torch.library.opcheck(torch.ops.xyserve.rms_norm.default, arguments)

    from vllm_xyserve.ops import norm

    mine, theirs = residual.clone(), residual.clone()
    outs = torch.empty_like(x), torch.empty_like(x)
    rms_norm(outs[0], x, weight, EPSILON, mine)
    monkeypatch.setattr(norm, "_NATIVE", False)
    monkeypatch.setattr(norm, "_STATUS", native.load())
    before = registry.calls()["rms_norm_f32_reference"]
    rms_norm(outs[1], x, weight, EPSILON, theirs)
    assert registry.calls()["rms_norm_f32_reference"] == before + 1
    assert_close(outs[0], outs[1], atol=1e-6, rtol=4e-6)
    assert torch.equal(mine, theirs)
    with pytest.raises(RuntimeError, match=r"residual of the shape and dtype of x"):
        rms_norm(outs[1], x, weight, EPSILON, residual[:2])
    with pytest.raises(RuntimeError, match=r"weight \[24\]"):
        rms_norm(outs[1], x, weight[:3], EPSILON)


@pytest.mark.parametrize("dtype", list(registry.DTYPES.values()), ids=list(registry.DTYPES))
@pytest.mark.parametrize("weight_dtype", [None, torch.float32])
def test_vllm_dispatches_to_it_and_gets_its_own_answer(
    dtype: torch.dtype, weight_dtype: torch.dtype | None, rng: torch.Generator
) -> None:
    ir = pytest.importorskip("vllm.ir")
    from vllm_xyserve.platform import norms

    norms.register()
    norms.register()
    x, residual = (torch.randn(7, 96, generator=rng).to(dtype) for _ in range(2))
    weight = torch.randn(96, generator=rng).to(weight_dtype or dtype)
    single, added = ir.ops.rms_norm, ir.ops.fused_add_rms_norm
    calls: list[Callable[[], tuple[torch.Tensor, ...]]] = [
        lambda: (single(x, weight, EPSILON),),
        lambda: added(x, residual, weight, EPSILON),
        lambda: added.maybe_inplace(x.clone(), residual.clone(), weight, EPSILON),
    ]
    for call in calls:
        with single.set_priority(["native"]), added.set_priority(["native"]):
            expected = call()
        before = registry.calls()[registry.chosen("rms_norm", dtype).name]
        first = ["xyserve", "native"]
        with single.set_priority(first), added.set_priority(first):
            got = call()
        assert registry.calls()[registry.chosen("rms_norm", dtype).name] == before + 1
        for one, other in zip(got, expected, strict=True):
            assert_close(one, other, atol=ERROR[dtype] / 2, rtol=2 * ERROR[dtype])


def test_vllm_keeps_what_the_kernel_does_not_take(rng: torch.Generator) -> None:
    ir = pytest.importorskip("vllm.ir")
    from vllm_xyserve.platform import norms

    norms.register()
    pool, weight = torch.randn(4, 20, generator=rng), torch.randn(10, generator=rng)
    x = pool[:, :10]
    cases = [
        (pool[:, 5:15], weight, None),
        (x.contiguous(), weight, 8),
        (x.contiguous(), weight.bfloat16(), None),
        (x.contiguous().double(), weight.double(), None),
    ]
    for given, weights, variance_size in cases:
        with ir.ops.rms_norm.set_priority(["xyserve", "native"]):
            impl = ir.ops.rms_norm.dispatch(given, weights, EPSILON, variance_size)
        assert impl.provider == "native"
    with ir.ops.fused_add_rms_norm.set_priority(["xyserve", "native"]):
        dispatch = ir.ops.fused_add_rms_norm.dispatch
        assert dispatch(x.contiguous(), pool[:, 10:], weight, EPSILON).provider == "native"
        assert dispatch(x.contiguous(), x.contiguous(), weight, EPSILON).provider == "xyserve"
