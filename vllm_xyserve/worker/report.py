"""Which classes really run in a worker, read off the loaded model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vllm_xyserve.attention.impl import MetaAttentionImpl
from vllm_xyserve.linear.int8 import SmoothGemmInt8Linear
from vllm_xyserve.linear.method import SmoothGemmLinear
from vllm_xyserve.ops import registry


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """Names of what runs in a worker; counts are numbers of layers."""

    platform: str
    worker: str
    attention: dict[str, int]
    """``backend/impl[path]`` of each attention layer."""
    linear: dict[str, int]
    """``SmoothGemmLinear[path]`` of each linear layer that is ours, with the epilogue if it has
    one, ``SmoothGemmInt8Linear[native]`` of int8 layers, ``upstream`` for the rest."""
    calls: dict[str, int]
    """Calls so far of our classes, by ``attention[path]`` and ``linear[path]``; warm-up runs of
    attention and linear calls inside compiled code are not counted."""
    kernels: dict[str, int]
    """Runs so far of each native kernel in this process, counted by the kernels themselves, so also
    inside compiled code."""

    def one_line(self) -> str:
        """The report for a log line."""
        return f"attention {_counts(self.attention)}; linear {_counts(self.linear)}"


def report(worker: Any) -> WorkerReport:
    """Read the report off a worker whose model is loaded."""
    from vllm.platforms import current_platform

    context = worker.vllm_config.compilation_config.static_forward_context
    modules = list(worker.get_model().modules())
    return WorkerReport(
        platform=type(current_platform).__name__,
        worker=type(worker).__name__,
        attention=dict(Counter(_attention_names(context.values()))),
        linear=dict(Counter(_linear_names(modules))),
        calls=_calls(context.values(), modules),
        kernels={
            kernel.name: kernel.calls
            for kernel in registry.kernels()
            if kernel.isa != registry.REFERENCE and kernel.calls
        },
    )


def _attention_names(layers: Iterable[Any]) -> Iterable[str]:
    for layer in layers:
        impl = getattr(layer, "impl", None)
        backend = getattr(layer, "attn_backend", None)
        if impl is None or backend is None:
            continue
        path = getattr(impl, "path", "upstream")
        yield f"{backend.__name__}/{type(impl).__name__}[{path}]"


def _linear_names(modules: Iterable[Any]) -> Iterable[str]:
    from vllm.model_executor.kernels.linear import Int8ScaledMMLinearKernel

    for module in modules:
        linear = vars(module).get("cpu_linear")
        kernel = getattr(vars(module).get("scheme"), "kernel", None)
        if isinstance(linear, SmoothGemmLinear):
            epilogue = f" {linear.epilogue}" if linear.epilogue else ""
            yield f"{type(linear).__name__}[{linear.path}{epilogue}]"
        elif isinstance(kernel, SmoothGemmInt8Linear) and kernel.is_ours:
            yield f"{type(kernel).__name__}[native]"
        elif linear is not None or isinstance(kernel, Int8ScaledMMLinearKernel):
            yield "upstream"


def _calls(layers: Iterable[Any], modules: Iterable[Any]) -> dict[str, int]:
    calls: Counter[str] = Counter()
    for layer in layers:
        impl = getattr(layer, "impl", None)
        if isinstance(impl, MetaAttentionImpl):
            calls[f"attention[{impl.path}]"] += impl.num_calls
    for module in modules:
        linear = vars(module).get("cpu_linear")
        if isinstance(linear, SmoothGemmLinear):
            calls[f"linear[{linear.path}]"] += linear.num_calls
    return dict(calls)


def _counts(names: dict[str, int]) -> str:
    return ", ".join(f"{name} x{count}" for name, count in sorted(names.items())) or "none"
