"""Vector APIs against NumPy: every form, odd counts, masks with holes, strides."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.ascend import emulator
from tests.ascend.emulation.lanes import ELEMENTS, NUMPY, Call, expected, launch, numbers

SOURCE = Path(__file__).with_name("vector_cases.cc")


@pytest.fixture(scope="module")
def library() -> emulator.Library:
    return emulator.build([SOURCE])


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


def forms(kind: str, op: int) -> list[Call]:
    """A ragged count, a short mask with strides, a mask with holes, a broadcast source."""
    full = 256 // np.dtype(NUMPY[kind]).itemsize
    holes = sum(1 << i for i in range(full) if i % 3 != 1 and i // 7 % 2 == 0)
    return [
        Call(ELEMENTS, op, count=3 * full + 5, repeat=0),
        Call(ELEMENTS, op, count=full, repeat=4),
        Call(ELEMENTS, op, count=full - 3, repeat=3, strides=(2, 1, 1, 16, 8, 8)),
        Call(ELEMENTS, op, bits=holes, repeat=2, strides=(1, 2, 0, 9, 16, 1)),
    ]


def as_float(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Computes in float and rounds once, as the vector unit does for half."""

    def compute(before: np.ndarray, *sources: np.ndarray) -> np.ndarray:
        wide = [s.astype(np.float32) for s in (before, *sources)]
        return function(*wide).astype(before.dtype)

    return compute


def check(actual: torch.Tensor, wanted: np.ndarray, exact: bool = False) -> None:
    assert np.isfinite(wanted).all()
    tolerance = 0.0 if exact else 2e-3 if wanted.dtype == np.float16 else 1e-6
    torch.testing.assert_close(actual, torch.from_numpy(wanted), rtol=tolerance, atol=tolerance)


BINARY = {
    "Add": (0, lambda d, a, b: a + b, ("half", "float", "int32", "int16")),
    "Sub": (1, lambda d, a, b: a - b, ("half", "float", "int32", "int16")),
    "Mul": (2, lambda d, a, b: a * b, ("half", "float", "int32", "int16")),
    "Div": (3, lambda d, a, b: a / b, ("half", "float")),
    "Max": (4, lambda d, a, b: np.maximum(a, b), ("half", "float", "int32", "int16")),
    "Min": (5, lambda d, a, b: np.minimum(a, b), ("half", "float", "int32", "int16")),
    "AddRelu": (6, lambda d, a, b: np.maximum(a + b, 0), ("half", "float", "int16")),
    "SubRelu": (7, lambda d, a, b: np.maximum(a - b, 0), ("half", "float", "int16")),
    "FusedMulAdd": (8, lambda d, a, b: a * d + b, ("half", "float")),
    "MulAddDst": (9, lambda d, a, b: d + a * b, ("half", "float")),
    "And": (10, lambda d, a, b: a & b, ("int16",)),
    "Or": (11, lambda d, a, b: a | b, ("int16",)),
}


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, entry in BINARY.items() for kind in entry[2]]
)
def test_binary(library: emulator.Library, rng: np.random.Generator, name: str, kind: str) -> None:
    op, function, _ = BINARY[name]
    if not kind.startswith("int"):
        function = as_float(function)
    for call in forms(kind, op):
        a, d = numbers(rng, kind), numbers(rng, kind)
        b = numbers(rng, kind, positive=name == "Div")
        actual = launch(library, f"binary_{kind}", call, [a, b], d)
        check(actual, expected(call, [a, b], d, function), exact=kind.startswith("int"))


