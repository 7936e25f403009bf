"""Which classes really run in a worker, read off the loaded model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


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


class Family(Protocol):
    """What a family's linear and kernel modules say about themselves."""

    def linear_name(self, module: Any) -> str | None:
        """What multiplies in a linear layer; None for a module that is none."""

    def linear_calls(self, modules: Iterable[Any]) -> Mapping[str, int]:
        """Calls so far of our linear layers, by ``linear[path]``."""

    def kernel_calls(self) -> Mapping[str, int]:
        """Runs so far of each native kernel."""


def report(worker: Any, family: Family) -> WorkerReport:
    """Read the report off a worker whose model is loaded."""
    from vllm.platforms import current_platform

    context = worker.vllm_config.compilation_config.static_forward_context
    modules = list(worker.get_model().modules())
    names = [name for module in modules if (name := family.linear_name(module)) is not None]
    return WorkerReport(
        platform=type(current_platform).__name__,
        worker=type(worker).__name__,
        attention=dict(Counter(_attention_names(context.values()))),
        linear=dict(Counter(names)),
        calls={**_attention_calls(context.values()), **family.linear_calls(modules)},
        kernels=dict(family.kernel_calls()),
    )


def _attention_names(layers: Iterable[Any]) -> Iterable[str]:
    for layer in layers:
        impl = getattr(layer, "impl", None)
        backend = getattr(layer, "attn_backend", None)
        if impl is None or backend is None:
            continue
        path = getattr(impl, "path", "upstream")
        yield f"{backend.__name__}/{type(impl).__name__}[{path}]"


def _attention_calls(layers: Iterable[Any]) -> dict[str, int]:
    calls: Counter[str] = Counter()
    for layer in layers:
        impl: Any = getattr(layer, "impl", None)
        if hasattr(impl, "num_calls"):
            calls[f"attention[{impl.path}]"] += impl.num_calls
    return dict(calls)


def _counts(names: dict[str, int]) -> str:
    return ", ".join(f"{name} x{count}" for name, count in sorted(names.items())) or "none"
