"""Copy-on-write of KV blocks for engines that have none: what vLLM 0.23 lacks (Ascend needs it).

From 0.26 on vLLM copies a block that a prefix hit shares in part: its managers reserve a block,
keep both ends referenced, and hand the copies to the worker in
``SchedulerOutput.kv_cache_block_copies``. These classes do the same in front of 0.23's managers and
bring the few methods of later managers that the rest of xyserve calls. It may go when vllm-ascend
runs on 0.26 or later; `is_native` is then true everywhere.
"""

from __future__ import annotations

import inspect
from abc import ABC
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.block_pool import BlockPool as PoolBase
    from vllm.v1.core.kv_cache_manager import KVCacheManager as ManagerBase
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager as SingleBase
    from vllm.v1.request import Request
else:
    ManagerBase = PoolBase = object
    # Python changes an object's class only to one of the same layout, in which the class that adds
    # the dictionary counts by its base: 0.23's managers of a group derive from ABC.
    SingleBase = ABC

ATTRIBUTE = "kv_cache_block_copies"
"""Of ``SchedulerOutput``: a field from 0.26 on, and on 0.23 an attribute that pickling keeps."""

WORKERS = frozenset({"vllm_xyserve.worker.cpu.XyCPUWorker", "vllm_xyserve.worker.npu.XyNPUWorker"})
"""Worker classes that carry copies out on an engine that does not."""

# What the classes below override or call, with the parameters that they rely on.
_MANAGER_NEEDS = {
    "get_computed_blocks": ("request",),
    "allocate_slots": ("request", "num_new_tokens", "num_new_computed_tokens"),
}
_SINGLE_NEEDS = {
    "get_num_blocks_to_allocate": ("request_id", "new_computed_blocks", "total_computed_tokens"),
    "allocate_new_computed_blocks": ("request_id", "new_computed_blocks"),
    "allocate_new_blocks": ("request_id", "num_tokens"),
}


class BlockCopy(NamedTuple):
    """Named as vLLM's own from 0.26 on."""

    src_block_id: int
    dst_block_id: int


def is_native(manager: ManagerBase) -> bool:
    """Whether the engine copies blocks by itself."""
    return hasattr(manager.coordinator.single_type_managers[0], "take_pending_cow_copies")


def reason_against(manager: ManagerBase, vllm_config: VllmConfig) -> str | None:
    """Why blocks cannot be copied in this engine, or None: natively, or by the classes here."""
    if is_native(manager):
        return None
    single = manager.coordinator.single_type_managers[0]
    missing = [*_missing(manager, _MANAGER_NEEDS), *_missing(single, _SINGLE_NEEDS)]
    if missing:
        return f"this vLLM cannot copy KV blocks, nor be taught to: it lacks {', '.join(missing)}"
    worker = vllm_config.parallel_config.worker_cls
    if worker not in WORKERS:
        return f"the worker {worker} copies no KV blocks"
    return None


def _missing(owner: object, needs: dict[str, tuple[str, ...]]) -> list[str]:
    found = []
    for name, parameters in needs.items():
        method = getattr(owner, name, None)
        # vllm-ascend wraps some of them in functions of (self, request, *args, **kwargs).
        known = set(inspect.signature(method).parameters) if callable(method) else set()
        if not known or not ({"args", "kwargs"} <= known or known.issuperset(parameters)):
            found.append(f"{type(owner).__name__}.{name}({', '.join(parameters)})")
    return found


def add(manager: ManagerBase) -> None:
    """Teach a manager, and the one of its only group, to copy on write."""
    (single,) = manager.coordinator.single_type_managers
    single.__class__ = _in_front(CopyOnWriteSingleMixin, type(single))
    single.xy_partial_hits, single.xy_pending = {}, []
    pool = manager.block_pool
    pool.__class__ = _in_front(FreeOrderMixin, type(pool))
    manager.__class__ = _in_front(CopyOnWriteMixin, type(manager))


def _in_front(mixin: type, base: type) -> type:
    return type(base.__name__, (mixin, base), {"__module__": __name__})


def attach(output: Any, manager: ManagerBase) -> None:
    """Put the copies of a step into its output, and give the references on their ends back.

    At once: workers run steps in the order in which they were composed, so whatever overwrites the
    source is computed after the copy. vLLM does the same where no KV connector reads blocks.
    """
    copies, retained = manager.take_kv_cache_block_copies()
    if copies:
        setattr(output, ATTRIBUTE, copies)
        # One by one: several copies may have one source, and 0.23 frees a block once a call.
        for block in retained:
            manager.block_pool.free_blocks([block])


