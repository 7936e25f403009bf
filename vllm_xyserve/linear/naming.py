"""What the CPU family's linear layers run, for the worker's report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from vllm_xyserve.linear.int8 import SmoothGemmInt8Linear
from vllm_xyserve.linear.method import SmoothGemmLinear
from vllm_xyserve.ops import registry


def linear_name(module: Any) -> str | None:
    """``SmoothGemmLinear[path]``, ``SmoothGemmInt8Linear[native]`` or ``upstream``."""
    from vllm.model_executor.kernels.linear import Int8ScaledMMLinearKernel

    linear = vars(module).get("cpu_linear")
    kernel = getattr(vars(module).get("scheme"), "kernel", None)
    if isinstance(linear, SmoothGemmLinear):
        epilogue = f" {linear.epilogue}" if linear.epilogue else ""
        return f"{type(linear).__name__}[{linear.path}{epilogue}]"
    if isinstance(kernel, SmoothGemmInt8Linear) and kernel.is_ours:
        return f"{type(kernel).__name__}[native]"
    if linear is not None or isinstance(kernel, Int8ScaledMMLinearKernel):
        return "upstream"
    return None


def linear_calls(modules: Iterable[Any]) -> dict[str, int]:
    """Calls so far, outside of compiled code, by ``linear[path]``."""
    calls: Counter[str] = Counter()
    for module in modules:
        linear = vars(module).get("cpu_linear")
        if isinstance(linear, SmoothGemmLinear):
            calls[f"linear[{linear.path}]"] += linear.num_calls
    return dict(calls)


def kernel_calls() -> dict[str, int]:
    """Runs so far of each native kernel, counted by the kernels themselves."""
    return {
        kernel.name: kernel.calls
        for kernel in registry.kernels()
        if kernel.isa != registry.REFERENCE and kernel.calls
    }
