"""Gated activations."""

from typing import Final

import torch

from vllm_xyserve.ops import native, registry
from vllm_xyserve.ops.checks import check_silu_and_mul
from vllm_xyserve.ops.reference import activation as reference

# Resolved at import, so that torch.compile sees a constant and a call costs no look-up.
_STATUS: Final = native.load()
_NATIVE: Final = _STATUS.loaded


def silu_and_mul(out: torch.Tensor, x: torch.Tensor) -> None:
    """Write silu(gate) * up to `out`.

    x: [..., 2 * d] fp32, bf16 or fp16, gate in the first half of the last dimension, up in the
    second. out: [..., d], same dtype and device; must not overlap x. Elements of a row are
    adjacent; leading dimensions may have any strides that fold into one. Computed in fp32 and
    rounded once to nearest even. No gradient.

    Raises RuntimeError for other shapes, dtypes or strides, ValueError for an unusable XYSERVE_ISA.
    """
    if _NATIVE and x.is_cpu:
        torch.ops.xyserve.silu_and_mul(out, x)
        return
    if _STATUS.misconfigured:
        raise ValueError(_STATUS.reason)
    check_silu_and_mul(out, x)
    registry.count_reference("silu_and_mul")
    out.copy_(reference.silu_and_mul(x))