class FreeOrderMixin(PoolBase):
    """In front of ``BlockPool``: blocks without a hash are reused first, as from 0.26 on.

    0.23 puts all behind the hashed ones, so that a request's unhashed blocks wait while cached
    prefixes are evicted.
    """

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock], prepend: bool = False) -> None:
        """Release blocks."""
        blocks = list(ordered_blocks)
        if prepend or not self.enable_caching:
            super().free_blocks(blocks, prepend)
            return
        unhashed = [block for block in blocks if block.block_hash is None]
        if unhashed:
            super().free_blocks(unhashed, True)
        if len(unhashed) < len(blocks):
            super().free_blocks([block for block in blocks if block.block_hash is not None])


class CopyOnWriteSingleMixin(SingleBase):
    """In front of the manager of a group, where a hit may end inside a block.

    Attributes:
        xy_partial_hits: index and source of the block to replace, by request.
        xy_pending: source and target of each copy of this step; both hold one more reference.
    """

    xy_partial_hits: dict[str, tuple[int, KVCacheBlock]]
    xy_pending: list[tuple[KVCacheBlock, KVCacheBlock]]

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock],
        total_computed_tokens: int,
        *args: Any,
        **kwargs: Any,
    ) -> int:
        """As the base, and one more for the target of a copy."""
        number: int = super().get_num_blocks_to_allocate(
            request_id, num_tokens, new_computed_blocks, total_computed_tokens, *args, **kwargs
        )
        return number + self._ends_inside(new_computed_blocks, total_computed_tokens)

    def allocate_new_computed_blocks(
        self,
        request_id: str,
        new_computed_blocks: Sequence[KVCacheBlock],
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
    ) -> None:
        """Adopt the blocks of a hit; the partly shared one is to be replaced by its copy."""
        is_new = request_id not in self.num_cached_block
        super().allocate_new_computed_blocks(
            request_id, new_computed_blocks, num_local_computed_tokens, num_external_computed_tokens
        )
        if is_new and self._ends_inside(new_computed_blocks, num_local_computed_tokens):
            index = num_local_computed_tokens // self.block_size
            self.xy_partial_hits[request_id] = (index, new_computed_blocks[-1])
            # The copy is hashed when it is full, so it does not count as cached before.
            self.num_cached_block[request_id] = index

    def allocate_new_blocks(self, request_id: str, *args: Any, **kwargs: Any) -> list[KVCacheBlock]:
        """As the base; the target of a copy takes the place of the partly shared block."""
        copied = []
        if request_id in self.xy_partial_hits:
            index, source = self.xy_partial_hits.pop(request_id)
            (target,) = self.block_pool.get_new_blocks(1)
            blocks = self.req_to_blocks[request_id]
            assert blocks[index] is source
            assert source.ref_cnt > 0
            blocks[index] = target
            target.ref_cnt += 1
            self.xy_pending.append((source, target))
            copied.append(target)
        return copied + super().allocate_new_blocks(request_id, *args, **kwargs)

    def _ends_inside(self, blocks: Sequence[KVCacheBlock], num_tokens: int) -> bool:
        return len(blocks) > 0 and num_tokens % self.block_size != 0


class CopyOnWriteMixin(ManagerBase):
    """In front of ``KVCacheManager``: copies, and statistics that count a request once.

    0.23 counts a lookup when it is made, and a waiting request is looked up in each step.
    """

    log_stats: bool
    watermark_blocks = 0

    def prefix_cache_lookup_enabled(self, request: Request) -> bool:
        """Whether the request may read the prefix cache."""
        return bool(self.enable_caching and not request.skip_reading_prefix_cache)

    def get_computed_blocks(self, request: Request) -> Any:
        """The base's hit, not counted yet."""
        log_stats, self.log_stats = self.log_stats, False
        try:
            return super().get_computed_blocks(request)
        finally:
            self.log_stats = log_stats

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """As the base; counts the hit of a request that is admitted."""
        blocks = super().allocate_slots(
            request, num_new_tokens, num_new_computed_tokens, new_computed_blocks, *args, **kwargs
        )
        if blocks is not None and new_computed_blocks is not None:
            self.record_prefix_cache_stats(request, num_new_computed_tokens)
        return blocks

    def record_prefix_cache_stats(self, request: Request, num_hits: int) -> None:
        """Count an admission."""
        if self.log_stats and self.prefix_cache_lookup_enabled(request):
            assert self.prefix_cache_stats is not None
            self.prefix_cache_stats.record(
                num_tokens=request.num_tokens,
                num_hits=num_hits,
                preempted=request.num_preemptions > 0,
            )

    def take_kv_cache_block_copies(self) -> tuple[list[BlockCopy], list[KVCacheBlock]]:
        """The copies of this step, and the blocks whose extra references they hold."""
        (single,) = self.coordinator.single_type_managers
        pending, single.xy_pending = single.xy_pending, []
        copies = [BlockCopy(source.block_id, target.block_id) for source, target in pending]
        return copies, [block for pair in pending for block in pair]
