"""The child index and the running snapshot against brute force."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_xyserve.prefix import (
    ROOT,
    ChildIndex,
    Entry,
    Family,
    RunningSnapshot,
    RunningSource,
    common_prefix_len,
)

FAMILY = Family(ROOT, None)
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)


def brute_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length


@given(TOKENS, TOKENS)
def test_common_prefix(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert common_prefix_len(a, b) == brute_prefix(a, b)


def test_common_prefix_of_long_sequences_at_every_length() -> None:
    a = tuple(range(130))
    for length in range(131):
        b = (*a[:length], -1, *a[length + 1 :]) if length < 130 else a
        assert common_prefix_len(a, b) == length


@settings(max_examples=400)
@given(st.lists(st.tuples(st.integers(0, 7), TOKENS, st.booleans())), TOKENS)
def test_the_best_valid_child_is_found(
    adds: list[tuple[int, tuple[int, ...], bool]], query: tuple[int, ...]
) -> None:
    index, held = ChildIndex(), {}
    for block_id, tokens, valid in adds:
        index.add(FAMILY, Entry(block_id, tokens, valid))
        held[block_id] = (tokens, valid)
        index.check()
    before = len(index)
    entry, length = index.match(FAMILY, query, slice(0, len(query)), lambda e: bool(e.proof))
    best = max((brute_prefix(t, query) for t, valid in held.values() if valid), default=0)
    assert length == best
    assert (entry is None) == (best == 0)
    if entry is not None:
        assert held[entry.block_id] == (entry.tokens, True)
        assert brute_prefix(entry.tokens, query) == best
    assert len(index) == before == len(held)


@given(st.lists(st.tuples(st.sampled_from(["add", "drop", "clear"]), st.integers(0, 5), TOKENS)))
def test_any_order_of_operations_keeps_it_consistent(
    operations: list[tuple[str, int, tuple[int, ...]]],
) -> None:
    index, held = ChildIndex(), set()
    for name, block_id, tokens in operations:
        family = Family(ROOT, tokens[0])
        if name == "add":
            index.add(family, Entry(block_id, tokens, 0))
            held.add(block_id)
        elif name == "drop":
            index.drop(block_id)
            held.discard(block_id)
        else:
            index.clear()
            held.clear()
        index.check()
        assert len(index) == len(held)
        assert all(block_id in index for block_id in held)


def test_families_are_apart() -> None:
    index = ChildIndex()
    index.add(Family(ROOT, "adapter"), Entry(1, (1, 2, 3), 0))
    index.add(Family(b"parent", None), Entry(2, (1, 2, 3), 0))
    assert index.match(FAMILY, (1, 2, 3), slice(0, 3), lambda e: True) == (None, 0)
    assert index.match(Family(b"parent", None), (1, 2, 9), slice(0, 3), lambda e: True)[1] == 2


def test_an_entry_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        ChildIndex().add(FAMILY, Entry(1, (), 0))


def test_a_check_finds_an_index_that_contradicts_itself() -> None:
    index = ChildIndex()
    index.add(FAMILY, Entry(1, (1,), 0))
    index.add(FAMILY, Entry(2, (1, 2), 0))
    index._keys[FAMILY, 1].reverse()
    with pytest.raises(AssertionError, match="out of order"):
        index.check()


def test_running_sources_against_brute_force() -> None:
    rng = random.Random(5)
    for _ in range(300):
        snapshot, held = RunningSnapshot(), []
        for number in range(rng.randrange(6)):
            tokens = [rng.randrange(3) for _ in range(12)]
            start, length = rng.randrange(4), rng.randrange(1, 8)
            source = RunningSource(str(number), 0, 0, tokens, start, length)
            snapshot.add(FAMILY, source)
            held.append((str(number), tokens[start : start + length]))
        query = [rng.randrange(3) for _ in range(rng.randrange(1, 8))]
        at_least, forbidden = rng.randrange(4), str(rng.randrange(6))
        source, length = snapshot.match(
            FAMILY,
            query,
            slice(0, len(query)),
            at_least,
            lambda s, bad=forbidden: s.request_id != bad,
        )
        lengths = [brute_prefix(t, query) for name, t in held if name != forbidden]
        best = max(lengths, default=0)
        if best > at_least:
            assert length == best
            assert source is not None
        else:
            assert (source, length) == (None, at_least)
