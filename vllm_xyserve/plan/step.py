"""What one step's plans consist of, and how they travel from the scheduler to the worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_xyserve.plan.spec import PlanSpec

Lengths = NDArray[np.int32]
Table = NDArray[np.uint8]

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
        seconds: what planning took.
    """

    names: tuple[str, ...]
    tables: dict[PlanSpec, Table]
    seconds: float = 0.0


@dataclass(slots=True)
class PlanCounters:
    """Totals of a process that plans or completes plans."""

    num_tables: int = 0
    num_tasks: int = 0
    padding_rows_avoided: int = 0
    balance_sum: float = 0.0
    """Sum over tables of the least core's predicted load over the most loaded one's."""
    plan_seconds: float = 0.0
    complete_seconds: float = 0.0
    replanned: dict[str, int] = field(default_factory=dict)
    """Tables that were handed over and not used, by the reason."""

    def count_replanned(self, reason: str) -> None:
        """Count a table that its step could not use."""
        self.replanned[reason] = self.replanned.get(reason, 0) + 1


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
