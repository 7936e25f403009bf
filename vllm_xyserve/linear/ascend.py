"""SmoothGEMM in vllm-ascend's linear layers: unquantised, and W8A8 static and dynamic.

vllm-ascend's own methods load and convert a layer; then, where our kernel takes the weight, it is
stored once in the chip's fractal NZ layout and multiplied by us. Activations are quantised by
vllm-ascend's operations. A layer that stays with vllm-ascend is left as it made it; each reason is
logged once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from vllm_xyserve import config, parts
from vllm_xyserve.compat import ascend_patches
from vllm_xyserve.log import get_logger
from vllm_xyserve.ops import ascend as ops

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = get_logger("linear")

OURS = "xy_is_ours"
"""Attribute of a layer that multiplies through us."""

# Ends of names of layers whose weight vllm-ascend also reads outside of the layer's own method.
_SHARED_WEIGHTS = ("kv_b_proj", "wo_a", "conv1d")

_said: set[str] = set()


def install(vllm_config: VllmConfig) -> None:
    """Let vllm-ascend's linear layers ask us; idempotent, in a worker before the model is built.

    vllm-ascend must have registered its layer classes.
    """
    options = config.from_additional_config(vllm_config.additional_config)
    dtype = vllm_config.model_config.dtype
    native = parts.resolve("linear", options, "npu", dtype).path == "native"
    if native and (reason := _reason_against_all(vllm_config)) is not None:
        _say(reason)
        native = False
    ascend_patches.wrap_unquantized(_prepare if native else _leave, _multiply)
    ascend_patches.replace_schemes(_schemes() if native else {})
    experts = native and options.grouped_experts
    if experts and (reason := _reason_against_experts()) is not None:
        _say(reason)
        experts = False
    ascend_patches.wrap_experts(ops.grouped_linear if experts else None)


def _reason_against_all(vllm_config: Any) -> str | None:
    from vllm_ascend.ascend_config import get_ascend_config
    from vllm_ascend.utils import flashcomm2_enable

    if vllm_config.model_config.use_mla:
        return "MLA models read weights of their projections outside of the layers"
    if not get_ascend_config().weight_nz_mode:
        return "weight_nz_mode is 0, and our kernels read fractal NZ weights"
    if flashcomm2_enable():
        return "flashcomm2 multiplies outside of the linear methods"
    return None


def _reason_against_experts() -> str | None:
    from vllm_ascend.ascend_config import get_ascend_config

    ascend_config = get_ascend_config()
    if ascend_config.weight_nz_mode == 2:
        return "experts in fractal NZ, which weight_nz_mode=2 asks for"
    if ascend_config.enable_fused_mc2:
        return "fused MC2 multiplies experts by itself"
    return None


def _reason_against(layer: Any, weight: torch.Tensor) -> str | None:
    """Why a layer's weight ``[N, K]`` is not ours, or None."""
    prefix = getattr(layer, "prefix", "")
    if any(prefix.endswith(name) or f".{name}." in prefix for name in _SHARED_WEIGHTS):
        return f"{prefix.rpartition('.')[2]} is also read outside of its layer"
    if getattr(layer, "precast_fp32_weight", False):
        return "a weight that is multiplied in fp32"
    if weight.is_meta:
        return "weight is not loaded"
    support = ops.supports_linear(weight)
    return None if support.ok else support.reason


def _say(reason: str) -> None:
    if reason not in _said:
        _said.add(reason)
        logger.info("xyserve: linear layer stays with vllm-ascend (%s)", reason)


def to_nz(weight: torch.Tensor) -> torch.Tensor:
    """The same weight ``[N, K]`` in fractal NZ storage, or in rows if it is not whole fractals."""
    import torch_npu

    if not ops.takes_nz(weight):
        return weight.contiguous()
    cast: torch.Tensor = torch_npu.npu_format_cast(weight.contiguous(), ops.FRACTAL_NZ)
    return cast


def linear_name(module: Any) -> str | None:
    """``SmoothGemm[dtype]`` or ``upstream``; None for what is no linear layer."""
    from vllm.model_executor.layers.linear import LinearBase

    if not isinstance(module, LinearBase):
        return None
    if not getattr(module, OURS, False):
        return "upstream"
    return f"SmoothGemm[{str(module.weight.dtype).removeprefix('torch.')}]"


def linear_calls(modules: Iterable[Any]) -> dict[str, int]:
    """Calls so far, outside of compiled code and not counting replays of a graph."""
    return {f"linear[{op}]": n for op, n in ops.calls.items() if op != "meta_attention"}


def kernel_calls() -> dict[str, int]:
    """Calls of each operation of the Ascend C library, counted as `linear_calls`."""
    return dict(ops.calls)


def _leave(layer: Any) -> bool:
    return False


