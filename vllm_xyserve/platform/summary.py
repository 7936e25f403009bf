"""The one start-up line: family, instruction set, and what runs for each part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vllm_xyserve import parts
from vllm_xyserve.config import XyConfig

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def isa_name(family: str) -> str:
    """The instruction set that native kernels of the family are dispatched to."""
    if family != "cpu":
        return family
    from vllm_xyserve.ops import native

    status = native.load()
    return status.isa if status.loaded else "none"


def start_up_line(
    family: str,
    vllm_config: VllmConfig,
    scheduler: parts.PartChoice,
    options: XyConfig,
    choices: Mapping[parts.Part, parts.PartChoice],
) -> str:
    """``xyserve: family=... isa=... scheduler=... attention=... linear=... prefix_unit=...``.

    Worker processes report layers that fall back one by one; this line has what holds for all.
    """
    fields = {
        "family": family,
        "isa": _isa(family),
        "scheduler": _scheduler(vllm_config, scheduler),
        **{part: str(choice) for part, choice in choices.items()},
        "prefix_unit": _prefix_unit(vllm_config),
    }
    return "xyserve: " + " ".join(f"{name}={value}" for name, value in fields.items())


def _isa(family: str) -> str:
    if family != "cpu":
        return family
    from vllm_xyserve.ops import native

    status = native.load()
    return status.isa if status.loaded else f"none ({status.reason})"


def _scheduler(vllm_config: VllmConfig, choice: parts.PartChoice) -> str:
    if choice.path == "upstream":
        return str(choice)
    return "async" if vllm_config.scheduler_config.async_scheduling else "sync"


def _prefix_unit(vllm_config: VllmConfig) -> str:
    cache_config = vllm_config.cache_config
    if not cache_config.enable_prefix_caching:
        return "off (prefix caching is off)"
    return f"{cache_config.block_size} tokens (one KV block)"
