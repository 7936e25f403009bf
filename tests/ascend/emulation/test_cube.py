"""Cube APIs against torch: types, odd m, n, k, bias, accumulation, transposes, Fixpipe's modes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from tests.ascend import emulator
from tests.ascend.emulator import KernelType

SOURCE = Path(__file__).with_name("cube_cases.cc")
PLAIN, BIAS, TWICE = 0, 1, 2
NO_QUANT, F16, BF16, DEQF16, VDEQF16, INT8 = 0, 1, 16, 5, 4, 24


@pytest.fixture(scope="module")
def library() -> emulator.Library:
    return emulator.build([SOURCE])


def operands(
    m: int, n: int, k: int, dtype: torch.dtype, transposed: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A, B as stored, and the exact product in float64."""
    shape = (k, n) if transposed else (n, k)
    if dtype == torch.int8:
        a = torch.randint(-128, 128, (m, k), dtype=dtype)
        b = torch.randint(-128, 128, shape, dtype=dtype)
    else:
        a, b = torch.randn(m, k).to(dtype), torch.randn(shape).to(dtype)
    right = b.double() if transposed else b.double().T
    return a, b, a.double() @ right


def launch(
    library: emulator.Library,
    entry: str,
    a: torch.Tensor,
    b: torch.Tensor,
    out: emulator.Tensor,
    scalars: list[int],
    extra: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None),
) -> emulator.Report:
    inputs = [emulator.constant(a), emulator.constant(b), out]
    inputs += [None if e is None else emulator.constant(e) for e in extra]
    report = library.launch(entry, inputs, scalars, kernel_type=KernelType.AIC_ONLY)
    assert report.ok, report.message
    return report


def float_bits(value: float) -> int:
    """A scale as Fixpipe reads it: the low 13 bits of the mantissa do not count."""
    return struct.unpack("<I", struct.pack("<f", value))[0] & 0xFFFFE000


def scale_value(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


SHAPES = [(16, 16, 16), (37, 48, 64), (2, 16, 8), (128, 64, 40), (17, 80, 100), (100, 32, 128)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("entry", "dtype"),
    [
        ("matmul_half", torch.float16),
        ("matmul_bf16", torch.bfloat16),
        ("matmul_float", torch.float32),
        ("matmul_int8", torch.int8),
    ],
)
@pytest.mark.parametrize("mode", [PLAIN, BIAS, TWICE])
def test_mmad(
    library: emulator.Library,
    entry: str,
    dtype: torch.dtype,
    shape: tuple[int, int, int],
    mode: int,
) -> None:
    m, n, k = shape
    a, b, product = operands(m, n, k, dtype)
    result = torch.int32 if dtype == torch.int8 else torch.float32
    bias = (torch.randn(n) * 50).to(result) if mode == BIAS else None
    out = emulator.output((m, n), result)
    scalars = [m, n, k, mode, 0, NO_QUANT, 0, 0, 0]
    report = launch(library, entry, a, b, out, scalars, (bias, None))
    wanted = product * (2 if mode == TWICE else 1) + (0 if bias is None else bias.double())
    torch.testing.assert_close(out.data.double(), wanted, rtol=1e-5, atol=1e-4)
    assert out.all_written()
    c0 = 32 // a.element_size()
    cycles = -(-m // 16) * -(-n // 16) * -(-k // c0) * (2 if dtype == torch.float32 else 1)
    assert report.count("mmad.cycles") == cycles * (2 if mode == TWICE else 1)


@pytest.mark.parametrize("shape", [(37, 48, 64), (16, 16, 16), (33, 64, 40), (16, 80, 23)])
def test_transposed_half(library: emulator.Library, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b, product = operands(m, n, k, torch.float16, transposed=True)
    out = emulator.output((m, n), torch.float32)
    launch(library, "matmul_half", a, b, out, [m, n, k, PLAIN, 1, NO_QUANT, 0, 0, 0])
    torch.testing.assert_close(out.data.double(), product, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(37, 64, 64), (16, 32, 32), (33, 96, 50)])
def test_transposed_int8(library: emulator.Library, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b, product = operands(m, n, k, torch.int8, transposed=True)
    out = emulator.output((m, n), torch.int32)
    launch(library, "matmul_int8", a, b, out, [m, n, k, PLAIN, 1, NO_QUANT, 0, 0, 0])
    assert torch.equal(out.data.double(), product)


def test_gemv(library: emulator.Library) -> None:
    n, k = 48, 512
    a, b, product = operands(1, n, k, torch.float16)
    out = emulator.output((1, n), torch.float32)
    launch(library, "gemv_half", a, b, out, [n, k])
    torch.testing.assert_close(out.data.double(), product, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("relu", [0, 1])
@pytest.mark.parametrize("nz", [0, 1])
@pytest.mark.parametrize(
    ("entry", "dtype", "quant", "target"),
    [
        ("matmul_half", torch.float16, NO_QUANT, torch.float32),
        ("matmul_half_half", torch.float16, F16, torch.float16),
        ("matmul_bf16_bf16", torch.bfloat16, BF16, torch.bfloat16),
        ("matmul_int8", torch.int8, NO_QUANT, torch.int32),
        ("matmul_int8_half", torch.int8, DEQF16, torch.float16),
        ("matmul_int8_half", torch.int8, VDEQF16, torch.float16),
        ("matmul_half_int8", torch.float16, INT8, torch.int8),
    ],
)
def test_fixpipe(
    library: emulator.Library,
    entry: str,
    dtype: torch.dtype,
    quant: int,
    target: torch.dtype,
    nz: int,
    relu: int,
) -> None:
    m, n, k = 40, 64, 32
    a, b, wanted = operands(m, n, k, dtype)
    scales = [float_bits(0.001 * (i + 1)) for i in range(n)]
    if quant == VDEQF16:
        wanted = wanted * torch.tensor([scale_value(s) for s in scales]).double()
    if quant in (DEQF16, INT8):
        wanted = wanted * scale_value(scales[6])
    if relu:
        wanted = wanted.clamp(min=0)
    rows, width = 48, 32 if target == torch.int8 else 16
    out = emulator.output((n // width, rows, width) if nz else (m, n), target)
    per_column = torch.tensor(scales, dtype=torch.int64) if quant == VDEQF16 else None
    launch(
        library, entry, a, b, out,
        [m, n, k, PLAIN, 0, quant, nz, relu, scales[6]], (None, per_column),
    )  # fmt: skip
    got = out.data[:, :m].permute(1, 0, 2).reshape(m, n) if nz else out.data
    if target == torch.int8:
        assert ((got.double() - wanted.clamp(-128, 127)).abs() <= 0.51).all()
    else:
        tolerance = {torch.float16: 1e-3, torch.bfloat16: 8e-3}.get(target, 1e-5)
        torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=1e-3)
    if nz:
        # Rows of padding stay untouched.
        mask = out.written_bytes().reshape(n // width, rows, -1)
        assert mask[:, :m].all()
        assert not mask[:, m:].any()
