"""Our norms as implementations of vLLM's IR operations, and when they come first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vllm_xyserve import config, parts
from vllm_xyserve.ops import native
from vllm_xyserve.ops.checks import FLOAT_DTYPES
from vllm_xyserve.ops.norm import rms_norm

if TYPE_CHECKING:
    from vllm.config import VllmConfig

PROVIDER = "xyserve"
OPS = ("rms_norm", "fused_add_rms_norm")


def register() -> None:
    """Register both operations with vLLM; idempotent, once per process."""
    from vllm import ir

    if PROVIDER in ir.ops.rms_norm.impls:
        return
    loaded = native.load().loaded
    ir.ops.rms_norm.register_impl(PROVIDER, supported=loaded, supports_args=_supports)(_rms_norm)
    ir.ops.fused_add_rms_norm.register_impl(
        PROVIDER, supported=loaded, supports_args=_supports_add, inplace=True
    )(_fused_add_rms_norm)


def are_ours(vllm_config: VllmConfig) -> bool:
    """Whether norms run our kernel by default.

    Only without torch.compile, which fuses vLLM's own form with what stands around it, and only
    beside our linear layers, so that a model whose layers are all vLLM's is vLLM's to the bit.
    """
    from vllm.config.compilation import CompilationMode

    model_config, compilation = vllm_config.model_config, vllm_config.compilation_config
    if model_config is None or compilation.mode != CompilationMode.NONE:
        return False
    try:
        options = config.from_additional_config(vllm_config.additional_config)
        return parts.takes_norms(options, "cpu", model_config.dtype)
    except config.ConfigError:
        return False  # vLLM asks this first; the platform's check comes next and explains it


def _supports(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool:
    """Rows that lie behind one another on the CPU, of types that the kernel has."""
    return (
        variance_size is None
        and x.is_cpu
        and x.is_contiguous()
        and x.dtype in FLOAT_DTYPES
        and (weight is None or weight.dtype in (x.dtype, torch.float32))
    )


def _supports_add(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool:
    return (
        _supports(x, weight, epsilon, variance_size)
        and x_residual.dtype == x.dtype
        and x_residual.shape == x.shape
        and x_residual.is_contiguous()
    )


def _rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> torch.Tensor:
    out = torch.empty_like(x)
    rms_norm(out, x, weight, epsilon)
    return out


def _fused_add_rms_norm(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    rms_norm(x, x, weight, epsilon, x_residual)
    return x, x_residual


def with_ours_first(priority: Any) -> Any:
    """vLLM's ``IrOpPriorityConfig`` with our norms in front of what it holds for them."""
    for name in OPS:
        setattr(priority, name, [PROVIDER, *getattr(priority, name)])
    return priority
