"""The partly filled last blocks of running requests, as they were when a step started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vllm_xyserve.prefix.index import Family, Tokens
from vllm_xyserve.prefix.match import common_prefix_len


@dataclass(frozen=True, slots=True)
class RunningSource:
    """The last block of a running request.

    Attributes:
        request_id: its owner.
        num_preemptions: of the owner then; another number now means that it lost its blocks.
        block_index: place of the block in the owner's block table.
        tokens: the owner's tokens (not a copy: tokens are only ever appended).
        start: first token of the block.
        length: tokens of the block whose keys and values had been computed.
    """

    request_id: str
    num_preemptions: int
    block_index: int
    tokens: Sequence[int]
    start: int
    length: int

    def matches(self, offset: int, token: int) -> bool:
        """Whether the token at ``offset`` of the block is ``token`` and computed."""
        return offset < self.length and self.tokens[self.start + offset] == token


class RunningSnapshot:
    """The running sources of one step by family. Made anew for a step that looks something up."""

    def __init__(self) -> None:
        self._sources: dict[Family, list[RunningSource]] = {}

    def add(self, family: Family, source: RunningSource) -> None:
        """Enter a source."""
        self._sources.setdefault(family, []).append(source)

    def match(
        self,
        family: Family,
        tokens: Tokens,
        span: slice,
        at_least: int,
        valid: Callable[[RunningSource], bool],
    ) -> tuple[RunningSource | None, int]:
        """The valid source that shares most with ``tokens[span]``, beyond ``at_least``, or None.

        Looks at one token to pass over a source that cannot be better: 0.2 us each, and there
        are no more of them than running requests.
        """
        best, best_len = None, at_least
        sources = self._sources.get(family)
        if sources is None:
            return best, best_len
        query = tokens[span]
        for source in sources:
            if best_len >= len(query):
                break
            if not source.matches(best_len, query[best_len]):
                continue
            held = source.tokens[source.start : source.start + source.length]
            length = common_prefix_len(held, query)
            if length > best_len and valid(source):
                best, best_len = source, length
        return best, best_len
