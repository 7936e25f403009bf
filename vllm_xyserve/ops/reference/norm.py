"""Plain fp32 twin of the root-mean-square norm."""

import torch


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    residual: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``s / sqrt(mean(s^2) + epsilon) * weight`` of ``s = x + residual``, in fp32.

    The quotient is rounded to the type of ``weight`` before the product, as vLLM's own norm does;
    the results are not rounded.

    Args:
        x: ``[..., d]`` fp32, bf16 or fp16.
        weight: ``[d]`` fp32 or of the dtype of ``x``, or None.
        epsilon: added to the mean.
        residual: shape and dtype of ``x``, or None.

    Returns:
        The norm and ``s``, both ``[..., d]`` fp32.
    """
    total = x.float() if residual is None else x.float() + residual.float()
    normed = total * torch.rsqrt(total.square().mean(dim=-1, keepdim=True) + epsilon)
    if weight is not None:
        normed = normed.to(weight.dtype).float() * weight.float()
    return normed, total
