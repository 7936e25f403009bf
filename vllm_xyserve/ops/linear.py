"""Linear layers on weights packed once: any number of rows, no padded row is ever computed.

A weight ``[N, K]`` (fp32, bf16 or fp16) is packed into panels of 32 output columns by `linear_pack`
and multiplied by the other functions. The packed form knows neither N nor K, so N is passed along
and K is that of ``x``. Sums run in fp32 over rising k and are rounded once to nearest even: a row's
bits never depend on how many rows come with it, nor on the number of threads.

All functions raise RuntimeError if the native library is not loaded, and for wrong shapes, dtypes
or strides. None has a gradient. The twins are in `vllm_xyserve.ops.reference.linear`.
"""

from typing import Final

import torch

from vllm_xyserve.ops import native

# Resolved at import, so that torch.compile sees a constant and a call costs no look-up.
_STATUS: Final = native.load()
_NATIVE: Final = _STATUS.loaded

PANEL_COLUMNS: Final = 32


def need_native() -> None:
    """Raise unless the native library is loaded: RuntimeError, or ValueError for XYSERVE_ISA."""
    if _NATIVE:
        return
    if _STATUS.misconfigured:
        raise ValueError(_STATUS.reason)
    raise RuntimeError(
        f"packed linear layers need the native library: {_STATUS.reason}; {_STATUS.mend}"
    )


def packed_elements(n: int, k: int, dtype: torch.dtype) -> int:
    """Number of elements of the packed form of a weight ``[n, k]``."""
    step = 2 if dtype == torch.bfloat16 else 1
    return -(-n // PANEL_COLUMNS) * PANEL_COLUMNS * -(-k // step) * step


def linear_pack(weight: torch.Tensor) -> torch.Tensor:
    """Pack ``weight`` ``[N, K]`` (any strides) into a new 1-D tensor of the same dtype.

    N is filled up with zeros to a multiple of 32, K to an even number for bf16.
    """
    need_native()
    packed: torch.Tensor = torch.ops.xyserve.linear_pack(weight)
    return packed


def linear(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, n: int
) -> torch.Tensor:
    """``x @ weight.T + bias``.

    Args:
        x: ``[..., K]``; copied first if its last dimension is not contiguous or its leading ones do
            not fold into rows of one stride.
        packed: from `linear_pack`, dtype of ``x``.
        bias: contiguous ``[N]``, dtype of ``x``, or None.
        n: N of the weight.

    Returns:
        ``[..., N]``, dtype of ``x``.
    """
    need_native()
    out: torch.Tensor = torch.ops.xyserve.linear(x, packed, bias, n)
    return out


def linear_out(
    out: torch.Tensor, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, n: int
) -> None:
    """`linear` into ``out`` ``[..., N]``, whose rows may have any one stride of at least N."""
    need_native()
    torch.ops.xyserve.linear_out(out, x, packed, bias, n)


def linear_silu_mul(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, n: int
) -> torch.Tensor:
    """``silu(gate) * up`` of a merged gate-up layer, without storing gate and up.

    The weight is ``[2 * d, K]``, gate first; ``n`` is ``2 * d``. With d a multiple of 32, gate and
    up stay in fp32 until the one rounding of the product; else they are rounded once before.

    Returns:
        ``[..., d]``, dtype of ``x``.
    """
    need_native()
    out: torch.Tensor = torch.ops.xyserve.linear_silu_mul(x, packed, bias, n)
    return out


def linear_add(
    x: torch.Tensor,
    packed: torch.Tensor,
    bias: torch.Tensor | None,
    n: int,
    residual: torch.Tensor,
) -> torch.Tensor:
    """``x @ weight.T + bias + residual`` with one rounding; ``residual``: ``[..., N]``."""
    need_native()
    out: torch.Tensor = torch.ops.xyserve.linear_add(x, packed, bias, n, residual)
    return out
