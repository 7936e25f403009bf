"""What every plan must hold, on random devices, geometries, policies and rows."""

from __future__ import annotations

import ctypes
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plan.cases import ROWS, SPECS, columns, computed, needed, tasks_of_core
from vllm_xyserve.plan import (
    NPU,
    STRATEGIES,
    Geometry,
    Planner,
    PlanSpec,
    Policy,
    check,
    complete,
    native,
    statistics,
    view,
)
from vllm_xyserve.plan.layout import ALIGN, TASK
from vllm_xyserve.plan.reference import plan_reference
from vllm_xyserve.plan.rows import make_rows
from vllm_xyserve.plan.table import core_loads, task_costs
from vllm_xyserve.plan.tiles import cut_rows, cut_tiles, total_cost

HEADS = Geometry(num_kv_heads=4, group_size=4, head_dim=128)
Rows = list[tuple[int, int]]


def plan(spec: PlanSpec, rows: Rows) -> np.ndarray:
    cols = columns(rows)
    return plan_reference(spec, make_rows(cols.query_lens, cols.key_lens))


@given(SPECS, ROWS)
@settings(max_examples=150, deadline=None)
def test_every_needed_pair_is_computed_exactly_once(spec: PlanSpec, rows: Rows) -> None:
    table = view(plan(spec, rows))
    for row, (query_len, key_len) in enumerate(rows):
        pairs, written = computed(table, spec.geometry, row, query_len, key_len)
        assert (pairs == needed(spec.geometry, query_len, key_len)[None]).all()
        assert (written == 1).all()


