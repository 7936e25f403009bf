"""The CPU worker."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from vllm_xyserve.linear import install
from vllm_xyserve.log import get_logger
from vllm_xyserve.worker.report import WorkerReport, report

logger = get_logger("worker")


class XyCPUWorker(CPUWorker):
    """vLLM's CPU worker with our linear layers."""

    def load_model(self, **kwargs: Any) -> None:
        """Install the linear method, load the model, and log what each layer runs."""
        install.install(self.vllm_config)
        super().load_model(**kwargs)
        logger.info("xyserve: worker runs %s", self.xyserve_report().one_line())

    def xyserve_report(self) -> WorkerReport:
        """Which classes and paths this worker's layers run (reachable by ``collective_rpc``)."""
        return report(self)
