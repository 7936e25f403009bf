"""What the xyserve scheduler adds to a vLLM scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler as Base
else:
    Base = object


@dataclass(slots=True)
class StepCounts:
    """Rows and tokens that this scheduler has put into steps since it started."""

    num_steps: int = 0
    num_rows: int = 0
    num_tokens: int = 0
    num_mixed_steps: int = 0
    """Steps that held a prefill row (new prompt tokens) beside a decode row."""


class XySchedulerMixin(Base):
    """Sits in front of vLLM's ``Scheduler`` or ``AsyncScheduler``; changes no decision yet.

    It composes each step through the base class and counts what the step holds, token by token.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.xy_counts = StepCounts()

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Compose a step; arguments are those of the base class, which differ by version."""
        output = super().schedule(*args, **kwargs)
        if output.total_num_scheduled_tokens:
            self._count(output)
        return output

    def _count(self, output: SchedulerOutput) -> None:
        rows = output.num_scheduled_tokens
        num_drafts = {r: len(d) for r, d in output.scheduled_spec_decode_tokens.items()}
        num_decode_rows = sum(n == 1 + num_drafts.get(r, 0) for r, n in rows.items())
        counts = self.xy_counts
        counts.num_steps += 1
        counts.num_rows += len(rows)
        counts.num_tokens += output.total_num_scheduled_tokens
        counts.num_mixed_steps += 0 < num_decode_rows < len(rows)
