"""Transfers against NumPy: bursts, padding, layout change, atomics, scalar accesses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.ascend import emulator
from tests.ascend.emulator import KernelType

SOURCE = Path(__file__).with_name("copy_cases.cc")


@pytest.fixture(scope="module")
def library() -> emulator.Library:
    return emulator.build([SOURCE])


def burst_rows(array: np.ndarray, count: int, length: int, stride: int) -> np.ndarray:
    return np.stack([array[i * (length + stride) :][:length] for i in range(count)])


def run(
    library: emulator.Library, entry: str, source: torch.Tensor, out: emulator.Tensor,
    scalars: list[int], kernel_type: KernelType = KernelType.AIV_ONLY,
) -> emulator.Report:  # fmt: skip
    report = library.launch(
        entry, [emulator.constant(source), out], scalars, kernel_type=kernel_type
    )
    assert report.ok, report.message
    return report


def test_count(library: emulator.Library) -> None:
    x = torch.randn(96, dtype=torch.float16)
    out = emulator.output((96,), torch.float16)
    report = run(library, "copy_through_ub", x, out, [0, 0, 96, 0, 0, 0, 80, 0, 0, 0, 0, 0, 0])
    assert torch.equal(out.data[:80], x[:80])
    assert out.written_bytes().sum() == 160
    assert (report.count("mte2.bytes"), report.count("mte3.bytes")) == (192, 160)


@pytest.mark.parametrize(("count", "length", "gap"), [(1, 3, 0), (5, 2, 3), (4, 1, 1)])
def test_bursts(library: emulator.Library, count: int, length: int, gap: int) -> None:
    x = torch.randn(1024, dtype=torch.float16)
    out = emulator.output((1024,), torch.float16)
    # In: gaps in global memory; out: gaps in global memory of another size.
    scalars = [1, 0, count, length, gap, 0, count, length, 0, gap + 1, 0, 0, 0]
    run(library, "copy_through_ub", x, out, scalars)
    wanted = burst_rows(x.numpy(), count, length * 16, gap * 16)
    got = burst_rows(out.data.numpy(), count, length * 16, (gap + 1) * 16)
    np.testing.assert_array_equal(got, wanted)
    assert out.written_bytes().sum() == count * length * 32


@pytest.mark.parametrize("length", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("count", [1, 3])
def test_ragged_bursts(library: emulator.Library, length: int, count: int) -> None:
    x = torch.randn(1024, dtype=torch.float16)
    out = emulator.output((1024,), torch.float16)
    gap = 7
    size = length * 2
    scalars = [2, 0, count, size, gap * 2, 1, count, size, 1, 5 * 2, 0, 0, 0]
    report = run(library, "copy_through_ub", x, out, scalars)
    wanted = burst_rows(x.numpy(), count, length, gap)
    np.testing.assert_array_equal(burst_rows(out.data.numpy(), count, length, 5), wanted)
    assert out.written_bytes().sum() == count * size
    assert report.count("mte3.bytes") == count * size


def test_padding(library: emulator.Library) -> None:
    x = torch.randn(64, dtype=torch.float16)
    out = emulator.output((32,), torch.float16)
    # Three on the left, ten values, three on the right: 16 elements, one block.
    scalars = [3, 32, 1, 20, 0, 0, 1, 64, 0, 0, 1, 3, 3]
    run(library, "copy_through_ub", x, out, scalars)
    wanted = [3.0] * 3 + x[:10].tolist() + [3.0] * 3 + [7.0] * 16
    assert out.data.tolist() == wanted


@pytest.mark.parametrize(
    ("entry", "dtype"),
    [
        ("copy_nd2nz_half", torch.float16),
        ("copy_nd2nz_int8", torch.int8),
        ("copy_nd2nz_float", torch.float32),
    ],
)
@pytest.mark.parametrize("rows", [1, 16, 37])
@pytest.mark.parametrize("width", [5, 64, 72])
def test_nd2nz(
    library: emulator.Library, entry: str, dtype: torch.dtype, rows: int, width: int
) -> None:
    step, matrices = 80, 2
    x = (torch.randn(matrices * 48, step) * 10).to(dtype)
    size = x.element_size()
    c0 = 32 // size
    columns, tall = -(-width // c0), 40
    nz = columns * tall * c0
    total = matrices * nz * size
    out = emulator.output((matrices, columns, tall, c0), dtype)
    scalars = [matrices, rows, width, 48 * step, step, tall, 1, nz, total]
    run(library, entry, x, out, scalars, KernelType.AIC_ONLY)
    wanted = torch.full((matrices, columns, tall, c0), 5, dtype=dtype)
    for i in range(matrices):
        block = torch.zeros(rows, columns * c0, dtype=dtype)
        block[:, :width] = x[i * 48 : i * 48 + rows, :width]
        wanted[i, :, :rows] = block.reshape(rows, columns, c0).permute(1, 0, 2)
    assert torch.equal(out.data, wanted)


@pytest.mark.parametrize(
    ("entry", "dtype"),
    [
        ("copy_atomic_float", torch.float32),
        ("copy_atomic_half", torch.float16),
        ("copy_atomic_int32", torch.int32),
    ],
)
@pytest.mark.parametrize(("op", "wanted"), [(0, 10 + 2 * 10), (1, 10), (2, 1)])
def test_atomics(
    library: emulator.Library, entry: str, dtype: torch.dtype, op: int, wanted: int
) -> None:
    total = emulator.inout(torch.full((64,), 10, dtype=dtype))
    for order in (emulator.EAGER, emulator.random_order(3)):
        total.data.fill_(10)
        report = library.launch(entry, [total], [2, op], blocks=4, schedule=order)
        assert report.ok, report.message
        assert (total.data[:40] == wanted).all()
        assert (total.data[40:] == 10).all()


def test_within_ub(library: emulator.Library) -> None:
    x = torch.arange(512, dtype=torch.float32)
    out = emulator.output((512,), torch.float32)
    run(library, "copy_within_ub", x, out, [3, 2, 1, 2, 512])
    wanted = x.clone()
    for i in range(3):
        wanted[i * 32 : i * 32 + 16] = x[i * 24 : i * 24 + 16]
    assert torch.equal(out.data, wanted)


def test_scalar_accesses(library: emulator.Library) -> None:
    x = torch.randint(-1000, 1000, (33,), dtype=torch.int32)
    out = emulator.output((33,), torch.int32)
    run(library, "copy_scalars", x, out, [33])
    assert torch.equal(out.data, x.flip(0) * 2)


def test_sparse_memory_beyond_2_gib(library: emulator.Library) -> None:
    elements = 3 * 2**30 // 2
    x = emulator.sparse(elements, torch.float16)
    far = elements - 64
    x.data[far:] = torch.arange(64, dtype=torch.float16)
    view = emulator.constant(x.data[far - 2**30 :], name="upper part")
    assert view.bytes > 2**31
    out = emulator.output((64,), torch.float16)
    gap = view.bytes - 64 - 128
    # Two bursts: the first at the start, the second beyond 2 GiB.
    scalars = [2, 0, 2, 64, gap, 0, 1, 128, 0, 0, 0, 0, 0]
    report = library.launch("copy_through_ub", [view, out], scalars)
    assert report.ok, report.message
    assert out.data.tolist() == [0.0] * 32 + [float(i) for i in range(32)]