UNARY = {
    "Exp": (0, lambda d, a: np.exp(a), ("half", "float")),
    "Ln": (1, lambda d, a: np.log(a), ("half", "float")),
    "Abs": (2, lambda d, a: np.abs(a), ("half", "float")),
    "Sqrt": (3, lambda d, a: np.sqrt(a), ("half", "float")),
    "Rsqrt": (4, lambda d, a: 1 / np.sqrt(a), ("half", "float")),
    "Reciprocal": (5, lambda d, a: 1 / a, ("half", "float")),
    "Relu": (6, lambda d, a: np.maximum(a, 0), ("half", "float")),
    "Not": (7, lambda d, a: ~a, ("int16",)),
}


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, entry in UNARY.items() for kind in entry[2]]
)
def test_unary(library: emulator.Library, rng: np.random.Generator, name: str, kind: str) -> None:
    op, function, _ = UNARY[name]
    if kind != "int16":
        function = as_float(function)
    for call in forms(kind, op):
        a = numbers(rng, kind, positive=name not in ("Exp", "Abs", "Relu", "Not"))
        d = numbers(rng, kind)
        actual = launch(library, f"unary_{kind}", call, [a], d)
        check(actual, expected(call, [a], d, function), exact=kind == "int16")


def apply_scalar(
    function: Callable[..., np.ndarray], scalar: np.number, before: np.ndarray, x: np.ndarray
) -> np.ndarray:
    return function(before, x, scalar)


SCALAR = {
    "Adds": (0, lambda d, a, s: a + s, ("half", "float", "int32", "int16")),
    "Muls": (1, lambda d, a, s: a * s, ("half", "float", "int32", "int16")),
    "Maxs": (2, lambda d, a, s: np.maximum(a, s), ("half", "float", "int32", "int16")),
    "Mins": (3, lambda d, a, s: np.minimum(a, s), ("half", "float", "int32", "int16")),
    "LeakyRelu": (4, lambda d, a, s: np.where(a >= 0, a, a * s), ("half", "float")),
    "Axpy": (5, lambda d, a, s: d + a * s, ("half", "float")),
    "ShiftLeft": (6, lambda d, a, s: a << s, ("int32", "int16")),
    "Duplicate": (8, lambda d, a, s: np.full_like(a, s), ("half", "float", "int32", "int16")),
    "Copy": (9, lambda d, a, s: a, ("half", "float", "int32", "int16")),
}


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, entry in SCALAR.items() for kind in entry[2]]
)
def test_with_scalar(
    library: emulator.Library, rng: np.random.Generator, name: str, kind: str
) -> None:
    op, function, _ = SCALAR[name]
    scalar = np.array([3 if kind.startswith("int") else 0.75], dtype=NUMPY[kind])
    for call in forms(kind, op):
        if name == "Copy" and call.repeat == 0:
            continue
        a, d = numbers(rng, kind), numbers(rng, kind)
        compute = functools.partial(apply_scalar, function, scalar[0])
        if not kind.startswith("int") and name != "Copy":
            compute = as_float(compute)
        actual = launch(library, f"scalar_{kind}", call, [a, scalar], d)
        # The scalar stands where a second source would: its strides mean nothing.
        check(actual, expected(call, [a], d, compute), exact=kind.startswith("int"))


def test_shift_right_and_index(library: emulator.Library, rng: np.random.Generator) -> None:
    a, d = numbers(rng, "int32"), numbers(rng, "int32")
    call = Call(ELEMENTS, 7, count=77, repeat=0)
    actual = launch(library, "scalar_int32", call, [a, np.array([2], np.int32)], d)
    check(actual, expected(call, [a], d, lambda before, x: x >> 2), exact=True)
    call = Call(ELEMENTS, 10, count=200, repeat=0)
    actual = launch(
        library,
        "scalar_float",
        call,
        [d.view(np.float32) * 0, np.float32([5])],
        np.zeros(ELEMENTS, np.float32),
    )
    assert actual[:200].tolist() == [5.0 + i for i in range(200)]
    assert not actual[200:].any()


ROUND = {"NONE": 0, "RINT": 1, "FLOOR": 2, "CEIL": 3, "ROUND": 4, "TRUNC": 5}
WHOLE = {
    "RINT": np.rint,
    "FLOOR": np.floor,
    "CEIL": np.ceil,
    "ROUND": lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5),
    "TRUNC": np.trunc,
    "NONE": np.rint,
}


