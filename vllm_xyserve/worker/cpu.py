"""The CPU worker."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from vllm_xyserve.compat import patches
from vllm_xyserve.linear import install, naming
from vllm_xyserve.log import get_logger
from vllm_xyserve.worker.block_copy import copy_blocks
from vllm_xyserve.worker.report import WorkerReport, report
from vllm_xyserve.worker.steps import XyWorkerMixin

logger = get_logger("worker")


class XyCPUWorker(XyWorkerMixin, CPUWorker):
    """vLLM's CPU worker with our linear layers, task tables and block copies."""

    def load_model(self, **kwargs: Any) -> None:
        """Put our pieces in, load the model, and log what each layer runs."""
        self.xy_prepare()
        install.install(self.vllm_config)
        if not self._copies_blocks:
            patches.replace_block_copy(copy_blocks)
        if self.vllm_config.lora_config is not None:
            patches.skip_lora_on_base_rows()
        super().load_model(**kwargs)
        install.pack_multiplied_tables(self.get_model())
        install.fuse(self.vllm_config, self.get_model())
        install.return_free_memory()
        logger.info("xyserve: worker runs %s", self.xyserve_report().one_line())

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
        install.return_free_memory()

    def xyserve_report(self) -> WorkerReport:
        """Which classes and paths this worker's layers run (reachable by ``collective_rpc``)."""
        return report(self, naming)
