"""Dealing: which core takes which piece. NumPy reference of csrc/plan/deal.cc."""

from __future__ import annotations

import heapq

import numpy as np

from vllm_xyserve.plan.tiles import Ints


def order_by_cost(costs: Ints) -> Ints:
    """Indices from the dearest to the cheapest; equal ones stay in their order."""
    return np.argsort(-costs, kind="stable").astype(np.int64)


def deal(sorted_costs: Ints, num_cores: int, strategy: str) -> Ints:
    """Core of each piece, given costs from the dearest to the cheapest. int64 [num_pieces].

    plain: 0, 1, .., C-1, 0, 1, ..  snake: there and back, 0..C-1, C-1..0 (XY-Serve, section 4.3).
    rounds: like plain, but before each round the cores are sorted by load. lpt: always the least
    loaded core (longest processing time first, Graham 1969). Among equal loads the lowest core.
    """
    position = np.arange(len(sorted_costs), dtype=np.int64)
    if strategy == "plain":
        return position % num_cores
    if strategy == "snake":
        turn, at = np.divmod(position, num_cores)
        return np.where(turn % 2 == 0, at, num_cores - 1 - at)
    if strategy == "rounds":
        return _deal_rounds(sorted_costs, num_cores)
    return _deal_lpt(sorted_costs, num_cores)


def _deal_rounds(sorted_costs: Ints, num_cores: int) -> Ints:
    cores = np.empty(len(sorted_costs), dtype=np.int64)
    loads = np.zeros(num_cores, dtype=np.int64)
    for start in range(0, len(sorted_costs), num_cores):
        costs = sorted_costs[start : start + num_cores]
        chosen = np.argsort(loads, kind="stable")[: len(costs)]
        cores[start : start + len(costs)] = chosen
        loads[chosen] += costs
    return cores


def _deal_lpt(sorted_costs: Ints, num_cores: int) -> Ints:
    heap = [(0, core) for core in range(num_cores)]
    cores = np.empty(len(sorted_costs), dtype=np.int64)
    for i, cost in enumerate(sorted_costs.tolist()):
        load, core = heap[0]
        cores[i] = core
        heapq.heapreplace(heap, (load + cost, core))
    return cores


def loads_of(costs: Ints, cores: Ints, num_cores: int) -> Ints:
    """Summed cost per core, exact. int64 [num_cores]."""
    loads = np.zeros(num_cores, dtype=np.int64)
    np.add.at(loads, cores, costs)
    return loads
