"""The plain twins of the int8 linear kernels and of the quantisation of activations."""

from __future__ import annotations

import torch

# Below this a row counts as zeros; keeps 1 / scale finite.
MIN_SCALE = 2.0**-100


def quantize_rows(
    x: torch.Tensor, symmetric: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows as unsigned 8-bit numbers, one scale and zero point each: x = (q - zero) * scale.

    Symmetric: scale = max |x| / 127, zero = 128. Asymmetric: scale = (max(x, 0) - min(x, 0)) / 255,
    zero = -min(x, 0) / scale. Rounded to nearest even in fp32. A row that is not finite gets a NaN
    scale.

    Args:
        x: ``[..., K]`` float.
        symmetric: whether zero is the middle of the range.

    Returns:
        ``[rows, K]`` uint8, ``[rows]`` fp32 scales, ``[rows]`` int32 zero points.
    """
    rows = x.reshape(-1, x.shape[-1]).to(torch.float32)
    finite = rows.isfinite().all(-1)
    rows = rows.nan_to_num(0.0)
    nothing = torch.zeros(rows.shape[0], 1)
    low = torch.cat([rows, nothing], -1).amin(-1)
    high = torch.cat([rows, nothing], -1).amax(-1)
    scale = torch.maximum(-low, high) / 127.0 if symmetric else (high - low) / 255.0
    scale = scale.clamp(min=MIN_SCALE)
    inverse = 1.0 / scale
    zero = torch.full_like(low, 128.0) if symmetric else (-low * inverse).round()
    quantized = ((rows * inverse[:, None]).round() + zero[:, None]).clamp(0, 255)
    scale = torch.where(finite, scale, torch.nan)
    return quantized.to(torch.uint8), scale, zero.to(torch.int32)


def quantize_rows_static(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `quantize_rows` with one given scale ``[1]`` and int8 zero point ``[1]`` for all rows."""
    rows = x.reshape(-1, x.shape[-1]).to(torch.float32)
    finite = rows.isfinite().all(-1)
    zero = 128 + (0 if zero_point is None else int(zero_point))
    quantized = ((rows.nan_to_num(0.0) * (1.0 / scale)).round() + zero).clamp(0, 255)
    scales = torch.where(finite, scale.to(torch.float32).expand(rows.shape[0]), torch.nan)
    return quantized.to(torch.uint8), scales, torch.full((rows.shape[0],), zero, dtype=torch.int32)


def linear_int8(
    quantized: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """``(q - zero) @ weight.T`` exactly in integers, then scaled in fp32 and rounded once.

    Args:
        quantized: what `quantize_rows` or `quantize_rows_static` return for ``[rows, K]``.
        weight: ``[N, K]`` int8.
        scale: ``[N]`` or ``[1]`` fp32, of the weight.
        bias: ``[N]`` or None.
        dtype: of the result.

    Returns:
        ``[rows, N]``.
    """
    rows, row_scale, zero = quantized
    exact = (rows.to(torch.int64) - zero[:, None].to(torch.int64)) @ weight.to(torch.int64).T
    out = exact.to(torch.float32) * (row_scale[:, None] * scale.reshape(1, -1))
    if bias is not None:
        out = out + bias.to(torch.float32)
    return out.to(dtype)
