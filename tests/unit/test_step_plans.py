"""A step's task tables: planned by the scheduler, taken or planned anew by the metadata builder."""

from __future__ import annotations

import dataclasses
import pickle
import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.scheduler_sim import make_sim
from vllm_xyserve.attention import tables
from vllm_xyserve.attention.inbox import PlanInbox
from vllm_xyserve.ops import native
from vllm_xyserve.plan import CPU, CPU_AVX2, Device, Geometry, PlanSpec, view
from vllm_xyserve.plan.step import (
    PLANS_ATTRIBUTE,
    REPLAN_REASONS,
    SPECS_ATTRIBUTE,
    PlanCounters,
    planner,
    rows_of,
)
from vllm_xyserve.scheduler.planning import StepPlanner

SPEC = PlanSpec(CPU.with_cores(2), Geometry(num_kv_heads=3, group_size=3, head_dim=64))
WINDOWED = PlanSpec(SPEC.device, Geometry(num_kv_heads=3, group_size=3, head_dim=64, window=40))


@pytest.fixture
def inbox(monkeypatch: pytest.MonkeyPatch) -> PlanInbox:
    fresh = PlanInbox()
    fresh.expects_plans = True
    monkeypatch.setattr(tables, "inbox", fresh)
    return fresh


@pytest.mark.parametrize(("isa", "cpu"), [("avx2", CPU_AVX2), ("avx512_bf16", CPU), ("", CPU)])
def test_costs_are_those_of_the_instruction_set(
    monkeypatch: pytest.MonkeyPatch, isa: str, cpu: Device
) -> None:
    status = dataclasses.replace(native.load(), isa=isa)
    monkeypatch.setattr(native, "load", lambda: status)
    assert tables.device() == cpu.with_cores(torch.get_num_threads())


def random_steps(seed: int, num_steps: int = 60) -> Any:
    """Steps of a real vLLM scheduler with chunked prompts, decodes and preemptions."""
    rng = random.Random(seed)
    sim = make_sim(16, 40, budget=64, max_num_seqs=8)
    for number in range(num_steps):
        if rng.random() < 0.4:
            tokens = [rng.randrange(1000) for _ in range(rng.randrange(1, 150))]
            sim.add(f"r{number}", tokens, max_tokens=rng.randrange(1, 30))
        output = sim.scheduler.schedule()
        yield sim, output
        sim.finish(output)


def coverage(table: Any) -> dict[tuple[int, int, int], list[tuple[int, int]]]:
    """Key ranges by batch row, first query and KV head, joined: where tiles are cut depends on the
    order of the rows, what they compute does not.
    """
    found = view(table)
    ranges: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for task in found.tasks[found.tasks["num_queries"] > 0]:
        row = int(found.segments["batch_row"][task["segment"]])
        for head in range(task["head_begin"], task["head_begin"] + task["num_heads"]):
            key = (row, int(task["query_begin"]), head)
            ranges.setdefault(key, []).append((int(task["key_begin"]), int(task["key_end"])))
    for key, parts in ranges.items():
        parts.sort()
        assert all(one[1] == next_[0] for one, next_ in pairwise(parts)), f"{key}: {parts}"
        ranges[key] = [(parts[0][0], parts[-1][1])]
    return ranges


def test_rows_are_those_that_the_scheduler_composed() -> None:
    num_rows = 0
    for sim, output in random_steps(1):
        names, query_lens, key_lens = rows_of(output)
        assert names == tuple(output.num_scheduled_tokens)
        # vLLM has counted the step's tokens as computed by now.
        computed = [sim.scheduler.requests[name].num_computed_tokens for name in names]
        assert key_lens.tolist() == computed
        assert query_lens.tolist() == list(output.num_scheduled_tokens.values())
        num_rows += len(names)
    assert num_rows > 60


@pytest.mark.parametrize("shuffled", [False, True])
def test_both_ways_plan_the_same_table(inbox: PlanInbox, shuffled: bool) -> None:
    rng = random.Random(2)
    planner_of_steps = StepPlanner()
    planner_of_steps.learn(SimpleNamespace(**{SPECS_ATTRIBUTE: (SPEC, WINDOWED)}))
    num_tables = 0
    for _, output in random_steps(3):
        if not output.total_num_scheduled_tokens:
            continue
        planner_of_steps.attach(output)
        names, query_lens, key_lens = rows_of(output)
        order = list(range(len(names)))
        if shuffled:
            rng.shuffle(order)
        starts = np.concatenate([[0], np.cumsum(query_lens[order])]).astype(np.int32)
        runner = SimpleNamespace(input_batch=SimpleNamespace(req_ids=[names[row] for row in order]))
        received = pickle.loads(pickle.dumps(output))  # as between processes
        for spec in (SPEC, WINDOWED):
            with inbox.step(received, runner):
                taken = tables.make(spec, starts, key_lens[order]).numpy()
            inbox.expects_plans = False
            planned = tables.make(spec, starts, key_lens[order]).numpy()
            inbox.expects_plans = True
            assert coverage(taken) == coverage(planned)
            if not shuffled:
                assert taken.tobytes() == planned.tobytes()
            num_tables += 1
    assert inbox.counters.num_handed_over == num_tables > 60
    assert sum(inbox.counters.replanned.values()) == 0


