"""The plain fp32 twin of the linear kernels."""

from __future__ import annotations

import torch


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x @ weight.T + bias`` in fp32, rounded to the dtype of ``x`` once at the end.

    Args:
        x: ``[..., K]`` float; any leading dimensions, contiguous or not.
        weight: ``[N, K]`` float.
        bias: ``[N]`` float, or None.

    Returns:
        ``[..., N]``, dtype of ``x``.
    """
    bias32 = None if bias is None else bias.to(torch.float32)
    out = torch.nn.functional.linear(x.to(torch.float32), weight.to(torch.float32), bias32)
    return out.to(x.dtype)


def linear_silu_mul(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """``silu(gate) * up`` in fp32 for a merged gate-up ``weight`` ``[2 * d, K]``, rounded once."""
    bias32 = None if bias is None else bias.to(torch.float32)
    both = torch.nn.functional.linear(x.to(torch.float32), weight.to(torch.float32), bias32)
    gate, up = both.chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)


def linear_add(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor
) -> torch.Tensor:
    """``x @ weight.T + bias + residual`` in fp32, rounded once; ``residual`` ``[..., N]``."""
    bias32 = None if bias is None else bias.to(torch.float32)
    out = torch.nn.functional.linear(x.to(torch.float32), weight.to(torch.float32), bias32)
    return (out + residual.to(torch.float32)).to(x.dtype)
