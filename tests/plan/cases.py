"""Random plans for the property tests, and a plain statement of what attention needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from vllm_xyserve.plan import STRATEGIES, CostModel, Device, Geometry, PlanSpec, Policy, Sections

# Small tiles and quanta, so that few queries and keys reach every case.
COSTS = st.builds(
    CostModel,
    task_ns=st.sampled_from([0, 1, 1, 1000]),
    gbytes_per_s=st.sampled_from([1, 40]),
    gflops=st.sampled_from([1, 9000]),
    partial_ns=st.sampled_from([0, 10]),
)
QUANTA = st.sampled_from([1, 4, 16])
DEVICES = QUANTA.flatmap(
    lambda quantum: st.builds(
        Device,
        num_cores=st.sampled_from([1, 2, 3, 8, 24]),
        tile_rows=st.sampled_from([(4,), (2, 8), (1, 2, 16)]),
        split_quantum=st.just(quantum),
        cost=COSTS,
        min_split_keys=st.sampled_from([1, 16]),
        max_splits=st.sampled_from([64, 3, 1]),
        split_span=st.sampled_from([quantum, 4 * quantum]),
    )
)
GEOMETRIES = st.builds(
    Geometry,
    num_kv_heads=st.integers(1, 5),
    group_size=st.sampled_from([1, 3, 4, 20]),
    head_dim=st.sampled_from([32, 128]),
    window=st.sampled_from([0, 0, 1, 5, 40]),
    causal=st.booleans(),
)
POLICIES = st.builds(
    Policy,
    dealing=st.sampled_from(STRATEGIES),
    invariant=st.sampled_from([False, False, True]),
    levels=st.sampled_from([5, 3, 1, 0]),
)
SPECS = st.builds(PlanSpec, DEVICES, GEOMETRIES, POLICIES)
# Query length and key length; fewer keys than queries and neither are legal.
ROW = st.tuples(st.integers(0, 20), st.integers(0, 90))
ROWS = st.lists(ROW, max_size=8)


@dataclass(frozen=True)
class Columns:
    query_lens: list[int]
    key_lens: list[int]


def columns(rows: list[tuple[int, int]]) -> Columns:
    return Columns([row[0] for row in rows], [row[1] for row in rows])


def needed(geometry: Geometry, query_len: int, key_len: int) -> npt.NDArray[np.bool_]:
    """Which of the row's keys each query needs, [query_len, key_len], one pair after the other."""
    mask = np.zeros((query_len, key_len), dtype=bool)
    for query in range(query_len):
        position = key_len - query_len + query
        for key in range(key_len):
            visible = key <= position or not geometry.causal
            if geometry.window:
                visible = visible and abs(position - key) < geometry.window
            mask[query, key] = visible
    return mask


def computed(
    table: Sections, geometry: Geometry, row: int, query_len: int, key_len: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """How often each (head, query, key) and each (head, query) is computed by the row's tasks.

    Within its rectangle a task computes what the mask needs, as the kernels do.
    """
    pairs = np.zeros((geometry.num_kv_heads, query_len, key_len), dtype=np.int64)
    written = np.zeros((geometry.num_kv_heads, query_len), dtype=np.int64)
    for task in table.tasks[(table.tasks["segment"] == row) & (table.tasks["num_queries"] > 0)]:
        head, query = int(task["head_begin"]), int(task["query_begin"])
        heads = slice(head, head + int(task["num_heads"]))
        queries = slice(query, query + int(task["num_queries"]))
        assert heads.stop <= geometry.num_kv_heads
        assert queries.stop <= query_len
        assert 0 <= task["key_begin"] <= task["key_end"] <= key_len
        pairs[heads, queries, int(task["key_begin"]) : int(task["key_end"])] += 1
        written[heads, queries] += int(task["split"]) == 0
    return pairs * needed(geometry, query_len, key_len), written


def tasks_of_core(table: Sections, core: int) -> npt.NDArray[np.void]:
    """A core's tasks without those that fill its slice up."""
    slice_ = table.tasks[table.core_begin[core] : table.core_begin[core + 1]]
    return slice_[slice_["num_queries"] > 0]
