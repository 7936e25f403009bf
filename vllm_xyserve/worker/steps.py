"""What a worker of any family does around a step: tables, block copies, figures."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.outputs import ModelRunnerOutput

from vllm_xyserve import config, metrics
from vllm_xyserve.attention.inbox import inbox
from vllm_xyserve.compat import block_copies
from vllm_xyserve.plan.step import SPECS_ATTRIBUTE
from vllm_xyserve.worker.block_copy import copy_blocks

if TYPE_CHECKING:
    from vllm.v1.worker.worker_base import WorkerBase as Base
else:
    Base = object


def runner_copies_blocks() -> bool:
    """Whether vLLM's model runner carries block copies out (from 0.26 on)."""
    runner: Any = importlib.import_module("vllm.v1.worker.gpu_model_runner")
    return hasattr(runner, "copy_kv_cache_blocks_inplace")


class XyWorkerMixin(Base):
    """In front of a family's worker class."""

    model_runner: Any

    _copies_blocks = False
    _has_reported = False
    _publisher: metrics.Publisher | None = None

    def xy_prepare(self) -> config.XyConfig:
        """Read the options; before the model is built."""
        options = config.from_additional_config(self.vllm_config.additional_config)
        inbox.expects_plans = options.scheduler and options.plan.where == "scheduler"
        self._copies_blocks = not runner_copies_blocks()
        return options

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Execute a step, with the scheduler's task tables at hand."""
        if self._copies_blocks:
            self._copy_blocks(scheduler_output)
        with inbox.step(scheduler_output, self.model_runner):
            output = super().execute_model(scheduler_output, *args, **kwargs)
        if inbox.specs:
            if self._publisher is None:
                self._publisher = self._open_publisher()
            self._publisher.put(inbox.counters.totals())
        return self._report_specs(output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Finish a step."""
        return self._report_specs(super().sample_tokens(grammar_output))

    def _copy_blocks(self, scheduler_output: Any) -> None:
        """Before anything of the step is computed, behind all that was launched for earlier ones.

        vLLM's runner would do it later, behind the zeroing of new blocks; 0.23's scheduler does not
        have the targets zeroed.
        """
        if copies := getattr(scheduler_output, block_copies.ATTRIBUTE, None):
            self._copy_kv_blocks(copies)

    def _copy_kv_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        # Not the cache configuration's number, which 0.23 sets in the engine core alone.
        num_blocks = self.model_runner.kv_cache_config.num_blocks
        copy_blocks(self.model_runner.kv_caches, num_blocks, copies)

    def _open_publisher(self) -> metrics.Publisher:
        # Tensor-parallel ranks have the same tables: one of them publishes.
        parallel = self.vllm_config.parallel_config
        if self.rank % parallel.world_size:
            return metrics.Publisher(None)
        engine = metrics.engine_number(parallel)
        return metrics.Publisher(metrics.open_file(engine, metrics.PLAN_FIGURES))

    def _report_specs(self, output: Any) -> Any:
        """Tell the scheduler with a step's results what to plan for, once."""
        if inbox.expects_plans and not self._has_reported:
            # Where results come later, they are in the object already, without the tokens.
            results = getattr(output, "_model_runner_output", output)
            if isinstance(results, ModelRunnerOutput):
                setattr(results, SPECS_ATTRIBUTE, tuple(inbox.specs))
                self._has_reported = True
        return output
