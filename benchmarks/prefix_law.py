"""The hit law, computed from token sequences alone: what a cache without eviction could serve.

A request's cached tokens are min(longest common prefix with any cached sequence, its length - 1).
Cached is what had been computed when the step began that admits the request: of a finished request
all but its last token, of a running one what its steps had covered. vLLM also serves whole blocks
that an earlier row of the same step is about to fill, so those count too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Step:
    """What a scheduler did in one step.

    Attributes:
        computed: per running request, its tokens computed before the step.
        scheduled: per request, its tokens of this step.
        admitted: new requests in order, with the tokens that were served from the cache.
        schedule_us: time to compose it.
    """

    computed: Mapping[str, int]
    scheduled: Mapping[str, int]
    admitted: Sequence[tuple[str, int]]
    schedule_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Admission:
    """Cached tokens of one request: what it got, the law, and the law in whole blocks."""

    name: str
    got: int
    law: int
    block_law: int


def admissions(
    steps: Sequence[Step],
    sequences: Mapping[str, Sequence[int]],
    prompt_lens: Mapping[str, int],
    finished_in: Mapping[str, int],
    block_size: int,
) -> list[Admission]:
    """The law for every request that was admitted.

    Args:
        steps: in order.
        sequences: per request, prompt and generated tokens.
        prompt_lens: per request, tokens of its prompt.
        finished_in: per request, the index of its last step.
        block_size: tokens of a block.
    """
    tokens = {name: np.asarray(sequence, np.int64) for name, sequence in sequences.items()}
    results = []
    for index, step in enumerate(steps):
        if not step.admitted:
            continue
        cached = {name: len(tokens[name]) - 1 for name, k in finished_in.items() if k < index}
        cached |= step.computed
        soon = {n: num + step.scheduled.get(n, 0) for n, num in step.computed.items()}
        for name, got in step.admitted:
            query = tokens[name][: prompt_lens[name] - 1]  # one token is always computed
            law = max((_shared(query, tokens[n][:num]) for n, num in cached.items()), default=0)
            blocks = max(
                (
                    _shared(query, tokens[n][:num]) // block_size * block_size
                    for n, num in (cached | soon).items()
                ),
                default=0,
            )
            results.append(Admission(name, got, max(law, blocks), blocks))
            soon[name] = got + step.scheduled[name]
    return results


def _shared(a: Tokens, b: Tokens) -> int:
    """Length of the longest common prefix."""
    length = min(len(a), len(b))
    differ = np.flatnonzero(a[:length] != b[:length])
    return int(differ[0]) if len(differ) else length
