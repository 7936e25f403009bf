"""Where a worker keeps the plans of the step that it executes, for its metadata builders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from vllm_xyserve.plan.spec import PlanSpec
from vllm_xyserve.plan.step import PLANS_ATTRIBUTE, Lengths, PlanCounters, StepPlans, Table


class PlanInbox:
    """One per process: vLLM constructs builders itself and hands them no scheduler output.

    Attributes:
        specs: what the builders of this process need tables for; reported to the scheduler.
        expects_plans: the scheduler plans, so a table that is missing is counted.
        counters: of this process.
    """

    def __init__(self) -> None:
        self.specs: dict[PlanSpec, None] = {}  # in the order of the builders
        self.expects_plans = False
        self.counters = PlanCounters()
        self._plans: StepPlans | None = None
        self._order: Lengths | None = None
        self._runner: Any = None

    @contextmanager
    def step(self, scheduler_output: Any, runner: Any) -> Iterator[None]:
        """Offer a step's plans while it is executed; afterwards they are gone."""
        self._plans = getattr(scheduler_output, PLANS_ATTRIBUTE, None)
        self._order, self._runner = None, runner
        try:
            yield
        finally:
            self._plans = self._order = self._runner = None

    def take(self, spec: PlanSpec) -> tuple[Table, Lengths] | str:
        """A table of this step and the batch row of each plan row, or why there is none."""
        if self._runner is None:
            return "no_step"
        if self._plans is None or (table := self._plans.tables.get(spec)) is None:
            return "no_plan"
        if self._order is None:
            self._order = self._find_order(self._plans.names)
        if self._order is None:
            return "requests"
        return table, self._order

    def _find_order(self, names: Sequence[str]) -> Lengths | None:
        batch: Any = getattr(self._runner, "input_batch", None)
        batch_names = getattr(batch, "req_ids", None)
        if batch_names is None or len(batch_names) != len(names):
            return None
        place = {name: row for row, name in enumerate(batch_names)}
        order = np.fromiter((place.get(name, -1) for name in names), np.int32, len(names))
        return None if (order < 0).any() else order


inbox = PlanInbox()
