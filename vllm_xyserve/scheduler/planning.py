"""Plans the attention of a step in the scheduler that composed it."""

from __future__ import annotations

from typing import Any

from vllm_xyserve.plan.spec import PlanSpec
from vllm_xyserve.plan.step import PLANS_ATTRIBUTE, SPECS_ATTRIBUTE, StepPlans, planner, rows_of


class StepPlanner:
    """Attaches the task tables to the steps of a scheduler, once a worker has asked for some.

    What it needs (cores, tiles, head geometry) comes back with a step's results, since only the
    worker knows its model's layers; the first steps are planned there.
    """

    def __init__(self) -> None:
        self.specs: tuple[PlanSpec, ...] = ()

    def learn(self, model_runner_output: Any) -> None:
        """Take in what the worker needs tables for, if it said so with these results."""
        specs = getattr(model_runner_output, SPECS_ATTRIBUTE, None)
        if specs is not None:
            self.specs = specs

    def attach(self, scheduler_output: Any) -> None:
        """Plan a step and attach the tables."""
        if not self.specs or not scheduler_output.total_num_scheduled_tokens:
            return
        names, query_lens, key_lens = rows_of(scheduler_output)
        tables = {spec: planner(spec).plan(query_lens, key_lens) for spec in self.specs}
        setattr(scheduler_output, PLANS_ATTRIBUTE, StepPlans(names, tables))
