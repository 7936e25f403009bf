"""Puts the linear method into vLLM before a model is built."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from vllm_xyserve import config, parts
from vllm_xyserve.compat import patches
from vllm_xyserve.linear import epilogues, tuned
from vllm_xyserve.linear.method import SmoothGemmLinear
from vllm_xyserve.log import get_logger
from vllm_xyserve.ops import linear as ops
from vllm_xyserve.ops import registry

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = get_logger("linear")

SUPPORTED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def install(vllm_config: VllmConfig) -> None:
    """Let layers of the CPU family ask us first; idempotent, once per worker process."""
    from vllm_xyserve.linear.int8 import SmoothGemmInt8Linear

    options = config.from_additional_config(vllm_config.additional_config)

    def path(dtype: torch.dtype) -> parts.Taken:
        # Per dtype: a model in bfloat16 may have gates in float32, and int8 weights.
        return parts.resolve("linear", options, "cpu", dtype).path

    tuned.install()
    patches.wrap_cpu_gemm_dispatch(_Binder(path))
    patches.prefer_int8_kernel(SmoothGemmInt8Linear, first=path(torch.int8) == "native")


def fuse(vllm_config: VllmConfig, model: torch.nn.Module) -> None:
    """Let products of a loaded model apply what follows them, if the user wants that."""
    if not config.from_additional_config(vllm_config.additional_config).fuse_silu:
        return
    if vllm_config.lora_config is not None:
        logger.info("xyserve: no fused SiLU: LoRA adds to the product before it")
        return
    count = epilogues.fuse_silu_and_mul(model)
    logger.info("xyserve: %d gate-up products apply SiLU-and-multiply by themselves", count)


def pack_multiplied_tables(model: torch.nn.Module) -> None:
    """Pack the input embedding of a model that multiplies with it; after the model was loaded.

    That is a model without an output layer of its own (Gemma-2). Every other input embedding is
    only looked up and stays as it is: vLLM packs those too, so this is where we hold less memory.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    modules = list(model.modules())
    if any(isinstance(module, ParallelLMHead) for module in modules):
        return
    for module in modules:
        linear = vars(module).get("cpu_linear")
        if isinstance(linear, SmoothGemmLinear) and linear.path == "native":
            pack_table(module, linear)


def pack_table(layer: Any, linear: SmoothGemmLinear) -> None:
    """Pack an embedding that is multiplied with; its weight stays, since it is looked up too."""
    if linear.packed is None and layer.weight.numel():
        linear.packed = ops.linear_pack(layer.weight.detach())


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
    pack_multiplied_tables(model)


def return_free_memory() -> None:
    """Give what the packed layers' originals have left free back to the system.

    glibc keeps free memory that lies below used one: 99 MB of the 212 MB of SmolLM2-135M's layers
    stayed with a worker that never asked for such sizes again. A C library without the call is
    left alone.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def reasons_against(layer: Any, path: parts.Taken) -> list[str]:
    """Why a layer cannot be ours on this path; empty if it can."""
    weight = layer.weight
    reasons = []
    if weight.is_meta:
        reasons.append("weight is not loaded")
    if weight.ndim != 2:
        reasons.append(f"weight has {weight.ndim} dimensions, not 2")
    elif not weight.numel():
        reasons.append("weight is empty")
    if weight.dtype not in SUPPORTED_DTYPES:
        reasons.append(f"weight dtype {weight.dtype}")
    elif path == "native":
        support = registry.supports("linear", dtype=weight.dtype, device=weight.device.type)
        if not support.ok:
            reasons.append(support.reason)
    return reasons


class _Binder:
    """Binds layers to a path, or leaves them to vLLM; says each kind of fallback once."""

    def __init__(self, path: Callable[[torch.dtype], parts.Taken]) -> None:
        self._path = path
        self._said: set[str] = set()

    def __call__(self, layer: Any, remove_weight: bool) -> bool:
        path = self._path(layer.weight.dtype)
        if path == "upstream":
            return False
        if reasons := reasons_against(layer, path):
            self._say(f"{type(layer).__name__}: {'; '.join(reasons)}")
            return False
        num_rows, num_columns = layer.weight.shape
        if path == "reference":
            layer.cpu_linear = SmoothGemmLinear("reference", (num_rows, num_columns))
        else:
            self._bind_native(layer, (num_rows, num_columns), remove_weight)
        return True

    def _bind_native(self, layer: Any, shape: tuple[int, int], remove_weight: bool) -> None:
        before = vars(layer).get("cpu_linear")
        tuned.note(*shape, layer.weight.dtype)
        linear = SmoothGemmLinear("native", shape)
        if isinstance(before, SmoothGemmLinear):
            linear.epilogue = before.epilogue  # the layer behind it was told of it: a reload
        layer.cpu_linear = linear
        if remove_weight:
            weight = layer.weight.detach()
            linear.packed = ops.linear_pack(weight)
            empty = torch.empty(0, dtype=weight.dtype, device=weight.device)
            layer.weight = torch.nn.Parameter(empty, requires_grad=False)
        elif not _is_input_embedding(layer):
            pack_table(layer, linear)

    def _say(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            logger.info("xyserve: linear layer stays with vLLM (%s)", why)


def _is_input_embedding(layer: Any) -> bool:
    from vllm.model_executor.layers import vocab_parallel_embedding as embedding

    return isinstance(layer, embedding.VocabParallelEmbedding) and not isinstance(
        layer, embedding.ParallelLMHead
    )
