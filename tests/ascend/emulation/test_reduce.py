"""Reductions, comparisons, selection, broadcast and gathering against NumPy."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.ascend import emulator
from tests.ascend.emulation.lanes import ELEMENTS, NUMPY, Call, launch, numbers

SOURCE = Path(__file__).with_name("vector_cases.cc")


@pytest.fixture(scope="module")
def library() -> emulator.Library:
    return emulator.build([SOURCE])


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


REDUCE = {"max": (0, np.max, np.argmax), "min": (1, np.min, np.argmin), "sum": (2, np.sum, None)}


@pytest.mark.parametrize("kind", ["half", "float"])
@pytest.mark.parametrize("what", list(REDUCE))
def test_whole_reduce(
    library: emulator.Library, rng: np.random.Generator, what: str, kind: str
) -> None:
    op, value_of, index_of = REDUCE[what]
    full = 256 // np.dtype(NUMPY[kind]).itemsize
    index_type = np.uint16 if kind == "half" else np.uint32
    a, d = numbers(rng, kind), np.zeros(ELEMENTS, NUMPY[kind])
    holes = sum(1 << i for i in range(full) if i % 5 != 2)
    for mask in ({"count": full}, {"count": full - 9}, {"bits": holes}):
        for order in (0, 1, 2) if index_of else (2,):
            step = 3
            call = Call(ELEMENTS, op, repeat=4, strides=(step, 1, 1, 8, 8, 8), extra=order, **mask)
            actual = launch(library, f"reduce_{kind}", call, [a], d).numpy()
            taken = [e for r, e in call.active(a.itemsize) if r == 0]
            for repeat in range(4):
                row = a[repeat * full :][taken].astype(np.float32)
                at = repeat * step * (1 if order == 2 else 2)
                value, index = actual[at : at + 2] if order != 1 else actual[at : at + 2][::-1]
                np.testing.assert_allclose(value, value_of(row), rtol=5e-3, atol=5e-2)
                if what != "sum":
                    assert value == value_of(row)
                if order != 2:
                    assert index.view(index_type) == taken[index_of(row)]


@pytest.mark.parametrize("kind", ["half", "float"])
@pytest.mark.parametrize("what", list(REDUCE))
def test_block_reduce(
    library: emulator.Library, rng: np.random.Generator, what: str, kind: str
) -> None:
    op, value_of, _ = REDUCE[what]
    per_block = 32 // np.dtype(NUMPY[kind]).itemsize
    a, d = numbers(rng, kind), np.zeros(ELEMENTS, NUMPY[kind])
    call = Call(ELEMENTS, 3 + op, count=8 * per_block, repeat=3, strides=(2, 1, 1, 8, 8, 8))
    actual = launch(library, f"reduce_{kind}", call, [a], d).numpy()
    for repeat in range(3):
        rows = a[repeat * 8 * per_block :][: 8 * per_block].astype(np.float32)
        wanted = value_of(rows.reshape(8, per_block), axis=1)
        got = actual[repeat * 16 : repeat * 16 + 8]
        np.testing.assert_allclose(got, wanted, rtol=5e-3, atol=2e-2)


def test_pair_reduce(library: emulator.Library, rng: np.random.Generator) -> None:
    a, d = numbers(rng, "float"), np.zeros(ELEMENTS, np.float32)
    call = Call(ELEMENTS, 6, count=64, repeat=2, strides=(1, 1, 1, 8, 8, 8))
    actual = launch(library, "reduce_float", call, [a], d).numpy()
    # A repeat's 32 sums start where the vendor's unit of 128 bytes times 4 puts them.
    for repeat in range(2):
        wanted = a[repeat * 64 : repeat * 64 + 64].reshape(32, 2).sum(axis=1)
        np.testing.assert_array_equal(actual[repeat * 32 : repeat * 32 + 32], wanted)


@pytest.mark.parametrize("kind", ["half", "float"])
@pytest.mark.parametrize("what", list(REDUCE))
@pytest.mark.parametrize("count", [1, 63, 64, 500, 2048])
def test_reduce_tensor(
    library: emulator.Library, rng: np.random.Generator, what: str, kind: str, count: int
) -> None:
    op, value_of, index_of = REDUCE[what]
    a, d = numbers(rng, kind), np.zeros(ELEMENTS, NUMPY[kind])
    call = Call(ELEMENTS, 7 + op, count=count, extra=int(index_of is not None))
    actual = launch(library, f"reduce_{kind}", call, [a], d).numpy()
    row = a[:count].astype(np.float32)
    if index_of is None:
        np.testing.assert_allclose(actual[0], value_of(row), rtol=5e-3, atol=0.5)
    else:
        assert actual[0] == value_of(row)
        index_type = np.uint16 if kind == "half" else np.uint32
        assert actual[1:2].view(index_type)[0] == index_of(row)


COMPARE = [np.less, np.greater, np.equal, np.less_equal, np.greater_equal, np.not_equal]


@pytest.mark.parametrize("kind", ["half", "float"])
@pytest.mark.parametrize("mode", range(6))
def test_compare_and_select(
    library: emulator.Library, rng: np.random.Generator, kind: str, mode: int
) -> None:
    a, b, d = (numbers(rng, kind) for _ in range(3))
    a[::7] = b[::7]
    count = 1024
    call = Call(ELEMENTS, 0, count=count, extra=mode)
    actual = launch(library, f"select_{kind}", call, [a, b], d).numpy()
    wanted = np.where(COMPARE[mode](a, b), a, b)[:count]
    np.testing.assert_array_equal(actual[:count], wanted)
    np.testing.assert_array_equal(actual[count:], d[count:])
    call = Call(ELEMENTS, 1, count=count, extra=mode)
    actual = launch(library, f"select_{kind}", call, [a, b], d).numpy()
    wanted = np.where(COMPARE[mode](a, b[0]), a, b[0])[:count]
    np.testing.assert_array_equal(actual[:count], wanted)
    full = 256 // a.itemsize
    call = Call(ELEMENTS, 2, count=full - 5, repeat=3, extra=mode)
    actual = launch(library, f"select_{kind}", call, [a, b], d).numpy().view(np.uint8)
    bits = np.unpackbits(actual[: 3 * full // 8], bitorder="little").reshape(3, full)
    wanted = COMPARE[mode](a, b)[: 3 * full].reshape(3, full)
    np.testing.assert_array_equal(bits[:, : full - 5].astype(bool), wanted[:, : full - 5])
    call = Call(ELEMENTS, 7, count=full, extra=mode)
    actual = launch(library, f"select_{kind}", call, [a, b], d).numpy().view(np.uint8)
    bits = np.unpackbits(actual[: full // 8], bitorder="little")
    np.testing.assert_array_equal(bits.astype(bool), COMPARE[mode](a, b)[:full])


@pytest.mark.parametrize("kind", ["half", "float"])
def test_brcb(library: emulator.Library, rng: np.random.Generator, kind: str) -> None:
    a, d = numbers(rng, kind), numbers(rng, kind)
    per_block = 32 // a.itemsize
    call = Call(ELEMENTS, 3, repeat=3, strides=(1, 1, 1, 8, 8, 8))
    actual = launch(library, f"select_{kind}", call, [a, a.copy()], d).numpy()
    wanted = d.copy()
    wanted[: 24 * per_block] = np.repeat(a[:24], per_block)
    np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("kind", ["half", "float"])
def test_gather(library: emulator.Library, rng: np.random.Generator, kind: str) -> None:
    a, d = numbers(rng, kind), numbers(rng, kind)
    count = 150
    picked = rng.integers(0, ELEMENTS - 8, count)
    offsets = np.zeros(ELEMENTS, NUMPY[kind])
    offsets.view(np.uint32)[:count] = picked * a.itemsize
    call = Call(ELEMENTS, 4, count=count, extra=8 * a.itemsize)
    actual = launch(library, f"select_{kind}", call, [a, offsets], d).numpy()
    np.testing.assert_array_equal(actual[:count], a[picked + 8])
    np.testing.assert_array_equal(actual[count:], d[count:])


@pytest.mark.parametrize(("pattern", "start", "step"), [(1, 0, 2), (2, 1, 2), (5, 2, 4), (7, 0, 1)])
def test_gather_mask(
    library: emulator.Library, rng: np.random.Generator, pattern: int, start: int, step: int
) -> None:
    a, d = numbers(rng, "float"), numbers(rng, "float")
    inputs = [emulator.constant(torch.from_numpy(x)) for x in (a, a.copy(), d)]
    result = emulator.output((ELEMENTS,), torch.float32)
    taken = emulator.inout(torch.zeros(1, dtype=torch.int64))
    call = Call(ELEMENTS, 5, count=0, repeat=3, extra=pattern)
    report = library.launch("select_float", [*inputs, result, taken], call.scalars())
    assert report.ok, report.message
    wanted = a[:192].reshape(3, 64)[:, start::step].reshape(-1)
    assert taken.data.item() == wanted.size
    np.testing.assert_array_equal(result.data.numpy()[: wanted.size], wanted)


def test_transpose(library: emulator.Library, rng: np.random.Generator) -> None:
    a, d = numbers(rng, "half"), numbers(rng, "half")
    actual = launch(library, "select_half", Call(ELEMENTS, 6), [a, a.copy()], d).numpy()
    np.testing.assert_array_equal(actual[:256].reshape(16, 16), a[:256].reshape(16, 16).T)


def test_repeats_are_counted(library: emulator.Library, rng: np.random.Generator) -> None:
    a = torch.from_numpy(numbers(rng, "float"))
    tensors = [emulator.constant(a), emulator.constant(a.clone()), emulator.constant(a.clone())]
    result = emulator.output((ELEMENTS,), torch.float32)
    call = Call(ELEMENTS, 0, count=130, repeat=0)
    report = library.launch("binary_float", [*tensors, result], call.scalars())
    assert report.count("vector.Add.float") == 3
