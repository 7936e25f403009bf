"""The block pool's part of token-level prefix matching: it feeds the index, orders free blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm_xyserve.compat import free_queue
from vllm_xyserve.prefix import ROOT, Entry, Family
from vllm_xyserve.scheduler.prefix_state import PrefixState, identity, is_comparable

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool as Base
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request
else:
    Base = object


class XyBlockPoolMixin(Base):
    """In front of vLLM's ``BlockPool``. Its free queue becomes: never-used blocks, tails with the
    oldest first, hashed blocks with the least recently used first. A request's unhashed blocks
    would otherwise go to the front, where the very next request overwrites them.
    """

    xy: PrefixState
    # The last block of the unhashed run at the queue's front that we know of: tails go behind it.
    _xy_last_unhashed: KVCacheBlock | None = None

    def cache_full_blocks(
        self,
        request: Request,
        blocks: list[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        **kwargs: Any,
    ) -> None:
        """Hash a request's full blocks, and enter them into the index."""
        super().cache_full_blocks(
            request=request,
            blocks=blocks,
            num_cached_blocks=num_cached_blocks,
            num_full_blocks=num_full_blocks,
            block_size=block_size,
            kv_cache_group_id=kv_cache_group_id,
            **kwargs,
        )
        if num_cached_blocks >= num_full_blocks:
            return
        xy = self.xy
        comparable, who = is_comparable(request), identity(request)
        for block_index in range(num_cached_blocks, num_full_blocks):
            block = blocks[block_index]
            if block.is_null or block.block_hash is None:
                continue
            xy.hashed_at[block.block_id] = xy.step
            if comparable:
                start = block_index * block_size
                tokens = request.all_token_ids[start : start + block_size]
                parent = request.block_hashes[block_index - 1] if block_index else ROOT
                xy.index.add(Family(parent, who), Entry(block.block_id, tokens, block.block_hash))

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take blocks from the queue; what they held is forgotten."""
        blocks = super().get_new_blocks(num_blocks)
        for block in blocks:
            self.xy.forget(block.block_id)
        return blocks

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock], *args: Any, **kw: Any) -> None:
        """Release blocks, and put tails that nobody holds any more into their place."""
        blocks = list(ordered_blocks)
        super().free_blocks(blocks, *args, **kw)
        if self.xy.tails:
            for block in blocks:
                if block.block_id in self.xy.tails and free_queue.is_queued(block):
                    self._queue_tail(block)

    def _queue_tail(self, block: KVCacheBlock) -> None:
        queue = self.free_block_queue
        queue.remove(block)
        start = self._xy_last_unhashed
        if start is not None and (not free_queue.is_queued(start) or start.block_hash is not None):
            start = None
        place = free_queue.last_unhashed(queue, start)
        free_queue.insert_after(queue, place, block)
        self._xy_last_unhashed = block

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Take the hashes of blocks away."""
        super().evict_blocks(block_ids)
        for block_id in block_ids:
            self.xy.forget(block_id)

    def reset_prefix_cache(self) -> bool:
        """Forget everything that is cached, unless blocks are in use."""
        done = super().reset_prefix_cache()
        if done:
            self.xy.forget_all()
        return done

    def xy_add_tail(
        self, request: Request, block_index: int, block: KVCacheBlock, length: int
    ) -> None:
        """Enter the partly filled last block of a finished request, before it is freed."""
        xy = self.xy
        start = block_index * xy.block_size
        tokens = request.all_token_ids[start : start + length]
        xy.num_tails_ever += 1
        xy.tails.pop(block.block_id, None)
        xy.tails[block.block_id] = xy.num_tails_ever
        xy.index.add(
            xy.family(request, block_index), Entry(block.block_id, tokens, xy.num_tails_ever)
        )

    def xy_is_valid(self, entry: Entry) -> bool:
        """Whether an entry's block still holds the entry's tokens, computed before this step."""
        if isinstance(entry.proof, int):
            return self.xy.tails.get(entry.block_id) == entry.proof
        if self.xy.hashed_at.get(entry.block_id) == self.xy.step:
            return False
        return self.blocks[entry.block_id].block_hash == entry.proof
