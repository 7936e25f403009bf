"""Tuned choices and the split along K: every value gives the bits of the rule."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.native.linear_cases import Layer, assert_linear, layer, poisoned_rows
from vllm_xyserve.ops import linear as ops
from vllm_xyserve.ops import linear_tuned, registry
from vllm_xyserve.ops.isa import ISAS

RUNNABLE = [k for k in registry.kernels("linear") if k.isa != registry.REFERENCE and k.available]
each_kernel = pytest.mark.parametrize("kernel", RUNNABLE, ids=[k.name for k in RUNNABLE])
pytestmark = pytest.mark.usefixtures("needs_native")

# Beside 0 (the rule): what `vllm-xyserve tune` may write, and values that fit no shape.
VALUES = {
    "tile_rows": (1, 2, 3, 4, 5, 6, 9, 1000),
    "block_steps": (1, 7, 128, 2048, 10**6),
    "use_threads": (1, 2, 3, 64),
    "row_parts": (1, 2, 5, 10**6),
    "pass_rows": (1, 5, 48, 10**6),
    "pass_panels": (1, 2, 3, 10**6),
    "split_k": (1, 2),
}


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _no_table() -> Iterator[None]:
    linear_tuned.set_tuned([])
    yield
    linear_tuned.set_tuned([])


def row(kernel: registry.Kernel, n: int, k: int, **words: Any) -> list[int]:
    """A row for a kernel on the present number of threads, for every m unless told."""
    known: dict[str, int] = dict.fromkeys(linear_tuned.TUNED_COLUMNS, 0)
    known |= {"dtype": linear_tuned.DTYPES.index(kernel.dtype), "isa": ISAS.index(kernel.isa)}
    known |= {"threads": torch.get_num_threads(), "n": n, "k": k, "m_first": 1, "m_last": 2**40}
    assert set(words) <= set(known)
    return list({**known, **words}.values())


def run(
    kernel: registry.Kernel, x: torch.Tensor, of: Layer, packed: torch.Tensor
) -> tuple[torch.Tensor, int]:
    """The product by exactly this kernel, and how many table rows it found."""
    calls, found = registry.calls()[kernel.name], linear_tuned.tuned_calls()
    with registry.isa_cap(kernel.isa):
        out = ops.linear(x, packed, of.bias, of.weight.shape[0])
    assert registry.calls()[kernel.name] == calls + 1
    return out, linear_tuned.tuned_calls() - found


@each_kernel
def test_every_value_gives_the_bits_of_the_rule(
    kernel: registry.Kernel, rng: torch.Generator
) -> None:
    """Odd N and K with and without segments, fewer and more rows than any value."""
    dtype = registry.DTYPES[kernel.dtype]
    for (n, k), m in itertools.product(((97, 1237), (225, 131)), (1, 7, 53)):
        of = layer(n, k, dtype, rng)
        packed, x = ops.linear_pack(of.weight), poisoned_rows(m, k, dtype, rng)
        linear_tuned.set_tuned([])
        expected, found = run(kernel, x, of, packed)
        assert found == 0
        assert_linear(expected, of.exact(x), of.terms(x), kernel.name)
        for name, values in VALUES.items():
            for value in values:
                words = {"use_threads": 3, name: value}
                linear_tuned.set_tuned([row(kernel, n, k, **words)])
                out, found = run(kernel, x, of, packed)
                assert found == 1
                assert torch.equal(out, expected), f"{n}x{k} M={m} {name}={value}"


@settings(max_examples=80, deadline=None)
@given(
    m=st.integers(1, 90),
    n=st.integers(1, 300),
    k=st.integers(1, 1500),
    kernel=st.sampled_from(RUNNABLE),
    num_threads=st.integers(1, 5),
    words=st.fixed_dictionaries({name: st.sampled_from((0, *v)) for name, v in VALUES.items()}),
    seed=st.integers(0, 2**31 - 1),
)
def test_random_choices(
    m: int,
    n: int,
    k: int,
    kernel: registry.Kernel,
    num_threads: int,
    words: dict[str, int],
    seed: int,
) -> None:
    rng = torch.Generator().manual_seed(seed)
    dtype = registry.DTYPES[kernel.dtype]
    of = layer(n, k, dtype, rng)
    packed, x = ops.linear_pack(of.weight), poisoned_rows(m, k, dtype, rng)
    linear_tuned.set_tuned([])
    with threads(1):
        expected, _ = run(kernel, x, of, packed)
    assert_linear(expected, of.exact(x), of.terms(x), kernel.name)
    with threads(num_threads):
        linear_tuned.set_tuned([row(kernel, n, k, **words)])
        out, found = run(kernel, x, of, packed)
    assert found == 1
    assert torch.equal(out, expected), words


@each_kernel
@pytest.mark.parametrize(("n", "k"), [(8, 4096), (33, 2049), (70, 1030), (1, 515)])
def test_split_along_k(kernel: registry.Kernel, n: int, k: int, rng: torch.Generator) -> None:
    """Too few panels for the threads: a row's bits are those that it has alone on one thread."""
    dtype = registry.DTYPES[kernel.dtype]
    of = layer(n, k, dtype, rng)
    packed, x = ops.linear_pack(of.weight), poisoned_rows(61, k, dtype, rng)
    with threads(1):
        whole, _ = run(kernel, x, of, packed)
    assert_linear(whole, of.exact(x), of.terms(x), kernel.name)
    for count, m in itertools.product((2, 3, 7, 16), (1, 2, 13, 61)):
        with threads(count):
            for words in ({}, {"split_k": 2, "use_threads": count}):
                linear_tuned.set_tuned([row(kernel, n, k, **words)])
                assert torch.equal(run(kernel, x[:m], of, packed)[0], whole[:m]), (count, m)


