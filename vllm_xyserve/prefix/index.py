"""The cached children of each prefix: which blocks continue it, and with which tokens."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple

from vllm_xyserve.prefix.match import common_prefix_len

ROOT: Final = b""
"""The parent of blocks that start a sequence."""

Tokens = Sequence[int]
"""Of one sequence type for all entries and queries, or they cannot be compared."""


class Family(NamedTuple):
    """What the children of a prefix have in common.

    A tuple, since every lookup makes and hashes one, which a frozen dataclass does in Python.

    Attributes:
        parent: hash of the block before them, which chains over all tokens and identities of the
            path, or `ROOT`.
        identity: what else their keys and values depend on (adapter, cache salt).
    """

    parent: bytes
    identity: Hashable


class Entry(NamedTuple):
    """A cached block, or the filled part of one.

    Attributes:
        block_id: of the block pool.
        tokens: those whose keys and values the block holds, from its start.
        proof: what the block pool must still say about the block for the entry to hold.
    """

    block_id: int
    tokens: Tokens
    proof: Hashable


class ChildIndex:
    """Cached children by family and first token, sorted, so that the best is found by bisection.

    The first token is part of the key since a child that differs there is no match: a lookup that
    finds nothing ends at a missing key, and most new blocks are alone under theirs. To enter two
    blocks among 200 unlike children and to look one up took 31 us of a step with cold caches
    when they were sorted by family alone.

    Holds at most one entry per block, so it is bounded by the pool. Knows nothing of validity:
    `match` asks for it, and never changes the index.
    """

    def __init__(self) -> None:
        # Sort key and entry lie side by side; the block id makes every key unique.
        self._keys: dict[tuple[Family, int], list[tuple[Tokens, int]]] = {}
        self._by_block: dict[int, tuple[Family, Entry]] = {}

    def __len__(self) -> int:
        return len(self._by_block)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._by_block

    def add(self, family: Family, entry: Entry) -> None:
        """Enter a block, in place of what the index held of the same block.

        Raises:
            ValueError: the entry has no tokens.
        """
        block_id, tokens, _ = entry
        if not tokens:
            raise ValueError(f"an entry needs at least one token; {entry=} has none")
        if block_id in self._by_block:
            self.drop(block_id)
        key = (family, tokens[0])
        keys = self._keys.get(key)
        if keys is None:
            self._keys[key] = [(tokens, block_id)]
        else:
            insort(keys, (tokens, block_id))
        self._by_block[block_id] = (family, entry)

    def drop(self, block_id: int) -> None:
        """Forget a block; nothing happens if the index does not hold it."""
        found = self._by_block.pop(block_id, None)
        if found is None:
            return
        family, entry = found
        key = (family, entry.tokens[0])
        keys = self._keys[key]
        if len(keys) == 1:
            del self._keys[key]
        else:
            del keys[bisect_left(keys, (entry.tokens, block_id))]

    def clear(self) -> None:
        """Forget everything."""
        self._keys.clear()
        self._by_block.clear()

    def match(
        self,
        family: Family,
        tokens: Tokens,
        span: slice,
        valid: Callable[[Entry], bool],
    ) -> tuple[Entry | None, int]:
        """The valid child with the longest common prefix with ``tokens[span]``, and its length.

        In sorted order that prefix only shrinks with the distance from the query's own place, on
        either side, so the search ends at the first valid neighbour that is no longer better.
        """
        keys = self._keys.get((family, tokens[span.start]))
        if keys is None:
            return None, 0
        query = tokens[span]
        place = bisect_left(keys, (query, -1))
        best, best_len = None, 0
        for positions in (range(place, len(keys)), range(place - 1, -1, -1)):
            for position in positions:
                held, block_id = keys[position]
                length = common_prefix_len(held, query)
                if length <= best_len:
                    break
                entry = self._by_block[block_id][1]
                if valid(entry):
                    best, best_len = entry, length
                    break
        return best, best_len

    def check(self) -> None:
        """Raise `AssertionError` if the index contradicts itself (for tests)."""
        total = 0
        for (family, first), keys in self._keys.items():
            assert keys, f"{family} has no children with {first=} and is kept"
            assert keys == sorted(keys), f"children of {family} are out of order"
            assert len({block_id for _, block_id in keys}) == len(keys), f"{family} has one twice"
            for tokens, block_id in keys:
                filed, entry = self._by_block[block_id]
                assert filed == family, f"block {block_id} is filed under {filed}, not {family}"
                assert entry.tokens == tokens, f"block {block_id} is filed under other tokens"
                assert tokens[0] == first, f"block {block_id} is filed under {first=}"
            total += len(keys)
        assert total == len(self._by_block), f"{total} children, {len(self._by_block)} blocks"
