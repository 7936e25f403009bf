"""Puts the linear method into vLLM before a model is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vllm_xyserve import config, parts
from vllm_xyserve.compat import patches
from vllm_xyserve.linear.method import SmoothGemmLinear
from vllm_xyserve.log import get_logger

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = get_logger("linear")

SUPPORTED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def install(vllm_config: VllmConfig) -> None:
    """Let layers of the CPU family ask us first; idempotent, once per worker process."""
    options = config.from_additional_config(vllm_config.additional_config)
    choice = parts.resolve("linear", options, "cpu", vllm_config.model_config.dtype)
    patches.wrap_cpu_gemm_dispatch(_Binder(choice.path))


def repack_output_layers(model: torch.nn.Module) -> None:
    """Give output layers a kernel for their present weight, after a reload.

    vLLM packs a layer when it has loaded the layer's own weight. An output layer that is tied to
    the input embedding has none of its own: its weight is the new one and its packed copy is old.
    """
    from vllm.model_executor.layers import utils
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if not isinstance(module, ParallelLMHead) or vars(module).get("cpu_linear") is None:
            continue
        if module.weight.numel():
            utils.dispatch_cpu_unquantized_gemm(module, remove_weight=False)


def reasons_against(layer: Any) -> list[str]:
    """Why a layer cannot be ours; empty if it can."""
    weight = layer.weight
    reasons = []
    if weight.is_meta:
        reasons.append("weight is not loaded")
    if weight.ndim != 2:
        reasons.append(f"weight has {weight.ndim} dimensions, not 2")
    if weight.dtype not in SUPPORTED_DTYPES:
        reasons.append(f"weight dtype {weight.dtype}")
    return reasons


class _Binder:
    """Binds layers to a path, or leaves them to vLLM; says each kind of fallback once."""

    def __init__(self, path: parts.Taken) -> None:
        self.path = path
        self._said: set[str] = set()

    def __call__(self, layer: Any) -> bool:
        if self.path != "reference":
            return False
        if reasons := reasons_against(layer):
            self._say(f"{type(layer).__name__}: {'; '.join(reasons)}")
            return False
        num_rows, num_columns = layer.weight.shape
        layer.cpu_linear = SmoothGemmLinear(self.path, (num_rows, num_columns))
        return True

    def _say(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            logger.info("xyserve: linear layer stays with vLLM (%s)", why)