def _prepare(layer: Any) -> bool:
    """Store a loaded layer's weight for our kernel; False leaves it to vllm-ascend."""
    reason = _reason_against(layer, layer.weight)
    if reason is None and layer.weight.dtype == torch.int8:
        reason = "an int8 weight without a quantisation scheme"
    if reason is not None:
        _say(reason)
        return False
    layer.weight.data = to_nz(layer.weight.data)
    bias = getattr(layer, "bias", None)
    # Once, since the kernel adds in fp32.
    layer.xy_bias = None if bias is None else bias.data.float()
    return True


def _multiply(layer: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if bias is not None:  # None where another rank adds it, or the layer hands it on
        bias = bias.float() if layer.xy_bias is None else layer.xy_bias
    return ops.linear(x, layer.weight, bias)


def _schemes() -> dict[tuple[str, str], type[Any]]:
    """Our scheme classes by vllm-ascend's keys, on the classes that it has registered."""
    static = ascend_patches.upstream_scheme("W8A8", "linear")
    dynamic = ascend_patches.upstream_scheme("W8A8_DYNAMIC", "linear")
    return {
        ("W8A8", "linear"): type("XyW8A8LinearMethod", (_StaticMixin, static), {}),
        ("W8A8_DYNAMIC", "linear"): type("XyW8A8DynamicLinearMethod", (_DynamicMixin, dynamic), {}),
    }


class _Int8Mixin:
    """In front of a W8A8 scheme of vllm-ascend, which transposes the weight to ``[K, N]``."""

    def process_weights_after_loading(self, layer: Any) -> None:
        """vllm-ascend's conversions; the weight goes back to ``[N, K]``, in NZ, if it is ours."""
        weight = layer.weight.data
        reason = _reason_against(layer, weight)
        super().process_weights_after_loading(layer)  # type: ignore[misc]
        chunk: Any = getattr(layer, "_chunk_size", 0)
        if reason is None and chunk:
            reason = "a weight that vllm-ascend keeps in two parts"
        if reason is not None:
            _say(reason)
        setattr(layer, OURS, reason is None)
        if reason is None:
            layer.weight.data = to_nz(weight)
            self._prepare_scales(layer)

    def _prepare_scales(self, layer: Any) -> None:
        raise NotImplementedError


class _StaticMixin(_Int8Mixin):
    """Activations with one scale from the checkpoint."""

    def _prepare_scales(self, layer: Any) -> None:
        scale = layer.deq_scale.data
        if scale.dtype == torch.int64:  # the bits of an fp32 number, for fp16 models
            scale = scale.to(torch.int32).view(torch.float32)
        layer.xy_scale = scale.float().contiguous()
        quant_bias = getattr(layer, "quant_bias", None)
        layer.xy_bias = None if quant_bias is None else quant_bias.data.float() * layer.xy_scale

    def apply(
        self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None, tp_rank: int | None = 0
    ) -> torch.Tensor:
        """``x [..., K]``, float or quantised already, to ``[..., N]`` of the model's dtype."""
        if not getattr(layer, OURS, False):
            out: torch.Tensor = super().apply(layer, x, bias, tp_rank)  # type: ignore[misc]
            return out
        if x.dtype != torch.int8:
            x = torch.ops.vllm.quantize(
                x,
                layer.aclnn_input_scale,
                layer.aclnn_input_scale_reciprocal,
                layer.aclnn_input_offset,
            )
        if ascend_patches.is_compressed_tensors(layer):
            added = None if bias is None else bias.float()
        else:  # the checkpoint's bias is in quant_bias, beside the offset's share
            added = layer.xy_bias if tp_rank == 0 else None
        return _rows(x, layer, layer.xy_scale, None, added, layer.params_dtype)


class _DynamicMixin(_Int8Mixin):
    """Activations with a scale a token."""

    def _prepare_scales(self, layer: Any) -> None:
        layer.xy_scale = layer.weight_scale_fp32.contiguous()

    def apply(
        self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None, tp_rank: int | None = 0
    ) -> torch.Tensor:
        """``x [..., K]`` float to ``[..., N]`` of its dtype."""
        if not getattr(layer, OURS, False):
            out: torch.Tensor = super().apply(layer, x, bias, tp_rank)  # type: ignore[misc]
            return out
        import torch_npu

        quantized, row_scale = torch_npu.npu_dynamic_quant(x, dst_type=torch.int8)
        added = None if bias is None else bias.float()
        return _rows(quantized, layer, layer.xy_scale, row_scale.reshape(-1), added, x.dtype)


def _rows(
    x: torch.Tensor,
    layer: Any,
    scale: torch.Tensor,
    row_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    return ops.linear_int8(x, layer.weight, scale, row_scale, bias, dtype)
