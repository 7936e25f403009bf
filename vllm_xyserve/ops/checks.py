"""Static argument checks, shared by the fakes and the reference paths.

The native binding checks the same in C++ (one call costs a few microseconds there; these checks in
Python would double it). All raise RuntimeError, as torch does for wrong shapes.
"""

import torch

FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_silu_and_mul(out: torch.Tensor, x: torch.Tensor) -> None:
    """Require x [..., 2 * d] and out [..., d] of one dtype (fp32, bf16 or fp16) on one device."""
    same_rank = x.dim() >= 1 and out.dim() == x.dim()
    if not (same_rank and x.shape[:-1] == out.shape[:-1] and x.shape[-1] == 2 * out.shape[-1]):
        raise RuntimeError(
            "silu_and_mul: require x of shape [..., 2 * d] and out of shape [..., d], "
            f"got x {list(x.shape)} and out {list(out.shape)}"
        )
    if out.dtype != x.dtype:
        raise RuntimeError(
            f"silu_and_mul: require out and x of one dtype, got out {out.dtype} and x {x.dtype}"
        )
    if x.dtype not in FLOAT_DTYPES:
        raise RuntimeError(
            f"silu_and_mul: require dtype float32, bfloat16 or float16, got {x.dtype}; "
            "convert the tensor with .to(...)"
        )
    if out.device != x.device:
        raise RuntimeError(
            f"silu_and_mul: require out and x on one device, got out {out.device} and x {x.device}"
        )
