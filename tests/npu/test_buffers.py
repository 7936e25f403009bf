"""Device buffers of a step: any step within the limits fits, and a table arrives whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vllm_xyserve import plan
from vllm_xyserve.attention.ascend.buffers import (
    Limits,
    RowBuffers,
    TableBuffers,
    partial_rows,
    table_bytes,
)
from vllm_xyserve.plan import NPU, Geometry, Planner, PlanSpec, Policy

CPU = torch.device("cpu")


def specs() -> list[PlanSpec]:
    geometries = [Geometry(8, 4, 128), Geometry(1, 8, 128), Geometry(2, 1, 64, window=256)]
    return [
        PlanSpec(NPU.with_cores(cores), geometry, Policy(invariant=invariant))
        for cores in (20, 24)
        for geometry in geometries
        for invariant in (False, True)
    ]


def random_step(rng: np.random.Generator, limits: Limits) -> tuple[np.ndarray, np.ndarray]:
    """Query and key lengths of a step within the limits, often at them."""
    num_rows = int(rng.choice([1, 2, 7, limits.max_rows // 2, limits.max_rows]))
    query = np.ones(num_rows, dtype=np.int32)
    spare = limits.max_tokens - num_rows
    if rng.random() < 0.7:
        query[rng.integers(num_rows)] += int(rng.integers(spare + 1))
    longest = int(rng.choice([200, 4000, limits.max_keys]))
    keys = np.maximum(query, rng.integers(1, longest + 1, num_rows)).astype(np.int32)
    return query, keys


@pytest.mark.parametrize("spec", specs(), ids=lambda s: f"{s.device.num_cores}-{s.geometry}")
def test_every_step_within_the_limits_fits(spec: PlanSpec) -> None:
    limits = Limits(max_rows=66, max_tokens=512, max_keys=32768)
    rng = np.random.default_rng(7)
    planner = Planner(spec.device, spec.geometry, spec.policy)
    for _ in range(40):
        query, keys = random_step(rng, limits)
        table = planner.plan(query, keys)
        assert len(table) <= table_bytes(spec, limits)
        assert int(plan.view(table).header["num_partial_rows"]) <= partial_rows(spec, limits)


def completed(spec: PlanSpec, query: list[int], keys: list[int]) -> np.ndarray:
    table = Planner(spec.device, spec.geometry, spec.policy).plan(query, keys)
    plan.complete(table, np.arange(len(query)), np.cumsum([0, *query]))
    return table


def test_a_table_arrives_whole_and_in_place() -> None:
    spec = specs()[0]
    buffers = TableBuffers(spec, Limits(8, 64, 4096), CPU)
    place = buffers.table.data_ptr()
    for query, keys in (([1] * 8, [4000] * 8), ([3, 20], [3, 100])):
        table = completed(spec, query, keys)
        put = buffers.put(table)
        assert put.is_persistent
        assert put.table.data_ptr() == place
        assert np.array_equal(put.table.numpy()[: len(table)], table)
        assert put.splits == (int(plan.view(table).header["num_partial_rows"]) > 0)


def test_a_longer_step_gets_tensors_of_its_own() -> None:
    spec = specs()[0]
    buffers = TableBuffers(spec, Limits(2, 2, 256), CPU)
    before = buffers.table.clone()
    table = completed(spec, [1] * 300, [4000] * 300)
    put = buffers.put(table)
    assert not put.is_persistent
    assert np.array_equal(put.table.numpy(), table)
    assert torch.equal(buffers.table, before)


def test_rows_in_place() -> None:
    rows = RowBuffers(6, 4, CPU)
    places = rows.seq_lens.data_ptr(), rows.block_table.data_ptr()
    blocks = torch.arange(1, 13, dtype=torch.int32).view(3, 4)
    rows.put(torch.tensor([300, 5, 9]), np.array([1, 5, 2], np.int32), blocks)
    assert rows.seq_lens.tolist()[:3] == [300, 5, 9]
    assert torch.equal(rows.block_table[:3], blocks)
    # A row that only fills a graph up: more queries than tokens, and no row of the block table.
    rows.put(torch.tensor([301, 0]), np.array([1, 3], np.int32), blocks[:1, :2])
    assert rows.seq_lens.tolist()[:2] == [301, 3]
    assert rows.block_table[0, :2].tolist() == [1, 2]
    assert rows.block_table[1].tolist() == [0, 0, 0, 0]
    assert places == (rows.seq_lens.data_ptr(), rows.block_table.data_ptr())


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="3 rows exceeds the 2"):
        RowBuffers(2, 1, CPU).put(
            torch.ones(3), np.ones(3, np.int32), torch.ones(3, 1, dtype=torch.int32)
        )
