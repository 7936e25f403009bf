"""The one start-up line: family, instruction set, and what runs for each part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vllm_xyserve import parts

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def isa_name(family: str) -> str:
    """The instruction set that native kernels of the family are dispatched to."""
    return parts.machine(family).isa or "none"


def start_up_line(
    family: str,
    vllm_config: VllmConfig,
    scheduler: parts.PartChoice,
    choices: Mapping[parts.Part, parts.PartChoice],
) -> str:
    """``xyserve: family=... isa=... scheduler=... attention=... linear=...``.

    Worker processes report layers that fall back one by one; this line has what holds for all.
    Where the xyserve scheduler runs, the engine core completes it with the prefix unit, which
    depends on the KV cache, and logs it.
    """
    fields = {
        "family": family,
        "isa": _isa(family),
        "scheduler": _scheduler(vllm_config, scheduler),
    }
    fields.update((part, str(choice)) for part, choice in choices.items())
    return "xyserve: " + " ".join(f"{name}={value}" for name, value in fields.items())


def _isa(family: str) -> str:
    machine = parts.machine(family)
    return machine.isa or f"none ({machine.missing})"


def _scheduler(vllm_config: VllmConfig, choice: parts.PartChoice) -> str:
    if choice.path == "upstream":
        return str(choice)
    return "async" if vllm_config.scheduler_config.async_scheduling else "sync"