def one_step(**changes: Any) -> tuple[Any, Any, Any, Any]:
    """A step of two rows: output with its plan, runner, query_start_loc and key lengths."""
    output = SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id="b", num_computed_tokens=0)],
        scheduled_cached_reqs=SimpleNamespace(req_ids=["a"], num_computed_tokens=[30]),
        num_scheduled_tokens={"a": 1, "b": 20},
        total_num_scheduled_tokens=21,
    )
    step_planner = StepPlanner()
    step_planner.specs = (changes.get("spec", SPEC),)
    step_planner.attach(output)
    runner = SimpleNamespace(input_batch=SimpleNamespace(req_ids=changes.get("names", ["a", "b"])))
    starts = np.array(changes.get("starts", [0, 1, 21]), np.int32)
    return output, runner, starts, np.array(changes.get("key_lens", [31, 20]), np.int32)


OTHER_CORES = PlanSpec(SPEC.device.with_cores(5), SPEC.geometry)


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("requests", {"names": ["a", "c"]}),
        ("requests", {"names": ["a"]}),
        ("query_lens", {"starts": [0, 2, 21]}),
        ("key_lens", {"key_lens": [32, 20]}),
        ("no_plan", {"spec": OTHER_CORES}),
    ],
)
def test_a_plan_that_does_not_fit_is_made_anew_and_counted(
    inbox: PlanInbox, reason: str, changes: dict[str, Any]
) -> None:
    output, runner, starts, key_lens = one_step(**changes)
    with inbox.step(output, runner):
        table = view(tables.make(SPEC, starts, key_lens).numpy())
    assert table.segments["query_len"].tolist() == np.diff(starts).tolist()
    assert table.segments["key_len"].tolist() == key_lens.tolist()
    assert inbox.counters.replanned == {**dict.fromkeys(REPLAN_REASONS, 0), reason: 1}
    assert (inbox.counters.num_tables, inbox.counters.num_handed_over) == (1, 0)


def test_a_table_with_other_contents_than_its_key_says_is_refused(inbox: PlanInbox) -> None:
    output, runner, starts, key_lens = one_step()
    plans = getattr(output, PLANS_ATTRIBUTE)
    for other, reason in ((OTHER_CORES, "cores"), (WINDOWED, "window")):
        plans.tables[SPEC] = planner(other).plan([1, 20], [31, 20])
        with inbox.step(output, runner):
            tables.make(SPEC, starts, key_lens)
        assert inbox.counters.replanned[reason] == 1


def test_plans_are_gone_when_the_step_has_ended(inbox: PlanInbox) -> None:
    output, runner, starts, key_lens = one_step()
    with pytest.raises(ZeroDivisionError), inbox.step(output, runner):
        raise ZeroDivisionError
    tables.make(SPEC, starts, key_lens)
    assert inbox.counters.replanned["no_step"] == 1


def test_a_scheduler_without_specs_attaches_nothing() -> None:
    output, *_ = one_step()
    delattr(output, PLANS_ATTRIBUTE)
    step_planner = StepPlanner()
    step_planner.attach(output)
    step_planner.learn(SimpleNamespace())
    assert step_planner.specs == ()
    assert not hasattr(output, PLANS_ATTRIBUTE)


def test_totals_are_in_the_order_of_the_figures() -> None:
    from vllm_xyserve import metrics

    counters = PlanCounters(num_tables=1, num_handed_over=2, plan_seconds=3, complete_seconds=4)
    counters.num_samples, counters.num_tasks, counters.padding_rows_avoided = 5, 6, 7
    counters.balance_sum = 8
    for place, reason in enumerate(REPLAN_REASONS):
        counters.replanned[reason] = 9 + place
    assert counters.totals() == tuple(range(1, 9 + len(REPLAN_REASONS)))
    for value, figure in zip(counters.totals(), metrics.PLAN_FIGURES, strict=True):
        name, _, reason = figure.counter.partition(".")
        held = getattr(counters, name)
        assert value == (held[reason] if reason else held)
