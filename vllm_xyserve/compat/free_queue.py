"""vLLM's queue of free KV blocks, a doubly linked list through the blocks themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock


def is_queued(block: KVCacheBlock) -> bool:
    """Whether a block is in the queue."""
    return block.prev_free_block is not None


def insert_after(queue: FreeKVCacheBlockQueue, place: KVCacheBlock, block: KVCacheBlock) -> None:
    """Put a block that is not in the queue behind one that is (or behind its fake head)."""
    following = place.next_free_block
    assert following is not None, f"{place} is not in the queue"
    place.next_free_block, block.prev_free_block = block, place
    block.next_free_block, following.prev_free_block = following, block
    queue.num_free_blocks += 1


def last_unhashed(queue: FreeKVCacheBlockQueue, start: KVCacheBlock | None) -> KVCacheBlock:
    """The last block of the run of unhashed blocks at the queue's front, or the fake head.

    Args:
        queue: the queue.
        start: a block of that run from an earlier call, to walk on from; None for the front.
    """
    block = queue.fake_free_list_head if start is None else start
    while True:
        following = block.next_free_block
        assert following is not None, f"{block} is not in the queue"
        if following is queue.fake_free_list_tail or following.block_hash is not None:
            return block
        block = following
