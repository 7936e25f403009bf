"""A step's task table planned by the worker, or by the scheduler and handed over.

worker_us_{N}_rows      the metadata builder plans: lengths in, completed table out
scheduler_us_{N}_rows   the scheduler plans, its plan is pickled to the worker and back as between
                        processes, and the builder permutes, completes and checks it

Where scheduling is synchronous, as on the CPU, nothing overlaps, so the whole of both counts.
"""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.harness import Case, Options, Result, Row, main, measure
from benchmarks.plan import decode_rows
from vllm_xyserve.attention import tables
from vllm_xyserve.attention.inbox import inbox
from vllm_xyserve.plan import CPU, Geometry, PlanSpec
from vllm_xyserve.plan.step import PLANS_ATTRIBUTE
from vllm_xyserve.scheduler.planning import StepPlanner

SPEC = PlanSpec(CPU.with_cores(2), Geometry(num_kv_heads=3, group_size=3, head_dim=64))
NUM_ROWS = (1, 8, 64, 256)


def where_case(num_rows: int) -> Case:
    """Decodes on contexts of 64 to 4,096 tokens; batch order is the scheduler's."""
    query_lens, key_lens = decode_rows(num_rows)
    names = [f"request-{row}" for row in range(num_rows)]
    output: Any = SimpleNamespace(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=names, num_computed_tokens=(key_lens - query_lens).tolist()
        ),
        num_scheduled_tokens=dict(zip(names, query_lens.tolist(), strict=True)),
        total_num_scheduled_tokens=num_rows,
    )
    runner = SimpleNamespace(input_batch=SimpleNamespace(req_ids=names))
    starts = np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32)
    step_planner = StepPlanner()
    step_planner.specs = (SPEC,)

    def by_worker() -> bytes:
        inbox.expects_plans = False
        return tables.make(SPEC, starts, key_lens).numpy().tobytes()

    def by_scheduler() -> bytes:
        inbox.expects_plans = True
        step_planner.attach(output)
        plans = pickle.loads(pickle.dumps(getattr(output, PLANS_ATTRIBUTE)))
        with inbox.step(SimpleNamespace(**{PLANS_ATTRIBUTE: plans}), runner):
            return tables.make(SPEC, starts, key_lens).numpy().tobytes()

    def check() -> None:
        before = inbox.counters.num_handed_over
        if by_worker() != by_scheduler():
            raise AssertionError(f"{num_rows} rows: the two ways give different tables")
        if inbox.counters.num_handed_over != before + 1:
            raise AssertionError(f"{num_rows} rows: the scheduler's plan was not taken")

    return Case(f"{num_rows} decodes", check, ours=by_worker, peer=by_scheduler)


def run(options: Options) -> Result:
    """Both ways in turns."""
    summary: dict[str, float] = {}
    rows: list[Row] = []
    for num_rows in NUM_ROWS:
        timing, row = measure(where_case(num_rows), options)
        summary[f"worker_us_{num_rows}_rows"] = timing.ours_us
        summary[f"scheduler_us_{num_rows}_rows"] = timing.peer_us or 0.0
        rows.append(row)
    return Result(summary, rows)


if __name__ == "__main__":
    main(run, __doc__)