@given(SPECS, st.integers(1, 20), st.integers(1, 500), st.integers(0, 60))
@settings(max_examples=100, deadline=None)
def test_a_cut_tile_keeps_all_its_keys_at_any_fineness(
    spec: PlanSpec, query_len: int, key_len: int, share: int
) -> None:
    """Whether or not the planner would choose this cut."""
    rows = make_rows([query_len], [key_len])
    tiles = cut_rows(spec, rows.query_lens, rows.key_lens)
    pieces = cut_tiles(spec, tiles, share and max(1, total_cost(spec, tiles) // share))
    for tile in range(len(tiles.segment)):
        for head in range(spec.geometry.num_kv_heads):
            own = (pieces.tile == tile) & (pieces.head_begin <= head)
            own &= head < pieces.head_begin + pieces.num_heads
            edges = [*pieces.key_begin[own].tolist(), int(tiles.key_end[tile])]
            assert edges[0] == tiles.key_begin[tile]
            assert pieces.key_end[own].tolist() == edges[1:]


@given(SPECS, ROWS)
@settings(max_examples=100, deadline=None)
def test_no_task_reaches_beyond_what_its_tile_needs(spec: PlanSpec, rows: Rows) -> None:
    """Causality and windows shorten the key range; nothing but the tile's own edge is masked."""
    for task in view(plan(spec, rows)).tasks:
        if task["num_queries"] == 0:
            continue
        query_len, key_len = rows[int(task["segment"])]
        begin = int(task["query_begin"])
        of_tile = needed(spec.geometry, query_len, key_len)[begin : begin + task["num_queries"]]
        used = np.flatnonzero(of_tile.any(axis=0))
        if len(used):
            assert used[0] <= task["key_begin"]
            assert task["key_end"] <= used[-1] + 1
        else:
            assert task["key_begin"] == task["key_end"]


@given(SPECS, ROWS.filter(len), st.integers(0, 30))
@settings(max_examples=100, deadline=None)
def test_kernels_find_their_keys_when_contexts_are_shorter_than_planned(
    spec: PlanSpec, rows: Rows, shorter: int
) -> None:
    """Asynchronous scheduling plans with bounds; `task_keys` works with the device's own length."""
    library = native.library()
    assert library is not None, native.missing()
    table = view(plan(spec, rows))
    for row, (query_len, bound) in enumerate(rows):
        key_len = max(bound - shorter, 0)
        counts = np.zeros((spec.geometry.num_kv_heads, query_len, key_len), dtype=int)
        for task in table.tasks[(table.tasks["segment"] == row) & (table.tasks["num_queries"] > 0)]:
            keys = np.zeros(2, dtype=np.int32)
            segment, entry = table.segments[row : row + 1].copy(), np.array([task])
            library.xyserve_task_keys(
                ctypes.c_void_p(segment.ctypes.data),
                ctypes.c_void_p(entry.ctypes.data),
                int(spec.geometry.causal),
                key_len,
                ctypes.c_void_p(keys.ctypes.data),
            )
            assert keys[0] >= 0
            assert keys[1] <= key_len
            head, query = int(task["head_begin"]), int(task["query_begin"])
            heads = slice(head, head + int(task["num_heads"]))
            counts[heads, query : query + int(task["num_queries"]), keys[0] : max(keys)] += 1
        mask = needed(spec.geometry, query_len, key_len)
        assert (counts * mask == mask[None]).all()


@given(SPECS, ROWS)
@settings(max_examples=100, deadline=None)
def test_slices_and_capacities(spec: PlanSpec, rows: Rows) -> None:
    buffer = plan(spec, rows)
    table = view(buffer)
    assert buffer.ctypes.data % ALIGN == 0
    for begins, entries in ((table.core_begin, table.tasks), (table.merge_begin, table.merges)):
        assert begins[0] == 0
        assert begins[-1] == len(entries)
        assert (np.diff(begins) >= 0).all()
        assert (begins * TASK.itemsize % ALIGN == 0).all()
    for name in ("core_begin", "merge_begin", "segments", "tasks", "merges"):
        assert table.header[f"{name}_offset"] % ALIGN == 0
    real = table.tasks[table.tasks["num_queries"] > 0]
    assert len(real) == table.header["num_real_tasks"]
    group = spec.geometry.group_size
    sizes = np.array(spec.device.tile_rows)[real["tile_class"]]
    assert ((real["num_queries"] * group <= sizes) | (real["num_queries"] == 1)).all()
    if not spec.policy.invariant:
        assert (real["num_splits"] <= spec.device.max_splits).all()
    assert table.header["max_splits"] == real["num_splits"].max(initial=0)


@given(SPECS, ROWS)
@settings(max_examples=150, deadline=None)
def test_merges_combine_exactly_the_partial_results(spec: PlanSpec, rows: Rows) -> None:
    table = view(plan(spec, rows))
    parts: dict[tuple[int, ...], dict[int, int]] = defaultdict(dict)
    owner = np.zeros(int(table.header["num_partial_rows"]), dtype=int)
    key_names = ("segment", "query_begin", "num_queries", "head_begin", "num_heads")
    for task in table.tasks:
        assert (task["num_splits"] > 1) == (task["partial"] >= 0 and task["num_queries"] > 0)
        if task["num_splits"] > 1:
            part = parts[tuple(int(task[name]) for name in (*key_names, "num_splits"))]
            assert int(task["split"]) not in part
            part[int(task["split"])] = int(task["partial"])
            size = int(task["num_queries"]) * int(task["num_heads"]) * spec.geometry.group_size
            owner[task["partial"] : task["partial"] + size] += 1
    assert (owner == 1).all()
    merges = table.merges[table.merges["num_queries"] > 0]
    assert len(merges) == len(parts) == table.header["num_real_merges"]
    for merge in merges:
        part = parts.pop(tuple(int(merge[name]) for name in (*key_names, "num_splits")))
        assert sorted(part) == list(range(int(merge["num_splits"])))
        size = int(merge["num_queries"]) * int(merge["num_heads"]) * spec.geometry.group_size
        assert all(at == int(merge["first_partial"]) + s * size for s, at in part.items())


@given(SPECS, ROWS, st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_native_and_numpy_write_the_same_bytes(spec: PlanSpec, rows: Rows, random) -> None:
    assert native.library() is not None, native.missing()
    cols = columns(rows)
    kinds = [random.randrange(3) for _ in rows]
    masks = [random.choice([-1, 0, 64]) for _ in rows]
    made = make_rows(cols.query_lens, cols.key_lens, kinds, masks)
    expected = plan_reference(spec, made, step=7)
    planner = native.NativePlanner(spec)
    for _ in range(2):  # the second time with the memory of the first
        assert planner.plan(made, step=7).tobytes() == expected.tobytes()


@given(SPECS, ROWS, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_invariant_rows_do_not_depend_on_their_neighbours(spec: PlanSpec, rows: Rows, random):
    """Splits lie at multiples of the span, whatever stands beside the row, on any cores."""
    invariant = Policy(spec.policy.dealing, invariant=True, levels=spec.policy.levels)
    others = random.sample([1, 2, 5, 24], 1)[0]
    wide = PlanSpec(spec.device, spec.geometry, invariant)
    alone = PlanSpec(spec.device.with_cores(others), spec.geometry, invariant)
    together = view(plan(wide, rows))
    for row, lens in enumerate(rows):
        ours = together.tasks[together.tasks["segment"] == row]
        single = view(plan(alone, [lens])).tasks
        assert splits_per_head(ours) == splits_per_head(single)
        edges = set(ours["key_begin"][ours["split"] > 0].tolist())
        assert all(edge % spec.device.split_span == 0 for edge in edges)


def splits_per_head(tasks: np.ndarray) -> set[tuple[int, ...]]:
    """What decides a result's bits: per head and tile, the key ranges that are merged."""
    names = ("query_begin", "num_queries", "tile_class", "key_begin", "key_end", "split")
    return {
        (head, *(int(task[name]) for name in (*names, "num_splits")))
        for task in tasks[tasks["num_queries"] > 0]
        for head in range(task["head_begin"], task["head_begin"] + task["num_heads"])
    }


@given(SPECS, ROWS)
@settings(max_examples=60, deadline=None)
def test_statistics_agree_with_the_table(spec: PlanSpec, rows: Rows) -> None:
    buffer = plan(spec, rows)
    table, stats = view(buffer), statistics(buffer)
    costs = task_costs(table)
    loads = [
        costs[table.core_begin[core] : table.core_begin[core + 1]].sum()
        for core in range(spec.device.num_cores)
    ]
    assert core_loads(table).tolist() == loads
    assert stats.balance == (min(loads) / max(loads) if max(loads) else 1.0)
    assert stats.num_tasks == sum(
        len(tasks_of_core(table, core)) for core in range(spec.device.num_cores)
    )
    kinds = (stats.num_prefill_rows, stats.num_decode_rows, stats.num_verify_rows)
    assert sum(kinds) == len(rows)
    assert stats.padding_rows_avoided >= 0


@given(SPECS, ROWS.filter(len), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_scheduler_order_and_batch_order_are_consistent(spec: PlanSpec, rows: Rows, random):
    """Plan rows may stand anywhere in the batch; completion finds each row's queries."""
    cols = columns(rows)
    buffer = Planner(spec.device, spec.geometry, spec.policy).plan(cols.query_lens, cols.key_lens)
    assert check(buffer, spec, cols.query_lens, cols.key_lens) is None
    batch_rows = list(range(len(rows)))
    random.shuffle(batch_rows)
    batch_lens = [0] * len(rows)
    for plan_row, batch_row in enumerate(batch_rows):
        batch_lens[batch_row] = cols.query_lens[plan_row]
    complete(buffer, batch_rows, np.concatenate([[0], np.cumsum(batch_lens)]))
    segments = view(buffer).segments
    taken = np.zeros(sum(batch_lens), dtype=int)
    for segment in segments:
        taken[segment["query_start"] : segment["query_start"] + segment["query_len"]] += 1
        assert segment["query_len"] == batch_lens[segment["batch_row"]]
    assert (taken == 1).all()
    assert segments["batch_row"].tolist() == batch_rows


def test_rows_are_planned_alike_in_any_order() -> None:
    """In reverse order each row gets the same tiles, though perhaps other cores."""
    rows = [(1, 700), (300, 900), (17, 17), (1, 64)]
    spec = PlanSpec(NPU, HEADS, Policy(invariant=True))
    forward, backward = view(plan(spec, rows)), view(plan(spec, rows[::-1]))
    for row in range(len(rows)):
        ours = forward.tasks[forward.tasks["segment"] == row]
        theirs = backward.tasks[backward.tasks["segment"] == len(rows) - 1 - row]
        assert splits_per_head(ours) == splits_per_head(theirs)


@pytest.mark.parametrize("dealing", STRATEGIES)
def test_dealings_differ_and_are_recorded(dealing: str) -> None:
    rows = [(1, 100 + 37 * i) for i in range(64)]
    tables = {name: plan(PlanSpec(NPU, HEADS, Policy(name)), rows).tobytes() for name in STRATEGIES}
    own = tables.pop(dealing)
    header = view(np.frombuffer(own, dtype=np.uint8)).header
    assert header["dealing"] == STRATEGIES.index(dealing)
    assert own not in tables.values()