@each_kernel
def test_split_epilogues(kernel: registry.Kernel, rng: torch.Generator) -> None:
    dtype = registry.DTYPES[kernel.dtype]
    of = layer(128, 1537, dtype, rng)
    packed, x = ops.linear_pack(of.weight), poisoned_rows(9, 1537, dtype, rng)
    residual = poisoned_rows(9, 128, dtype, rng)

    def both() -> list[torch.Tensor]:
        with registry.isa_cap(kernel.isa):
            return [
                ops.linear_silu_mul(x, packed, of.bias, 128),
                ops.linear_add(x, packed, of.bias, 128, residual),
            ]

    with threads(1):
        expected = both()
    with threads(4):
        linear_tuned.set_tuned([row(kernel, 128, 1537, split_k=2, use_threads=4)])
        for _ in range(20):
            for out, one in zip(both(), expected, strict=True):
                assert torch.equal(out, one)


def test_special_values_survive_the_split(rng: torch.Generator) -> None:
    kernel = registry.chosen("linear", torch.float32)
    of = layer(40, 1025, torch.float32, rng)
    packed = ops.linear_pack(of.weight)
    x = torch.randn(5, 1025, generator=rng)
    x[1, 1024], x[3, 0] = float("nan"), float("inf")
    with threads(4):
        linear_tuned.set_tuned([row(kernel, 40, 1025, split_k=2, use_threads=4)])
        out, _ = run(kernel, x, of, packed)
    assert out[1].isnan().all()
    assert not out[3].isfinite().any()
    assert_linear(out[::2], of.exact(x[::2]), of.terms(x[::2]))


def test_a_row_is_found_by_its_whole_key(rng: torch.Generator) -> None:
    kernel = registry.chosen("linear", torch.float32)
    of = layer(64, 20, torch.float32, rng)
    packed = ops.linear_pack(of.weight)
    others = [
        row(kernel, 64, 21),
        row(kernel, 63, 20),
        row(kernel, 64, 20, threads=torch.get_num_threads() + 1),
        row(kernel, 64, 20, dtype=1),
        row(kernel, 64, 20, isa=0) if kernel.isa != "scalar" else row(kernel, 1, 1),
    ]
    ours = [
        row(kernel, 64, 20, m_first=3, m_last=4),
        row(kernel, 64, 20, m_first=6, m_last=9, tile_rows=2),
    ]

    def hits(table: Sequence[Sequence[int]]) -> list[int]:
        linear_tuned.set_tuned(table)
        return [m for m in range(1, 12) if run(kernel, torch.randn(m, 20), of, packed)[1]]

    assert hits([*others, *ours]) == [3, 4, 6, 7, 8, 9]
    assert hits([*ours[::-1], *others]) == [3, 4, 6, 7, 8, 9]
    assert hits(others) == []
    assert hits([]) == []


def test_tables_that_mean_nothing_are_refused() -> None:
    kernel = registry.chosen("linear", torch.float32)
    with pytest.raises(RuntimeError, match="dtype from 0 to 2"):
        linear_tuned.set_tuned([row(kernel, 1, 1, dtype=7)])
    with pytest.raises(RuntimeError, match="columns of at least 0, got -1 in column 7"):
        linear_tuned.set_tuned([row(kernel, 1, 1, tile_rows=-1)])
    with pytest.raises(RuntimeError, match=r"int64 \[entries, 14\], got \[1, 3\]"):
        torch.ops.xyserve.linear_set_tuned(torch.zeros(1, 3, dtype=torch.int64))


def test_tables_may_be_replaced_while_calls_run(rng: torch.Generator) -> None:
    import threading

    kernel = registry.chosen("linear", torch.float32)
    of = layer(64, 600, torch.float32, rng)
    packed, x = ops.linear_pack(of.weight), torch.randn(9, 600, generator=rng)
    expected, _ = run(kernel, x, of, packed)
    stop = threading.Event()

    def replace() -> None:
        for rows in itertools.cycle((1, 2, 5)):
            linear_tuned.set_tuned([row(kernel, 64, 600, tile_rows=rows, split_k=2)])
            if stop.is_set():
                return
            time.sleep(0.001)

    other = threading.Thread(target=replace)
    other.start()
    try:
        for _ in range(200):
            assert torch.equal(ops.linear(x, packed, of.bias, 64), expected)
    finally:
        stop.set()
        other.join()
