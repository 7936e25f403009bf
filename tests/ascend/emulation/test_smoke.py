"""A queue-driven vector kernel and a matrix product, under every kind of order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.ascend import emulator
from tests.ascend.emulator import KernelType

SOURCE = Path(__file__).with_name("smoke.cc")
ORDERS = [
    emulator.EAGER,
    *emulator.directed(2),
    *(emulator.random_order(seed) for seed in range(5)),
]


@pytest.fixture(scope="module")
def library() -> emulator.Library:
    return emulator.build([SOURCE])


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_add_through_queues(library: emulator.Library, order: emulator.Schedule) -> None:
    x, y = torch.randn(2, 1024, dtype=torch.float16).unbind()
    z = emulator.output((1024,), torch.float16)
    tensors = [emulator.constant(x), emulator.constant(y), z]
    report = library.launch("smoke_add", tensors, [512], blocks=2, schedule=order)
    assert report.ok, report.message
    assert torch.equal(z.data, x + y)
    assert report.count("mte2.bytes") == 4096
    assert report.count("mte3.bytes") == 2048


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_matmul(library: emulator.Library, order: emulator.Schedule) -> None:
    m, n, k = 37, 48, 64
    a, b = torch.randn(m, k, dtype=torch.float16), torch.randn(n, k, dtype=torch.float16)
    c = emulator.output((m, n), torch.float32)
    tensors = [emulator.constant(a), emulator.constant(b), c]
    report = library.launch(
        "smoke_matmul", tensors, [m, n, k], kernel_type=KernelType.AIC_ONLY, schedule=order
    )
    assert report.ok, report.message
    torch.testing.assert_close(c.data, a.float() @ b.float().T, rtol=1e-5, atol=1e-4)
    assert report.count("mmad.cycles") == 3 * 3 * 4


@pytest.mark.parametrize("order", [emulator.EAGER, emulator.random_order(0)], ids=str)
def test_more_blocks_than_cores(library: emulator.Library, order: emulator.Schedule) -> None:
    x, y = torch.randn(2, 16 * 128, dtype=torch.float16).unbind()
    z = emulator.output((16 * 128,), torch.float16)
    tensors = [emulator.constant(x), emulator.constant(y), z]
    # One cube core has two vector cores: the blocks run in turns.
    report = library.launch("smoke_add", tensors, [128], blocks=16, cores=1, schedule=order)
    assert report.ok, report.message
    assert torch.equal(z.data, x + y)


def test_failures_reproduce(library: emulator.Library) -> None:
    x = torch.randn(1024, dtype=torch.float16)
    z = emulator.output((512,), torch.float16)
    tensors = [emulator.constant(x), emulator.constant(x.clone()), z]
    messages = {
        library.launch(
            "smoke_add", tensors, [512], blocks=2, schedule=emulator.random_order(7)
        ).message
        for _ in range(3)
    }
    assert len(messages) == 1
    assert "global memory within a tensor" in messages.pop()
