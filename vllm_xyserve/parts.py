"""Which path a replaceable part (attention, linear) takes: native, reference or upstream."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Final, Literal

from vllm_xyserve.config import KEY, ConfigError, XyConfig

Part = Literal["attention", "linear"]
Taken = Literal["native", "reference", "upstream"]

PARTS: tuple[Part, ...] = ("attention", "linear")

# Parts with native kernels, by device family.
_NATIVE: Final[dict[str, frozenset[Part]]] = {
    "cpu": frozenset({"attention", "linear"}),
    "cuda": frozenset(),
    "npu": frozenset({"attention", "linear"}),
}
# What a message tells to build, where it is missing.
_LIBRARY: Final = {
    "cpu": "the native library",
    "npu": "the Ascend C library on a chip that it knows",
}
# (Instruction set, dtype) for which a part's native kernels were measured to win against vLLM's on
# the same instruction set (docs/performance.md). Whatever is not here is nobody's default.
# AVX-512-BF16: linear, 365 points of SmolLM2's layers at 1.02 and up, 1.55 up to M = 8. Not
# attention: where the bf16 dot product runs at full rate another form does the work, which no
# machine has timed yet. AVX2: attention at 1.35 and up, 2.15 in the mean; linear layers at 4 to 9
# times the speed in bf16 and fp16, for which oneDNN has no kernel there.
_MEASURED: Final[dict[Part, frozenset[tuple[str, str]]]] = {
    "attention": frozenset({("avx2", name) for name in ("bfloat16", "float16", "float32")}),
    "linear": frozenset({("avx512_bf16", "bfloat16"), ("avx2", "bfloat16"), ("avx2", "float16")}),
}
# Instruction sets on which the norm with its residual was measured to win against vLLM's form
# without a kernel: 5 to 12 times its speed for 1 to 12 rows of 576 (docs/performance.md).
_MEASURED_NORMS: Final = frozenset({"avx2"})
# The reference paths read and write host memory in the CPU family's layouts.
_REFERENCE_FAMILIES = frozenset({"cpu"})


@dataclass(frozen=True, slots=True)
class PartChoice:
    """The path that a part takes, and why it is not the one that was asked for ("" if it is)."""

    path: Taken
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.path} ({self.reason})" if self.reason else self.path


@dataclass(frozen=True, slots=True)
class Machine:
    """What the choice of `auto` depends on.

    isa: instruction set that native kernels are dispatched to, "" without a native library.
    missing: why there is no native library, "" if there is. rival: what makes the parent's kernels
    other ones than those that ours were measured against, "" if nothing does.
    """

    isa: str
    missing: str = ""
    rival: str = ""


def machine(family: str, part: Part | None = None) -> Machine:
    """This machine, for a device family and one of its parts."""
    if family == "npu":
        return _npu(part)
    if family != "cpu":
        return Machine(isa=family)
    from vllm_xyserve.ops import native

    status = native.load()
    return Machine(status.isa if status.loaded else "", status.reason, rival())


def _npu(part: Part | None) -> Machine:
    from vllm_xyserve.compat import ascend_chip, ascend_upstream
    from vllm_xyserve.ops import ascend

    chip = ascend_chip.detect()
    if not chip.is_native:
        return Machine(chip.name, missing=f"no native kernels for {chip.name}")
    if part is not None and (lacks := ascend_upstream.unrecognised(part)):
        return Machine(chip.name, missing=f"this vllm-ascend lacks {', '.join(lacks)}")
    # A library that is there counts: it is loaded in the workers alone.
    return Machine(chip.name, missing=ascend.status().reason)


def rival() -> str:
    """What gives the CPU parent other kernels than those that ours were measured against, or ""."""
    from vllm_xyserve.ops import isa

    info = isa.cpu_info()
    if info.amx_bf16:
        return "this CPU has AMX, for which vLLM has kernels of its own"
    # Its newer kinds convert bf16 in hardware, which no flag of /proc/cpuinfo tells.
    if info.avx_vnni and "avx512" not in info.isas:
        return "this CPU has AVX-VNNI without AVX-512, for which oneDNN has kernels of its own"
    if importlib.util.find_spec("zentorch") is not None:
        return "zentorch brings kernels of its own"
    return ""


def resolve(
    part: Part,
    config: XyConfig,
    family: str,
    dtype: object = None,
    on: Machine | None = None,
) -> PartChoice:
    """The path of a part, before any layer with unsupported heads or types falls back.

    Args:
        part: the part.
        config: the user's options.
        family: the device family.
        dtype: the model's, for `auto`; None where no model is known.
        on: the machine; this one by default.

    Raises:
        ConfigError: the path was asked for by name and does not exist here.
    """
    asked = getattr(config, part)
    if asked == "reference" and family not in _REFERENCE_FAMILIES:
        raise ConfigError(
            f"{KEY}.{part} is 'reference', which exists for cpu only, and the family is {family}; "
            f"use one of auto, upstream"
        )
    if asked not in ("auto", "native"):
        return PartChoice(asked)
    if part not in _NATIVE[family]:
        if asked == "auto":
            return PartChoice("upstream", f"auto: no native {part} kernel for {family} yet")
        raise ConfigError(
            f"{KEY}.{part} is 'native', but this version has no native {part} kernel for {family}; "
            f"use one of auto, reference (cpu only), upstream"
        )
    on = on or machine(family, part)
    if asked == "native":
        if on.missing:
            raise ConfigError(
                f"{KEY}.{part} is 'native', which needs {_LIBRARY[family]}: {on.missing}; "
                f"use one of auto, reference (cpu only), upstream"
            )
        return PartChoice("native")
    reason = _reason_against(part, dtype, on)
    return PartChoice("upstream", f"auto: {reason}") if reason else PartChoice("native")


def takes_norms(config: XyConfig, family: str, dtype: object) -> bool:
    """Whether norms run our kernel: beside native linear layers, by `auto` only where measured."""
    if resolve("linear", config, family, dtype).path != "native":
        return False
    return config.linear == "native" or machine(family).isa in _MEASURED_NORMS


def _reason_against(part: Part, dtype: object, on: Machine) -> str:
    """Why `auto` leaves a part with the parent, or ""."""
    if on.missing:
        return on.missing
    if on.rival:
        return on.rival
    measured = _MEASURED[part]
    if dtype is None:
        return "" if any(isa == on.isa for isa, _ in measured) else f"not measured on {on.isa}"
    name = str(dtype).removeprefix("torch.")
    return "" if (on.isa, name) in measured else f"not measured on {on.isa} with {name}"
