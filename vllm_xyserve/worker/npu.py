"""The NPU worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm_ascend.worker.worker import NPUWorker

from vllm_xyserve.linear import ascend as linear
from vllm_xyserve.log import get_logger
from vllm_xyserve.ops import ascend as ops
from vllm_xyserve.worker.block_copy import check_copies
from vllm_xyserve.worker.report import WorkerReport, report
from vllm_xyserve.worker.steps import XyWorkerMixin

logger = get_logger("worker")


class XyNPUWorker(XyWorkerMixin, NPUWorker):
    """vllm-ascend's worker with our linear layers, task tables and block copies."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Put our pieces in, load the model, and log what each layer runs.

        The device is set up by now, so the kernels can be loaded.

        Raises:
            RuntimeError: their library is there, was asked for, and cannot be loaded.
        """
        options = self.xy_prepare()
        status = ops.load()
        asked = {options.attention, options.linear}
        if not status.loaded and status.path is not None and "native" in asked:
            raise RuntimeError(f"{status.reason}; {status.mend}")
        linear.install(self.vllm_config)
        super().load_model(*args, **kwargs)
        logger.info("xyserve: worker runs %s", self.xyserve_report().one_line())

    def _copy_kv_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        caches = self.model_runner.kv_caches
        if not ops.has("copy_blocks") or not all(map(_is_pair, caches)):
            super()._copy_kv_blocks(copies)
            return
        check_copies(copies)
        pairs = torch.tensor(copies, dtype=torch.int64).to(self.device)
        seen: set[int] = set()
        for key_cache, value_cache in caches:
            if key_cache.data_ptr() not in seen:  # layers may share one
                seen.add(key_cache.data_ptr())
                ops.copy_blocks(key_cache, value_cache, pairs)

    def xyserve_report(self) -> WorkerReport:
        """Which classes and paths this worker's layers run (reachable by ``collective_rpc``)."""
        return report(self, linear)


def _is_pair(cache: Any) -> bool:
    """Keys and values as `ops.copy_blocks` takes them: one block a scheduler's block."""
    return len(cache) == 2 and all(side.ndim == 4 and side[0].is_contiguous() for side in cache)
