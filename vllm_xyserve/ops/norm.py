"""The root-mean-square norm."""

from typing import Final

import torch

from vllm_xyserve.ops import native, registry
from vllm_xyserve.ops.checks import check_rms_norm
from vllm_xyserve.ops.reference import norm as reference

# Resolved at import, so that torch.compile sees a constant and a call costs no look-up.
_STATUS: Final = native.load()
_NATIVE: Final = _STATUS.loaded


def rms_norm(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    residual: torch.Tensor | None = None,
) -> None:
    """Write the norm of ``x``, or of ``x + residual``, to ``out``; the sum goes to ``residual``.

    ``out = s / sqrt(mean(s^2) + epsilon) * weight`` of ``s = x + residual``, in fp32 with ``s`` not
    rounded; the quotient is rounded to the dtype of ``weight`` before the product, as vLLM does.
    A row depends on no other one. No gradient.

    Args:
        out: ``[..., d]``, shape and dtype of ``x``; may be ``x``, must not overlap it otherwise.
        x: ``[..., d]`` fp32, bf16 or fp16; elements of a row are adjacent, and leading dimensions
            have strides that fold into one.
        weight: ``[d]`` fp32 or of the dtype of ``x``, or None.
        epsilon: added to the mean of the squares.
        residual: ``[..., d]`` of the dtype of ``x``, or None; replaced by the sum.

    Raises:
        RuntimeError: other shapes, dtypes or strides.
        ValueError: an unusable ``XYSERVE_ISA``.
    """
    if _NATIVE and x.is_cpu:
        torch.ops.xyserve.rms_norm(out, x, residual, weight, epsilon)
        return
    if _STATUS.misconfigured:
        raise ValueError(_STATUS.reason)
    check_rms_norm(out, x, residual, weight)
    registry.count_reference("rms_norm")
    normed, total = reference.rms_norm(x, weight, epsilon, residual)
    out.copy_(normed)
    if residual is not None:
        residual.copy_(total)
