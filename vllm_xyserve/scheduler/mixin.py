"""What the xyserve scheduler adds to a vLLM scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_xyserve import config, metrics
from vllm_xyserve.compat import block_copies
from vllm_xyserve.scheduler import token_level
from vllm_xyserve.scheduler.planning import StepPlanner
from vllm_xyserve.scheduler.reporting import PrefixReport

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler as Base
    from vllm.v1.request import Request
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
    """Sits in front of vLLM's ``Scheduler`` or ``AsyncScheduler``.

    It composes each step through the base class, counts what the step holds, and makes prefix
    hits end at the last common token instead of the last common block.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.xy_counts = StepCounts()
        options = config.from_additional_config(self.vllm_config.additional_config)
        self.xy_planner = StepPlanner() if options.plan.where == "scheduler" else None
        self.xy_prefix_off = token_level.switch_on(self, options.prefix)
        """Why token-level hits are off; empty where they are on."""
        self._xy_attaches_copies = not (
            self.xy_prefix_off or block_copies.is_native(self.kv_cache_manager)
        )
        self._xy_report: PrefixReport | None = None

    def xy_prefix_unit(self) -> str:
        """How finely prefixes match here, and why not by the token where they do not."""
        if not self.xy_prefix_off:
            return "1 token"
        return f"{self.block_size} tokens ({'; '.join(self.xy_prefix_off)})"

    def xy_start_report(self) -> None:
        """Publish and log the prefix counters from now on, where token-level hits are on."""
        if self.xy_prefix_off or self._xy_report is not None:
            return
        engine = metrics.engine_number(self.vllm_config.parallel_config)
        file = metrics.open_file(engine, metrics.PREFIX_FIGURES)
        self._xy_report = PrefixReport(self.kv_cache_manager.xy.counters, file)
        self._xy_report.start()

    def shutdown(self) -> None:
        """Shut the base class down, and log the prefix counters for the last time."""
        if self._xy_report is not None:
            self._xy_report.stop()
        super().shutdown()

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Compose a step; arguments are those of the base class, which differ by version."""
        output = super().schedule(*args, **kwargs)
        if self._xy_attaches_copies:
            block_copies.attach(output, self.kv_cache_manager)
        if output.total_num_scheduled_tokens:
            self._count(output)
            if self.xy_planner is not None:
                self.xy_planner.attach(output)
        if self._xy_report is not None:
            self._xy_report.publish()
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: Any, *args: Any
    ) -> Any:
        """Take a step's results in, and what the worker says about its tables with them."""
        if self.xy_planner is not None:
            self.xy_planner.learn(model_runner_output)
        return super().update_from_output(scheduler_output, model_runner_output, *args)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Preempt a request; what it would have computed in this step is not cached.

        vLLM hashes blocks when it composes the step that fills them. A request that loses its
        place in the same step leaves hashes of blocks that nobody computes.
        """
        if not self.xy_prefix_off:
            token_level.evict_hashed_in_this_step(self, request)
        super()._preempt_request(request, *args, **kwargs)

    def _count(self, output: SchedulerOutput) -> None:
        rows = output.num_scheduled_tokens
        drafts = output.scheduled_spec_decode_tokens
        if drafts:
            num_decode_rows = sum(n == 1 + len(drafts.get(r, ())) for r, n in rows.items())
        else:  # in C: a loop over 64 rows took 8 us
            num_decode_rows = list(rows.values()).count(1)
        counts = self.xy_counts
        counts.num_steps += 1
        counts.num_rows += len(rows)
        counts.num_tokens += output.total_num_scheduled_tokens
        counts.num_mixed_steps += 0 < num_decode_rows < len(rows)
