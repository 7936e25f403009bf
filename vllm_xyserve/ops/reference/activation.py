"""Plain fp32 twin of the gated activation."""

import torch


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up in fp32, without the final rounding.

    x: [..., 2 * d] fp32, bf16 or fp16; gate is the first half of the last dimension, up the second.
    Returns [..., d] fp32. silu(g) = g / (1 + e^-g): -0 for g < -88.73, where e^-g overflows, and
    NaN for g = -inf.
    """
    gate, up = x.float().chunk(2, dim=-1)
    return gate / (1.0 + torch.exp(-gate)) * up
