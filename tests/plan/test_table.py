"""Layout, golden example, errors, and the cases that a caller meets."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

from tests.plan.cases import tasks_of_core
from vllm_xyserve.plan import (
    CPU,
    NPU,
    VERIFY,
    CostModel,
    Device,
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
from vllm_xyserve.plan.reference import plan_reference
from vllm_xyserve.plan.rows import make_rows
from vllm_xyserve.plan.table import task_costs

HEADS = Geometry(num_kv_heads=8, group_size=4, head_dim=128)
SPEC = PlanSpec(NPU, HEADS)
LENS = ([1, 300, 5], [1000, 800, 77])


def test_python_and_cpp_agree_on_every_size_and_offset() -> None:
    library = native.library()
    assert library is not None, native.missing()
    compiled = native.parse_layout(library.xyserve_table_layout().decode())
    assert compiled == native.python_layout()
    assert {"TableHeader", "Segment", "Task", "Merge", "PlanParams"} <= set(compiled)
    assert compiled["Task"] == (0, 32)


def test_a_library_of_another_layout_is_not_used() -> None:
    library = native.library()
    assert library is not None, native.missing()
    text = library.xyserve_table_layout().decode()
    assert native._layout_difference(text) == ""
    assert "Task.partial" in native._layout_difference(
        text.replace("Task.partial 16", "Task.partial 20")
    )
    assert "Merge" in native._layout_difference(text.split("Merge 0")[0])


def test_golden_example_of_the_paper() -> None:
    """XY-Serve figure 7: 417 tokens of four rows, two heads, four cores, load = tile x context."""
    device = Device(4, (16, 32, 64, 128), 1, CostModel(0, 1e12, 8, 0))
    spec = PlanSpec(device, Geometry(2, 1, 2), Policy("snake", levels=0))
    assert (spec.weights.key, spec.weights.pair) == (0, 1000)
    rows = make_rows([362, 1, 53, 1], [1318 + 362, 1657 + 1, 2036 + 53, 1986 + 1])
    table = view(plan_reference(spec, rows))
    number = {(0, 0): 1, (0, 128): 2, (0, 256): 3, (1, 0): 4, (2, 0): 5, (3, 0): 6}
    lists = [
        [
            (number[int(task["segment"]), int(task["query_begin"])], int(task["head_begin"]) + 1)
            for task in tasks_of_core(table, core)
        ]
        for core in range(4)
    ]
    assert lists == [
        [(3, 1), (5, 2), (6, 1)],
        [(3, 2), (5, 1), (6, 2)],
        [(2, 1), (1, 2), (4, 1)],
        [(2, 2), (1, 1), (4, 2)],
    ]
    classes = [device.tile_rows[task["tile_class"]] for task in tasks_of_core(table, 0)]
    assert classes == [128, 64, 16]


def test_many_decodes_take_one_task_each() -> None:
    """1,024 rows with 8 heads are 32 KiB of tasks: heads are split only where it balances."""
    lens = np.ones(1024, dtype=int), np.arange(1024) % 700 + 300
    table = view(Planner(NPU, HEADS).plan(*lens))
    assert table.header["num_real_tasks"] == 1024
    assert table.tasks.nbytes <= 32 * 1024 + 24 * 32


def test_a_single_long_decode_is_split_over_all_cores() -> None:
    buffer = Planner(NPU, Geometry(1, 8, 128)).plan([1], [100_000])
    stats = statistics(buffer)
    assert stats.num_split_tasks == NPU.num_cores
    assert stats.num_merges == 1
    assert stats.balance > 0.9


def test_a_table_needs_no_rows_and_no_queries() -> None:
    for lens in (([], []), ([0, 0], [5, 0])):
        buffer = Planner(NPU, HEADS).plan(*lens)
        stats = statistics(buffer)
        assert (stats.num_tasks, stats.balance) == (0, 1.0)
        assert len(view(buffer).segments) == len(lens[0])
        assert check(buffer, SPEC, *lens) is None


def test_kinds_and_masks_are_carried_and_change_no_task_geometry() -> None:
    planner = Planner(NPU, HEADS)
    plain = view(planner.plan([5, 1], [100, 100]))
    marked = view(planner.plan([5, 1], [100, 100], [VERIFY, 1], [64, -1]))
    assert marked.segments["kind"].tolist() == [VERIFY, 1]
    assert marked.segments["mask_offset"].tolist() == [64, -1]
    assert set(marked.tasks["flags"][marked.tasks["segment"] == 0].tolist()) <= {0, 1}
    assert (marked.tasks["flags"] == 1).sum() == statistics(planner.plan([5], [100])).num_tasks
    for name in ("segment", "query_begin", "key_begin", "key_end", "head_begin", "num_heads"):
        assert (plain.tasks[name] == marked.tasks[name]).all()


@pytest.mark.parametrize(
    ("word", "spec", "lens"),
    [
        ("rows", SPEC, ([1, 300], [1000, 800])),
        ("query_lens", SPEC, ([1, 299, 5], LENS[1])),
        ("key_lens", SPEC, (LENS[0], [1000, 800, 78])),
        ("cores", replace(SPEC, device=NPU.with_cores(20)), LENS),
        ("window", replace(SPEC, geometry=replace(HEADS, window=128)), LENS),
        ("causal", replace(SPEC, geometry=replace(HEADS, causal=False)), LENS),
        ("heads", replace(SPEC, geometry=replace(HEADS, group_size=8)), LENS),
        ("tiles", replace(SPEC, device=replace(NPU, tile_rows=(16, 128))), LENS),
        ("invariant", replace(SPEC, policy=Policy(invariant=True)), LENS),
    ],
)
def test_check_names_what_does_not_fit(word: str, spec: PlanSpec, lens) -> None:
    buffer = Planner(NPU, HEADS).plan(*LENS)
    assert check(buffer, SPEC, *LENS) is None
    assert check(buffer, spec, *lens) == word


def test_check_refuses_what_is_no_table() -> None:
    buffer = Planner(NPU, HEADS).plan(*LENS)
    other = buffer.copy()
    other[4] += 1
    for broken in (other, buffer[:-64], buffer[:10], buffer.view(np.int8)):
        assert check(broken, SPEC, *LENS) == "version"
        with pytest.raises(ValueError, match="task table"):
            view(broken)


def test_complete_refuses_a_batch_that_was_not_planned() -> None:
    buffer = Planner(NPU, HEADS).plan(*LENS)
    complete(buffer, [2, 0, 1], [0, 300, 305, 306])
    assert view(buffer).segments["query_start"].tolist() == [305, 0, 300]
    with pytest.raises(ValueError, match="as many batch rows"):
        complete(buffer, [0, 1], [0, 300, 305, 306])
    with pytest.raises(ValueError, match=r"must be in 0\.\.2"):
        complete(buffer, [0, 1, 3], [0, 300, 305, 306])
    with pytest.raises(ValueError, match="planned are"):
        complete(buffer, [0, 1, 2], [0, 300, 305, 306])


@pytest.mark.parametrize(
    ("lens", "message"),
    [
        (([1], [1, 2]), "equally long"),
        (([-1], [1]), "lengths must be"),
        (([1.5], [1]), "integers"),
        (([2**31], [2**31]), "lengths must be"),
        (([1], [1], [3]), "kinds"),
        (([1], [1], [0], [-2]), "mask_offsets"),
    ],
)
def test_impossible_rows_are_refused(lens, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Planner(NPU, HEADS).plan(*lens)


@pytest.mark.parametrize(
    "build",
    [
        lambda: replace(NPU, tile_rows=(32, 16)),
        lambda: replace(NPU, tile_rows=()),
        lambda: replace(NPU, num_cores=0),
        lambda: replace(NPU, split_span=100),
        lambda: replace(NPU, max_splits=40_000),
        lambda: replace(HEADS, window=-1),
        lambda: replace(HEADS, num_kv_heads=0),
        lambda: Policy("best"),
        lambda: Policy(levels=9),
        lambda: CostModel(1, 0, 1, 1),
        lambda: PlanSpec(replace(NPU, cost=CostModel(1e9, 1, 1, 1)), HEADS).weights,
    ],
)
def test_impossible_specs_are_refused(build) -> None:
    with pytest.raises(ValueError, match=r"got|exceeds"):
        build()


def test_too_many_invariant_splits_are_refused_by_both_planners() -> None:
    device = replace(CPU, split_span=16)
    planner = Planner(device, HEADS, Policy(invariant=True))
    assert planner.is_native, native.missing()
    for call in (planner.plan, lambda q, k: plan_reference(planner.spec, make_rows(q, k))):
        with pytest.raises(ValueError, match="split_span"):
            call([1], [16 * 40_000])


def test_costs_beyond_the_quick_sort_key_are_ordered_alike() -> None:
    """Hours of work: cost and index no longer share one 64-bit key."""
    device = replace(CPU, cost=CostModel(task_ns=1, gbytes_per_s=1, gflops=0.001, partial_ns=1))
    lens = [1, 40, 1, 7], [90_000, 100_000, 90_000, 80_000]
    for dealing in ("lpt", "snake"):
        spec = PlanSpec(device, HEADS, Policy(dealing))
        assert max(task_costs(view(plan_reference(spec, make_rows(*lens))))) > 2**43
        ours = native.NativePlanner(spec).plan(make_rows(*lens))
        assert ours.tobytes() == plan_reference(spec, make_rows(*lens)).tobytes()


def test_one_planner_serves_several_threads() -> None:
    planner = Planner(CPU, HEADS)
    batches = [([1] * n, list(range(10, 10 + n))) for n in (1, 50, 200, 3)]
    expected = [planner.plan(*batch).tobytes() for batch in batches]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(50):
            if planner.plan(*batches[i]).tobytes() != expected[i]:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_without_the_library_numpy_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    with_library = Planner(CPU, HEADS)
    monkeypatch.setattr(native, "library", lambda: None)
    without = Planner(CPU, HEADS)
    assert (with_library.is_native, without.is_native) == (True, False)
    assert with_library.plan(*LENS).tobytes() == without.plan(*LENS).tobytes()


def test_planning_imports_neither_torch_nor_vllm() -> None:
    code = (
        "import sys; from vllm_xyserve.plan import *; "
        "p = Planner(CPU, Geometry(2, 2, 64)); p.plan([1], [9]); assert p.is_native; "
        "print([m for m in ('torch', 'vllm') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
