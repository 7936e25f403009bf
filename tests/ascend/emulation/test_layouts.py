"""Less common ways into and out of the cube: constants, float transposes, ND pairs, L0C to L1."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.ascend import emulator
from tests.ascend.emulator import KernelType

SOURCE = Path(__file__).with_name("layout_cases.cc")


@pytest.fixture(scope="module")
def library() -> emulator.Library:
    return emulator.build([SOURCE])


def run(
    library: emulator.Library, entry: str, tensors: list[emulator.Tensor], scalars: list[int]
) -> emulator.Report:
    report = library.launch(entry, tensors, scalars, kernel_type=KernelType.AIC_ONLY)
    assert report.ok, report.message
    return report


def test_constants_and_several_matrices(library: emulator.Library) -> None:
    b = torch.randn(2, 16, 16, dtype=torch.float16)  # two fractals, each n x k
    out = emulator.output((2 * 324,), torch.float32)
    run(library, "layout_constants", [emulator.constant(b), out], [0, 3])
    wanted = 3 * b.float().sum(dim=2)
    for i in range(2):
        rows = out.data[i * 324 : i * 324 + 320].reshape(16, 20)[:, :16]
        torch.testing.assert_close(rows, wanted[i].expand(16, 16), rtol=1e-5, atol=1e-4)
    # Four columns and the gap between the matrices stay as they were.
    assert out.written_bytes().sum() == 2 * 16 * 16 * 4


def test_transposed_float(library: emulator.Library) -> None:
    a, b = torch.randn(16, 16), torch.randn(16, 32)
    # ZZ: fractals of 16 rows of k by 8 columns of n, side by side along n.
    fractals = b.reshape(16, 4, 8).permute(1, 0, 2).contiguous()
    out = emulator.output((16, 32), torch.float32)
    run(
        library,
        "layout_transposed_float",
        [emulator.constant(a), emulator.constant(fractals), out],
        [0],
    )
    torch.testing.assert_close(out.data, a @ b, rtol=1e-5, atol=1e-5)


def test_through_l1(library: emulator.Library) -> None:
    a, b = torch.randn(2, 32, 32, dtype=torch.float16).unbind()
    out = emulator.output((32, 32), torch.float32)
    report = run(
        library, "layout_through_l1", [emulator.constant(a), emulator.constant(b), out], [0]
    )
    first = (a.double() @ b.double().T).half()
    torch.testing.assert_close(
        out.data.double(), first.double() @ b.double().T, rtol=1e-3, atol=0.1
    )
    assert report.count("fix.l1.bytes") == 32 * 32 * 2
