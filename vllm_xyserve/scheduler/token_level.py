"""Switches token-level prefix matching on in a scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_xyserve.compat import block_copies
from vllm_xyserve.config import PrefixConfig
from vllm_xyserve.scheduler import eligibility
from vllm_xyserve.scheduler.block_pool import XyBlockPoolMixin
from vllm_xyserve.scheduler.kv_cache_manager import XyKVCacheManagerMixin
from vllm_xyserve.scheduler.prefix_state import PrefixState

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request


def switch_on(scheduler: Scheduler, options: PrefixConfig) -> list[str]:
    """Make the scheduler's KV cache manager and block pool ours where that is possible.

    Their classes are changed in place: vLLM constructs both itself, from names that it takes from
    nowhere, and other parts hold the instances already.

    Returns:
        Why token-level hits stay off; empty if they are on.
    """
    manager = scheduler.kv_cache_manager
    kv_cache_config = scheduler.kv_cache_config
    reasons = eligibility.reasons_against(scheduler.vllm_config, kv_cache_config, manager, options)
    if reasons:
        return reasons
    group = kv_cache_config.kv_cache_groups[0]
    state = PrefixState(
        options=options,
        block_size=group.kv_cache_spec.block_size,
        page_bytes=group.kv_cache_spec.page_size_bytes * len(group.layer_names),
        running=lambda: scheduler.running,
        requests=scheduler.requests,
    )
    if not block_copies.is_native(manager):
        block_copies.add(manager)
    pool = manager.block_pool
    pool.__class__ = _mix(XyBlockPoolMixin, type(pool))
    manager.__class__ = _mix(XyKVCacheManagerMixin, type(manager))
    pool.xy = manager.xy = state
    return []


def evict_hashed_in_this_step(scheduler: Scheduler, request: Request) -> None:
    """Take the hashes away from the blocks that a request was to fill in this step."""
    manager = scheduler.kv_cache_manager
    state: PrefixState = manager.xy
    blocks = manager.coordinator.single_type_managers[0].req_to_blocks.get(request.request_id, ())
    manager.evict_blocks(
        {b.block_id for b in blocks if state.hashed_at.get(b.block_id) == state.step}
    )


def _mix(mixin: type, base: type) -> type:
    return type(f"Xy{base.__name__}", (mixin, base), {"__module__": __name__})