@pytest.mark.parametrize("mode", ["RINT", "FLOOR", "CEIL", "ROUND", "TRUNC"])
@pytest.mark.parametrize(
    ("entry", "source", "target"),
    [
        ("cast_float_int32", np.float32, np.int32),
        ("cast_float_int16", np.float32, np.int16),
        ("cast_float_float", np.float32, np.float32),
        ("cast_half_int32", np.float16, np.int32),
        ("cast_half_int8", np.float16, np.int8),
    ],
)
def test_cast_to_whole(
    library: emulator.Library,
    rng: np.random.Generator,
    entry: str,
    source: type,
    target: type,
    mode: str,
) -> None:
    a = (rng.standard_normal(ELEMENTS) * 40).astype(source)
    a[:8] = [0.5, 1.5, -0.5, -1.5, 2.5, -2.5, 100.0, -100.0]
    d = np.zeros(ELEMENTS, target)
    limits = (-128, 127) if target == np.int8 else (-32768, 32767)
    for call in (
        Call(ELEMENTS, 0, count=301, repeat=0, extra=ROUND[mode]),
        Call(ELEMENTS, 0, count=50, repeat=3, strides=(1, 1, 1, 8, 8, 8), extra=ROUND[mode]),
    ):
        actual = launch(library, entry, call, [a], d)
        wanted = expected(
            call, [a], d, lambda before, x: np.clip(WHOLE[mode](x), *limits).astype(target)
        )
        check(actual, wanted, exact=True)


@pytest.mark.parametrize("mode", ["RINT", "FLOOR", "CEIL", "TRUNC"])
@pytest.mark.parametrize("entry", ["cast_float_half", "cast_float_bf16"])
def test_cast_to_short_float(
    library: emulator.Library, rng: np.random.Generator, entry: str, mode: str
) -> None:
    dtype = torch.float16 if entry.endswith("half") else torch.bfloat16
    a = torch.from_numpy(rng.standard_normal(ELEMENTS).astype(np.float32) * 3)
    call = Call(ELEMENTS, 0, count=777, repeat=0, extra=ROUND[mode])
    actual = launch(library, entry, call, [a], torch.zeros(ELEMENTS, dtype=dtype))[:777]
    exact, got, nearest = a[:777].double(), actual.double(), a[:777].to(dtype).double()
    near = [torch.nextafter(actual, torch.full_like(actual, end)).double() for end in (1e4, -1e4)]
    step = torch.maximum((near[0] - got).abs(), (near[1] - got).abs())
    assert ((got - exact).abs() <= step).all()
    if mode == "RINT":
        assert torch.equal(got, nearest)
    if mode == "FLOOR":
        assert (got <= exact).all()
    if mode == "CEIL":
        assert (got >= exact).all()
    if mode == "TRUNC":
        assert (got.abs() <= exact.abs()).all()


@pytest.mark.parametrize(
    ("entry", "dtype", "target"),
    [
        ("cast_half_float", torch.float16, torch.float32),
        ("cast_bf16_float", torch.bfloat16, torch.float32),
        ("cast_int32_float", torch.int32, torch.float32),
        ("cast_int8_half", torch.int8, torch.float16),
        ("cast_int32_half", torch.int32, torch.float16),
    ],
)
def test_cast_exact(
    library: emulator.Library, entry: str, dtype: torch.dtype, target: torch.dtype
) -> None:
    a = (torch.randn(ELEMENTS) * 50).to(dtype)
    call = Call(ELEMENTS, 0, count=515, repeat=0)
    actual = launch(library, entry, call, [a], torch.zeros(ELEMENTS, dtype=target))
    # SetDeqScale scales int32 to half.
    scale = 0.25 if entry == "cast_int32_half" else 1
    assert torch.equal(actual[:515], (a[:515] * scale).to(target))
    assert not actual[515:].any()
