"""The mask register, counter mode, patterns and bound queues against torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.ascend import emulator

SOURCE = Path(__file__).with_name("mask_cases.cc")
ELEMENTS = 512


@pytest.fixture(scope="module")
def library() -> emulator.Library:
    return emulator.build([SOURCE])


class Case:
    """One launch: sources a and b, the target's earlier content d, and what came out."""

    def __init__(self, library: emulator.Library, which: int, number: int) -> None:
        self.a, self.b, self.d = torch.randn(3, ELEMENTS).unbind()
        out = emulator.output((ELEMENTS,), torch.float32)
        self.taken = torch.zeros(8, dtype=torch.int64)
        inputs = [emulator.constant(x.clone()) for x in (self.a, self.b, self.d)]
        report = library.launch(
            "mask_call", [*inputs, out, emulator.inout(self.taken)], [which, number]
        )
        assert report.ok, report.message
        self.out = out.data


def test_mask_register(library: emulator.Library) -> None:
    bits = 0b1011 | 1 << 40 | 1 << 63
    case = Case(library, 0, bits - 2**64)
    on = torch.tensor([bits >> i & 1 for i in range(64)], dtype=torch.bool).repeat(3)
    wanted = case.d.clone()
    wanted[:192] = torch.where(on, (case.a + case.b)[:192], case.d[:192])
    assert torch.equal(case.out, wanted)


def test_counter_mode(library: emulator.Library) -> None:
    case = Case(library, 1, 203)
    assert torch.equal(case.out[:203], (case.a + case.b)[:203])
    assert torch.equal(case.out[203:], case.d[203:])


def test_mask_of_a_length(library: emulator.Library) -> None:
    case = Case(library, 2, 33)
    wanted = case.d.clone()
    for start in (0, 64):
        wanted[start : start + 33] = case.a[start : start + 33] * 2
    assert torch.equal(case.out, wanted)


def test_select_by_one_repeat(library: emulator.Library) -> None:
    case = Case(library, 3, 0)
    first = (case.a < case.b)[:64].repeat(4)
    assert torch.equal(case.out[:256], torch.where(first, case.a[:256], case.b[:256]))
    assert torch.equal(case.out[256:], case.d[256:])


def test_gather_in_repeats(library: emulator.Library) -> None:
    case = Case(library, 4, 50)
    wanted = case.d.clone()
    for start in (0, 64):
        index = (torch.arange(start, start + 50) + 1) * 2 + 1
        wanted[start : start + 50] = case.a[index]
    assert torch.equal(case.out, wanted)


def test_gather_by_pattern(library: emulator.Library) -> None:
    case = Case(library, 5, 40)
    # Bits 0, 3, 6, ... of each word of 32, over the first 40 elements of both repeats.
    picked = [e for e in range(40) if 0x49249249 >> e % 32 & 1]
    rows = torch.cat([case.a[r * 64 :][picked] for r in range(2)])
    assert case.taken[0] == len(rows)
    assert torch.equal(case.out[: len(rows)], rows)
    assert torch.equal(case.out[len(rows) :], case.d[len(rows) :])


def test_reductions_under_masks(library: emulator.Library) -> None:
    case = Case(library, 6, 21)
    wanted = sum(case.a[r * 64 : r * 64 + 21].double().sum() for r in range(3))
    torch.testing.assert_close(case.out[0].double(), wanted, rtol=1e-5, atol=1e-5)
    case = Case(library, 7, 0)
    odd = case.a[:192][1::2]
    assert case.out[0] == odd.max()
    assert case.out[1:2].view(torch.int32).item() == odd.argmax() * 2 + 1


@pytest.mark.parametrize(
    "order", [emulator.EAGER, *emulator.directed(1, cube=False), emulator.random_order(1)], ids=str
)
def test_bound_queue(library: emulator.Library, order: emulator.Schedule) -> None:
    x = torch.randn(7 * 64)
    out = emulator.output((7 * 64,), torch.float32)
    report = library.launch("mask_relay", [emulator.constant(x), out], [7], schedule=order)
    assert report.ok, report.message
    assert torch.equal(out.data, x)
