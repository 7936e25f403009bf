"""SmoothGEMM for compressed-tensors W8A8 int8 layers, behind vLLM's interface of such kernels."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.kernels.linear import CPUInt8ScaledMMLinearKernel

from vllm_xyserve.log import get_logger
from vllm_xyserve.ops import linear_int8 as ops
from vllm_xyserve.ops import registry

logger = get_logger("linear")

_said: set[str] = set()


class SmoothGemmInt8Linear(CPUInt8ScaledMMLinearKernel):
    """int8 weights with a scale per tensor or channel, int8 activations.

    Activations are quantised in front of the product: per token from their extremes, or per tensor
    with the checkpoint's scale; with or without a zero point. The packed weight takes the place of
    the layer's weight and the sums of its rows that of ``azp_adj``, so that a reload of weights,
    which goes by a layer's parameters, packs again. A layer that our kernel does not cover is the
    parent's, said once.
    """

    is_ours = False
    """Whether the layer runs our kernel; known when its weight is."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        """Whether this process has the kernel."""
        support = registry.supports("linear_int8", dtype=torch.get_default_dtype())
        return support.ok, support.reason or None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Pack the weight, and bring scales into the form that the kernel reads."""
        weight_name, scale_name, input_name, _, sums_name = self.layer_param_names
        weight = getattr(layer, weight_name).detach()
        scale = _per_channel(getattr(layer, scale_name).detach(), layer, weight.shape[0])
        if self.config.is_static_input_scheme:
            self._merge_input_scales(layer)
        support = ops.can_run(weight, scale, torch.get_default_dtype(), getattr(layer, input_name))
        self.is_ours = support.ok
        if not support.ok:
            if support.reason not in _said:
                _said.add(support.reason)
                logger.info("xyserve: int8 layer stays with vLLM (%s)", support.reason)
            super().process_weights_after_loading(layer)
            return
        self.num_out = weight.shape[0]
        packed, sums = ops.linear_pack_int8(weight, scale)
        for name, tensor in ((weight_name, packed), (scale_name, scale), (sums_name, sums)):
            _set(layer, name, tensor)

    def _merge_input_scales(self, layer: torch.nn.Module) -> None:
        """One scale (and zero point) for a layer that was merged from several.

        Symmetric: the widest. With zero points: the narrowest range that holds all of theirs, as
        the parent has it.
        """
        _, _, scale_name, zero_name, _ = self.layer_param_names
        scale = getattr(layer, scale_name).detach().float()
        if self.config.input_symmetric:
            _set(layer, scale_name, scale.max().reshape(1))
            _set(layer, zero_name, None)
            return
        low, high = torch.iinfo(torch.int8).min, torch.iinfo(torch.int8).max
        zeros = getattr(layer, zero_name).detach().to(torch.int32)
        range_max = (scale * (high - zeros)).max()
        range_min = (scale * (low - zeros)).min()
        merged = (range_max - range_min) / (high - low)
        zero = (low - range_min / merged).round().to(torch.int32)
        _set(layer, scale_name, merged.reshape(1))
        _set(layer, zero_name, zero.reshape(1))

    def apply_weights(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``x [..., K]`` float to ``[..., N]`` of its dtype."""
        if not self.is_ours:
            out: torch.Tensor = super().apply_weights(layer, x, bias)
            return out
        packed, scale, input_scale, input_zero, sums = self._get_layer_params(layer)
        return ops.linear_int8(
            x,
            packed,
            scale,
            sums,
            bias,
            input_scale,
            input_zero,
            self.num_out,
            self.config.input_symmetric,
        )


def _per_channel(scale: torch.Tensor, layer: Any, num_out: int) -> torch.Tensor:
    """``[N]`` fp32 from a scale per channel, per tensor, or per part of a merged layer."""
    scale = scale.float().reshape(-1)
    if scale.numel() == num_out:
        return scale.contiguous()
    widths = torch.tensor(layer.logical_widths)
    if scale.numel() == 1:
        return scale.repeat(num_out)
    if scale.numel() != len(widths) or int(widths.sum()) != num_out:
        raise ValueError(
            f"an int8 weight with {num_out} rows in parts of {widths.tolist()} requires one scale, "
            f"one per part or one per row; it has {scale.numel()}"
        )
    return scale.repeat_interleave(widths)


def _set(layer: torch.nn.Module, name: str, tensor: torch.Tensor | None) -> None:
    # Registered anew even where one is there: vLLM's parameter classes have loaders for a form that
    # the tensor no longer has.
    layer.register_parameter(
        name, None if tensor is None else torch.nn.Parameter(tensor, requires_grad=False)
    )
