"""Int8 linear layers (W8A8): weights packed once, activations quantised in front of the product.

Sums are exact in int32, so K may be at most 65,536. All functions raise RuntimeError if the native
library is not loaded, and for wrong shapes, dtypes or strides; `can_run` says beforehand. None has
a gradient. The twins are in `vllm_xyserve.ops.reference.linear_int8`.
"""

from typing import Final

import torch

from vllm_xyserve.ops import registry
from vllm_xyserve.ops.linear import need_native
from vllm_xyserve.ops.registry import Support

MAX_K: Final = 65536


def can_run(
    weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype, input_scale: torch.Tensor | None
) -> Support:
    """Whether `linear_int8` covers a layer, with the reason if not.

    Args:
        weight: ``[N, K]`` of the layer.
        scale: of the weight.
        dtype: of activations and output.
        input_scale: static scale of the activations, None if they are quantised per token.
    """
    if weight.ndim != 2 or weight.dtype != torch.int8:
        return Support(False, f"weight {list(weight.shape)} of {weight.dtype}, not [N, K] of int8")
    if weight.shape[1] > MAX_K:
        return Support(False, f"K = {weight.shape[1]}: above {MAX_K} int32 sums can overflow")
    if scale.dtype != torch.float32 or scale.numel() not in (1, weight.shape[0]):
        return Support(
            False, f"weight scale {list(scale.shape)} of {scale.dtype}, not [1] or [N] of float32"
        )
    if input_scale is not None and input_scale.numel() != 1:
        return Support(False, f"static input scale of {input_scale.numel()} elements, not 1")
    return registry.supports("linear_int8", dtype=dtype, device=weight.device.type)


def linear_pack_int8(
    weight: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pack ``weight`` ``[N, K]`` int8 (any strides).

    Args:
        weight: ``[N, K]`` int8.
        scale: ``[N]`` or ``[1]`` fp32; only checked here.

    Returns:
        packed, 1-D int8, and the sums of the weight's rows, int32, filled up to a multiple of 32.
    """
    need_native()
    packed: tuple[torch.Tensor, torch.Tensor] = torch.ops.xyserve.linear_pack_int8(weight, scale)
    return packed


def quantize_rows(
    x: torch.Tensor, symmetric: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of ``x`` ``[..., K]`` as ``[rows, K]`` uint8, with fp32 scales and int32 zero points.

    ``x`` is about ``(q - zero) * scale``; see the twin for the exact rule.
    """
    need_native()
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = torch.ops.xyserve.quantize_rows(
        x, symmetric
    )
    return rows


def linear_int8(
    x: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    sums: torch.Tensor,
    bias: torch.Tensor | None,
    input_scale: torch.Tensor | None,
    input_zero_point: torch.Tensor | None,
    n: int,
    symmetric: bool = True,
) -> torch.Tensor:
    """``quantised(x) @ weight.T``, scaled, plus bias.

    Args:
        x: ``[..., K]`` fp32, bf16 or fp16.
        packed, sums: from `linear_pack_int8`.
        scale: ``[N]`` or ``[1]`` fp32, of the weight.
        bias: contiguous ``[N]``, dtype of ``x``, or None.
        input_scale: ``[1]`` fp32: static quantisation per tensor. None: per row of ``x``.
        input_zero_point: ``[1]`` int32 from -128 to 127, only with ``input_scale``.
        n: N of the weight.
        symmetric: of the quantisation per row.

    Returns:
        ``[..., N]``, dtype of ``x``; NaN for a row of ``x`` that is not finite.
    """
    need_native()
    out: torch.Tensor = torch.ops.xyserve.linear_int8(
        x, packed, scale, sums, bias, input_scale, input_zero_point, n, symmetric
    )
    return out
