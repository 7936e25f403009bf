"""What the block pool and the KV cache manager share about token-level prefix matching."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm_xyserve.config import PrefixConfig
from vllm_xyserve.prefix import ROOT, ChildIndex, Family

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vllm.v1.request import Request


@dataclass(slots=True)
class PrefixCounters:
    """Totals since the engine started."""

    num_lookups: int = 0
    lookup_seconds: float = 0.0
    num_prompt_tokens: int = 0
    """Tokens of admitted requests that were looked up."""
    block_hit_tokens: int = 0
    """Those of them that whole blocks served."""
    sub_block_hit_tokens: int = 0
    """Those of them that a copied block served."""
    resumed_hit_tokens: int = 0
    """Tokens that either served to requests that resumed after a preemption: no user's hits."""
    num_copies: int = 0
    copied_bytes: int = 0
    num_refused: int = 0
    """Admissions without a partial hit that was there, but beside which the request might not have
    fitted. Counted once per admission: a waiting request is looked up anew in each step."""


@dataclass(slots=True)
class PrefixState:
    """One per engine core.

    Attributes:
        options: the user's.
        block_size: tokens of a block.
        page_bytes: bytes of a block over all layers, for the statistics.
        running: gives the scheduler's running requests.
        requests: the scheduler's requests by id.
        step: number of the step that is being composed.
        index: hashed blocks and tails, by the prefix that they continue.
        hashed_at: step in which a block got its hash, by block id. Its tokens are computed in
            that step, and a copy runs before anything is computed.
        tails: private number of each tail, by block id, oldest first. A number is never given
            twice, so an entry whose number is not here any more is stale.
    """

    options: PrefixConfig
    block_size: int
    page_bytes: int
    running: Callable[[], list[Request]]
    requests: Mapping[str, Request]
    step: int = 0
    index: ChildIndex = field(default_factory=ChildIndex)
    hashed_at: dict[int, int] = field(default_factory=dict)
    tails: dict[int, int] = field(default_factory=dict)
    num_tails_ever: int = 0
    counters: PrefixCounters = field(default_factory=PrefixCounters)
    least_match: int = field(init=False)
    """Tokens that a partial match needs to count."""

    def __post_init__(self) -> None:
        self.least_match = max(1, self.options.min_match_tokens)

    def forget(self, block_id: int) -> None:
        """A block lost its content or its hash."""
        self.index.drop(block_id)
        self.hashed_at.pop(block_id, None)
        self.tails.pop(block_id, None)

    def forget_all(self) -> None:
        """All blocks lost their content or hash."""
        self.index.clear()
        self.hashed_at.clear()
        self.tails.clear()

    def family(self, request: Request, block_index: int) -> Family:
        """The family of a request's block: the path before it, and the request's identity.

        The hash of the block before chains over the whole path, identities included. The identity
        stands beside it for the first block, and as a second proof for the others.
        """
        parent: bytes = request.block_hashes[block_index - 1] if block_index else ROOT
        return Family(parent, identity(request))


def identity(request: Request) -> Hashable:
    """What a request's keys and values depend on beside its tokens."""
    lora = request.lora_request
    if lora is None:
        return request.cache_salt
    return (lora.lora_name, lora.lora_int_id, lora.lora_path, request.cache_salt)


def is_comparable(request: Request) -> bool:
    """Whether tokens and `identity` say all that a request's keys and values depend on."""
    return not (
        request.mm_features
        or request.prompt_embeds is not None
        or getattr(request, "prompt_is_token_ids", None) is not None
        or getattr(request, "resumable", False)
    )
