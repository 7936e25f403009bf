"""The task tables of a step: taken from the scheduler where they fit, else planned here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from vllm_xyserve.attention.inbox import inbox
from vllm_xyserve.ops import native
from vllm_xyserve.plan import check, complete
from vllm_xyserve.plan.spec import CPU, CPU_AVX2, Device, Geometry, PlanSpec, Policy
from vllm_xyserve.plan.step import Lengths, Table, planner

if TYPE_CHECKING:
    from vllm_xyserve.attention.impl import MetaAttentionImpl


def device() -> Device:
    """The CPU with the threads that this process computes with."""
    cpu = CPU_AVX2 if native.load().isa == "avx2" else CPU
    return cpu.with_cores(torch.get_num_threads())


def spec_of(impl: MetaAttentionImpl, element_bytes: int, invariant: bool) -> PlanSpec:
    """What a layer's tables are planned for, if it is causal."""
    geometry = Geometry(
        num_kv_heads=impl.num_kv_heads,
        group_size=impl.num_queries_per_kv,
        head_dim=impl.head_size,
        element_bytes=element_bytes,
        window=max(impl.sliding_window, 0),
    )
    return PlanSpec(device(), geometry, Policy(invariant=invariant))


def make(spec: PlanSpec, query_start_loc: Lengths, key_lens: Lengths) -> torch.Tensor:
    """The table of a step, complete.

    Args:
        spec: what to plan for.
        query_start_loc: ``[num_rows + 1]`` int32, bounds of each batch row's tokens.
        key_lens: ``[num_rows]`` int32, tokens of each request with this step's, or a bound.

    Returns:
        ``[num_bytes]`` uint8.
    """
    query_lens = np.diff(query_start_loc)
    table = _handed_over(spec, query_start_loc, query_lens, key_lens)
    if table is None:
        began = time.perf_counter()
        table = planner(spec).plan(query_lens, key_lens)
        complete(table, np.arange(len(query_lens)), query_start_loc)
        inbox.counters.plan_seconds += time.perf_counter() - began
    inbox.counters.count(table)
    return torch.from_numpy(table)


def _handed_over(
    spec: PlanSpec, query_start_loc: Lengths, query_lens: Lengths, key_lens: Lengths
) -> Table | None:
    """The scheduler's table in batch order, or None; why it is not used is counted."""
    if not inbox.expects_plans:
        return None
    began = time.perf_counter()
    taken = inbox.take(spec)
    if isinstance(taken, str):
        inbox.counters.count_replanned(taken)
        return None
    table, order = taken
    reason = check(table, spec, query_lens[order], key_lens[order])
    if reason is not None:
        inbox.counters.count_replanned(reason)
        return None
    complete(table, order, query_start_loc)
    inbox.counters.complete_seconds += time.perf_counter() - began
    inbox.counters.num_handed_over += 1
    return table
