"""What kernels exist, which one dispatch chooses, and which ones ran.

The table itself is `csrc/cpu/kernels.inc`; this is its view from Python, with the reference twins
added. Tests and benchmarks iterate it, so a new line there is tested and measured without a change
here.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

from vllm_xyserve.ops import native

DTYPE_NAMES: Final[dict[torch.dtype, str]] = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
}
DTYPES: Final[dict[str, torch.dtype]] = {name: dtype for dtype, name in DTYPE_NAMES.items()}
REFERENCE: Final = "reference"

# Operations that have a reference twin, with how often it ran in this process.
_reference_calls: dict[str, int] = {
    "silu_and_mul": 0,
    "kv_write": 0,
    "meta_attention": 0,
    "linear": 0,
    "linear_int8": 0,
    "quantize_rows": 0,
    "rms_norm": 0,
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One line of the registry.

    op: operation. name: unique. isa: instruction set, or `reference`. dtype: `f32`, `bf16`, `f16`.
    available: this CPU can run it. chosen: dispatch takes it for (op, dtype) now. calls: how often
    it ran in this process (a reference twin counts all dtypes together).
    """

    op: str
    name: str
    isa: str
    dtype: str
    available: bool
    chosen: bool
    calls: int


@dataclass(frozen=True, slots=True)
class Support:
    """Whether something can run natively; `reason` says why not and is empty if it can."""

    ok: bool
    reason: str = ""


def kernels(op: str | None = None) -> tuple[Kernel, ...]:
    """All kernels, or those of one operation: native ones first, then the reference twins."""
    lines = _native_kernels()
    has_choice = {(line.op, line.dtype) for line in lines if line.chosen}
    for name, calls in _reference_calls.items():
        lines += [
            Kernel(
                op=name,
                name=f"{name}_{dtype}_{REFERENCE}",
                isa=REFERENCE,
                dtype=dtype,
                available=True,
                chosen=(name, dtype) not in has_choice,
                calls=calls,
            )
            for dtype in DTYPES
        ]
    return tuple(line for line in lines if op in (None, line.op))


def _native_kernels() -> list[Kernel]:
    if not native.load().loaded:
        return []
    return [Kernel(**line) for line in json.loads(torch.ops.xyserve.describe())["kernels"]]


def chosen(op: str, dtype: torch.dtype) -> Kernel:
    """The kernel that a call of `op` on CPU tensors of `dtype` would run now."""
    name = DTYPE_NAMES.get(dtype)
    found = next((line for line in kernels(op) if line.chosen and line.dtype == name), None)
    if found is None:
        raise ValueError(
            f"no kernel for {op=} and {dtype=}; operations: {sorted(_reference_calls)}, "
            f"dtypes: {[str(known) for known in DTYPES.values()]}"
        )
    return found


def supports(op: str, *, dtype: torch.dtype, device: str = "cpu") -> Support:
    """Whether `op` runs natively for this dtype and device type, with the reason if not."""
    status = native.load()
    if not status.loaded:
        return Support(False, status.reason)
    if device != "cpu":
        return Support(False, f"native kernels need tensors on the cpu, got {device}")
    lines = [line for line in kernels(op) if line.isa != REFERENCE]
    if not lines:
        return Support(False, f"{op} has no native kernel")
    name = DTYPE_NAMES.get(dtype)
    if not any(line.chosen and line.dtype == name for line in lines):
        have = sorted({line.dtype for line in lines if line.chosen})
        return Support(False, f"{op} has native kernels for {', '.join(have)}, not for {dtype}")
    return Support(True)


def calls() -> dict[str, int]:
    """How often each kernel ran in this process, by kernel name."""
    return {line.name: line.calls for line in kernels()}


def count_reference(op: str) -> None:
    """Record a run of a reference twin; not while compiling: a counter would break the graph."""
    if not torch.compiler.is_compiling():
        _reference_calls[op] += 1


@contextmanager
def isa_cap(isa: str) -> Iterator[None]:
    """Let dispatch use no instruction set above `isa` meanwhile (whole process; tests, benchmarks).

    Raises RuntimeError if the library is not loaded or the CPU lacks `isa`.
    """
    status = native.load()
    if not status.loaded:
        raise RuntimeError(f"isa_cap needs the native library: {status.reason}")
    previous = torch.ops.xyserve.set_isa(isa)
    try:
        yield
    finally:
        torch.ops.xyserve.set_isa(previous)
