"""Cost of a call into the native library, and of its gated activation.

call_us          our operation from Python on one row of eight elements
aten_call_us     torch.add(out=...) on the same
call_ratio       aten_call_us / call_us
silu_and_mul_ratio   torch's F.silu(gate) * up over ours, 128 rows of 3,072, bf16
"""

import torch
import torch.nn.functional as F

from benchmarks.harness import Case, Options, Result, Row, main, measure
from vllm_xyserve.ops import native, registry
from vllm_xyserve.ops.reference import activation as reference

# Intermediate sizes of a 135M, a 0.6B and an 8B model; one decode row, a batch, a prefill chunk.
SHAPES = ((1, 1536), (1, 14336), (32, 3072), (128, 3072), (512, 3072))
TYPICAL = (128, 3072, torch.bfloat16)


def check_against_twin(out: torch.Tensor, x: torch.Tensor) -> None:
    """Raise unless `out` is the fp32 twin up to one rounding of its dtype."""
    expected = reference.silu_and_mul(x)
    error = (out.float() - expected).abs()
    bound = torch.finfo(out.dtype).eps * expected.abs() + 1e-6
    if not bool((error <= bound).all()):
        raise AssertionError(f"silu_and_mul {list(x.shape)} {x.dtype}: off by {error.max().item()}")


def small_call() -> Case:
    """The call itself: so little data that nothing else counts."""
    x, out, a = torch.randn(1, 16), torch.empty(1, 8), torch.randn(1, 8)
    op = torch.ops.xyserve.silu_and_mul.default

    def check() -> None:
        op(out, x)
        check_against_twin(out, x)

    return Case(
        name="call",
        check=check,
        ours=lambda: op(out, x),
        peer=lambda: torch.add(a, a, out=out),
        facts={"rows": 1, "d": 8, "dtype": "f32", "peer": "torch.add"},
    )


def activation(num_rows: int, d: int, dtype: torch.dtype) -> Case:
    """Our kernel against the two torch operations that do the same."""
    x = torch.randn(num_rows, 2 * d).to(dtype)
    out = torch.empty(num_rows, d, dtype=dtype)
    gate, up = x.chunk(2, dim=-1)
    op = torch.ops.xyserve.silu_and_mul.default

    def check() -> None:
        out.fill_(torch.nan)
        op(out, x)
        check_against_twin(out, x)

    kernel = registry.chosen("silu_and_mul", dtype)
    return Case(
        name=f"silu_and_mul {num_rows}x{d} {kernel.dtype} {kernel.isa}",
        check=check,
        ours=lambda: op(out, x),
        peer=lambda: F.silu(gate) * up,
        facts={"rows": num_rows, "d": d, "dtype": kernel.dtype, "peer": "F.silu * up"},
    )


def run(options: Options) -> Result:
    status = native.load()
    if not status.loaded:
        raise SystemExit(f"native library not loaded: {status.reason}; {status.mend}")
    torch.manual_seed(0)
    call, call_row = measure(small_call(), options)
    typical, typical_row = measure(activation(*TYPICAL), options)
    rows: list[Row] = [call_row, typical_row]
    assert call.peer_us is not None
    assert call.ratio is not None
    assert typical.ratio is not None
    summary = {
        "call_us": call.ours_us,
        "aten_call_us": call.peer_us,
        "call_ratio": call.ratio,
        "silu_and_mul_us": typical.ours_us,
        "silu_and_mul_ratio": typical.ratio,
    }
    if not options.quick:
        rows += [measure(activation(m, d, TYPICAL[2]), options)[1] for m, d in SHAPES]
    for isa in status.available[:-1]:
        with registry.isa_cap(isa):
            rows.append(measure(activation(*TYPICAL), options)[1])
    for dtype in (torch.float32, torch.float16):
        rows.append(measure(activation(*TYPICAL[:2], dtype), options)[1])
    return Result(summary, rows)


if __name__ == "__main__":
    main(run, __doc__)
