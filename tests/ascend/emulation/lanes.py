"""Plain NumPy twins of the vector unit's addressing: which elements a call reads and writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from tests.ascend import emulator

ELEMENTS = 2048  # of every buffer
NUMPY = {"half": np.float16, "float": np.float32, "int32": np.int32, "int16": np.int16}


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One vector call: `count` elements, or `repeat` repeats under a mask.

    Strides are (target, source 0, source 1) between blocks of 32 bytes, then between repeats.
    """

    elements: int
    op: int
    count: int = 0
    bits: int = 0
    repeat: int = 1
    strides: tuple[int, ...] = (1, 1, 1, 8, 8, 8)
    extra: int = 0

    def scalars(self) -> list[int]:
        form = 0 if self.repeat == 0 else 2 if self.bits else 1
        words = [self.bits & (2**64 - 1), self.bits >> 64]
        signed = [w - 2**64 if w >= 2**63 else w for w in words]
        return [
            *(self.elements, self.op, form, self.count, *signed, self.repeat),
            *self.strides,
            self.extra,
        ]

    def active(self, size: int) -> Iterator[tuple[int, int]]:
        """(repeat, element of the repeat) for a widest element of `size` bytes."""
        per_repeat = 256 // size
        if self.repeat == 0:
            for i in range(self.count):
                yield i // per_repeat, i % per_repeat
            return
        bits = self.bits or (1 << self.count) - 1
        for repeat in range(self.repeat):
            for element in range(per_repeat):
                if bits >> element & 1:
                    yield repeat, element

    def place(self, operand: int, size: int, widest: int) -> list[int]:
        """Indices of the active elements in the buffer of operand 0 (target), 1 or 2."""
        per_block = 32 // size
        block_stride, repeat_stride = self.strides[operand], self.strides[3 + operand]
        if self.repeat == 0:
            block_stride, repeat_stride = 1, 8 * size // widest
        return [
            (r * repeat_stride + e // per_block * block_stride) * per_block + e % per_block
            for r, e in self.active(widest)
        ]


def tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


def launch(
    library: emulator.Library,
    entry: str,
    call: Call,
    sources: Sequence[np.ndarray | torch.Tensor],
    before: np.ndarray | torch.Tensor,
    **options: object,
) -> torch.Tensor:
    """Runs one call on the target's earlier content `before`; the target afterwards."""
    inputs = [
        emulator.constant(tensor(s) if isinstance(s, np.ndarray) else s.clone())
        for s in (*sources, before)
    ]
    if len(sources) == 1:
        inputs.insert(1, inputs[0])
    start = before if isinstance(before, torch.Tensor) else tensor(before)
    result = emulator.output(tuple(start.shape), start.dtype)
    distinct = [*inputs, result] if len(sources) == 2 else [inputs[0], None, inputs[2], result]
    report = library.launch(entry, distinct, call.scalars(), **options)
    assert report.ok, report.message
    return result.data


def expected(
    call: Call,
    sources: Sequence[np.ndarray],
    before: np.ndarray,
    function: Callable[..., np.ndarray],
) -> np.ndarray:
    """Applies `function(target before, *sources)` element by element where the call is active."""
    result = before.copy()
    widest = max(s.itemsize for s in (*sources, before))
    to = call.place(0, before.itemsize, widest)
    taken = [s[call.place(1 + i, s.itemsize, widest)] for i, s in enumerate(sources)]
    with np.errstate(all="ignore"):
        result[to] = function(before[to], *taken)
    return result


def numbers(rng: np.random.Generator, kind: str, positive: bool = False) -> np.ndarray:
    if kind.startswith("int"):
        return rng.integers(-100, 100, ELEMENTS).astype(NUMPY[kind])
    values = rng.standard_normal(ELEMENTS) * 2
    return (np.abs(values) + 0.1 if positive else values).astype(NUMPY[kind])
