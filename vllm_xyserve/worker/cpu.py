"""The CPU worker."""

from __future__ import annotations

from typing import Any

from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.cpu_worker import CPUWorker

from vllm_xyserve import config, metrics
from vllm_xyserve.attention.inbox import inbox
from vllm_xyserve.compat import patches
from vllm_xyserve.linear import install
from vllm_xyserve.log import get_logger
from vllm_xyserve.plan.step import SPECS_ATTRIBUTE
from vllm_xyserve.worker.block_copy import copy_blocks
from vllm_xyserve.worker.report import WorkerReport, report

logger = get_logger("worker")


class XyCPUWorker(CPUWorker):
    """vLLM's CPU worker with our linear layers, task tables and block copies."""

    _has_reported = False
    _publisher: metrics.Publisher | None = None

    def load_model(self, **kwargs: Any) -> None:
        """Put our pieces in, load the model, and log what each layer runs."""
        options = config.from_additional_config(self.vllm_config.additional_config)
        inbox.expects_plans = options.scheduler and options.plan.where == "scheduler"
        install.install(self.vllm_config)
        patches.replace_block_copy(copy_blocks)
        if self.vllm_config.lora_config is not None:
            patches.skip_lora_on_base_rows()
        super().load_model(**kwargs)
        install.pack_multiplied_tables(self.get_model())
        install.fuse(self.vllm_config, self.get_model())
        logger.info("xyserve: worker runs %s", self.xyserve_report().one_line())

    def execute_model(self, scheduler_output: Any) -> Any:
        """Execute a step, with the scheduler's task tables at hand."""
        with inbox.step(scheduler_output, self.model_runner):
            output = super().execute_model(scheduler_output)
        if inbox.specs:
            if self._publisher is None:
                self._publisher = self._open_publisher()
            self._publisher.put(inbox.counters.totals())
        return self._report_specs(output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Finish a step."""
        return self._report_specs(super().sample_tokens(grammar_output))

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

    def reload_weights(self, *args: Any, **kwargs: Any) -> None:
        """Reload the weights, and pack those that vLLM forgets to pack.

        Raises:
            ValueError: weights in kernel format were given; where they would go, layers that are
                packed (by us or by vLLM) hold nothing.
        """
        if not kwargs.get("is_checkpoint_format", args[2] if len(args) > 2 else True):
            raise ValueError(
                "reload_weights requires weights in checkpoint format on the cpu family, since "
                "linear layers keep packed copies only; it was given is_checkpoint_format=False. "
                "Leave that out to have the weights packed again"
            )
        super().reload_weights(*args, **kwargs)
        install.repack_output_layers(self.get_model())

    def xyserve_report(self) -> WorkerReport:
        """Which classes and paths this worker's layers run (reachable by ``collective_rpc``)."""
        return report(self)
