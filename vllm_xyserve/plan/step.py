"""What one step's plans consist of, and how they travel from the scheduler to the worker."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_xyserve.plan.planner import Planner
from vllm_xyserve.plan.spec import PlanSpec
from vllm_xyserve.plan.table import statistics

Lengths = NDArray[np.int32]
Table = NDArray[np.uint8]

SAMPLE_EVERY = 16
"""Statistics of a table take 80 us, as long as planning it: every so many tables are looked at."""

REPLAN_REASONS = (
    "no_step",
    "no_plan",
    "requests",
    "rows",
    "query_lens",
    "key_lens",
    "cores",
    "window",
    "causal",
    "heads",
    "tiles",
    "invariant",
    "version",
)
"""`no_step`: not within a step (warm-up). `no_plan`: the scheduler did not know what to plan for.
`requests`: the batch holds others. The rest are the words of `plan.check`."""

PLANS_ATTRIBUTE = "xy_plans"
"""Of vLLM's ``SchedulerOutput``: the step's `StepPlans`. Pickling keeps it."""
SPECS_ATTRIBUTE = "xy_plan_specs"
"""Of vLLM's ``ModelRunnerOutput``: the `PlanSpec` tuple that the worker needs tables for."""


@dataclass(frozen=True, slots=True)
class StepPlans:
    """The tables that a scheduler attaches to the step that it has composed.

    Attributes:
        names: request of each plan row, in the order of ``num_scheduled_tokens``.
        tables: packed table by spec.
    """

    names: tuple[str, ...]
    tables: dict[PlanSpec, Table]


@dataclass(slots=True)
class PlanCounters:
    """Totals of a process that plans or completes plans."""

    num_tables: int = 0
    num_handed_over: int = 0
    """Those of them that the scheduler had planned."""
    plan_seconds: float = 0.0
    complete_seconds: float = 0.0
    num_samples: int = 0
    """Tables that the following sums are over."""
    num_tasks: int = 0
    padding_rows_avoided: int = 0
    balance_sum: float = 0.0
    """The least core's predicted load over the most loaded one's."""
    replanned: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REPLAN_REASONS, 0))
    """Tables that were planned in the worker although the scheduler plans, by the reason."""

    def count_replanned(self, reason: str) -> None:
        """Count a table that its step could not take from the scheduler."""
        self.replanned[reason] += 1

    def totals(self) -> tuple[float, ...]:
        """All totals in the order of the fields, the reasons last."""
        return (
            self.num_tables,
            self.num_handed_over,
            self.plan_seconds,
            self.complete_seconds,
            self.num_samples,
            self.num_tasks,
            self.padding_rows_avoided,
            self.balance_sum,
            *self.replanned.values(),
        )

    def count(self, table: Table) -> None:
        """Count a table that a step uses."""
        if self.num_tables % SAMPLE_EVERY == 0:
            found = statistics(table)
            self.num_samples += 1
            self.num_tasks += found.num_tasks
            self.padding_rows_avoided += found.padding_rows_avoided
            self.balance_sum += found.balance
        self.num_tables += 1


@functools.lru_cache(maxsize=64)
def planner(spec: PlanSpec) -> Planner:
    """The planner of a spec; one per process."""
    return Planner(spec.device, spec.geometry, spec.policy)


def rows_of(output: Any) -> tuple[tuple[str, ...], Lengths, Lengths]:
    """Request, query length and key length of each row of a composed step.

    Args:
        output: vLLM's ``SchedulerOutput``, or anything with its fields.

    Returns:
        ``(names, query_lens, key_lens)`` in the order of ``num_scheduled_tokens``; the key length
        is that of the request with this step's tokens.
    """
    computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    names = tuple(output.num_scheduled_tokens)
    num_rows = len(names)
    query_lens = np.fromiter(output.num_scheduled_tokens.values(), np.int32, num_rows)
    history = np.fromiter((computed[name] for name in names), np.int32, num_rows)
    return names, query_lens, history + query_lens
