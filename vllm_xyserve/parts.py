"""Which path a replaceable part (attention, linear) takes: native, reference or upstream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vllm_xyserve.config import KEY, ConfigError, XyConfig

Part = Literal["attention", "linear"]
Taken = Literal["native", "reference", "upstream"]

PARTS: tuple[Part, ...] = ("attention", "linear")

# Parts with a native kernel that was measured to win, by device family.
_NATIVE: dict[str, frozenset[Part]] = {"cpu": frozenset(), "cuda": frozenset(), "npu": frozenset()}
# The reference paths read and write host memory in the CPU family's layouts.
_REFERENCE_FAMILIES = frozenset({"cpu"})


@dataclass(frozen=True, slots=True)
class PartChoice:
    """The path that a part takes, and why it is not the one that was asked for ("" if it is)."""

    path: Taken
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.path} ({self.reason})" if self.reason else self.path


def resolve(part: Part, config: XyConfig, family: str) -> PartChoice:
    """The path of a part, before any layer with unsupported heads or types falls back.

    Raises:
        ConfigError: the path was asked for by name and does not exist here.
    """
    asked = getattr(config, part)
    if asked == "auto":
        if part in _NATIVE[family]:
            return PartChoice("native")
        return PartChoice("upstream", f"auto: no native {part} kernel for {family} yet")
    if asked == "native" and part not in _NATIVE[family]:
        raise ConfigError(
            f"{KEY}.{part} is 'native', but this version has no native {part} kernel for {family}; "
            f"use one of auto, reference (cpu only), upstream"
        )
    if asked == "reference" and family not in _REFERENCE_FAMILIES:
        raise ConfigError(
            f"{KEY}.{part} is 'reference', which exists for cpu only, and the family is {family}; "
            f"use one of auto, upstream"
        )
    return PartChoice(asked)
