"""Checks in every process that the chosen platform is the active one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vllm_xyserve.platform import factory, notes, rivals, select

if TYPE_CHECKING:
    from vllm.platforms.interface import Platform


def ensure_active() -> None:
    """Return with xyserve active if it was chosen; do nothing if it was not.

    vLLM skips all platform plugins under ``VLLM_TARGET_DEVICE=cpu`` and those that
    ``VLLM_PLUGINS`` does not name. If what it took instead is just the class that ours derives
    from, the one platform object, which every importer holds, becomes ours in place.

    Raises:
        PlatformError: another platform is active; names it and what to set.
    """
    try:
        choice = select.read_choice()
    except select.ChoiceError as error:
        factory.fail(str(error))
    if not choice.chosen:
        return
    select.commit(choice)
    from vllm.platforms import current_platform

    if is_xyserve(current_platform):
        return
    active = type(current_platform)
    why = _why_missed(active)
    missed = (
        f"xyserve was chosen ({choice.source}), but vLLM runs on {active.__module__}."
        f"{active.__qualname__} ({why})"
    )
    try:
        family, _ = select.detect_family()
        ours = factory.platform_class(family)
    except Exception as error:
        factory.fail(
            f"{missed}, and the xyserve platform does not load: {type(error).__name__}: {error}. "
            f"{_mend()}",
            error,
        )
    if active not in ours.__bases__:
        factory.fail(f"{missed}. {_mend()}")
    current_platform.__class__ = ours
    notes.add(f"took over {active.__name__}'s place after vLLM had chosen it ({why})")


def is_xyserve(platform: Platform) -> bool:
    """Whether a platform object is one of ours."""
    from vllm_xyserve.platform.common import XyPlatformMixin

    return isinstance(platform, XyPlatformMixin)


def _why_missed(active: type) -> str:
    if select.targets_cpu():
        return f"{select.ENV_TARGET}=cpu makes vLLM skip every platform plugin"
    plugins = os.environ.get("VLLM_PLUGINS")
    if plugins is not None and select.NAME not in plugins.split(","):
        return f"VLLM_PLUGINS={plugins!r} does not name {select.NAME}"
    others = rivals.others()
    if active.__module__.startswith("vllm."):  # then only one of our own name can have mattered
        others = [other for other in others if other.name == select.NAME]
    if others:
        return f"in our place vLLM called {rivals.describe(others)}"
    return "xyserve was chosen after vLLM had chosen its platform"


def _mend() -> str:
    if select.targets_cpu():
        return (
            f"Unset {select.ENV_TARGET}, or set {select.ENV_DEVICE}=cpu; for vLLM's own platform "
            "leave xyserve out"
        )
    if any(other.name == select.NAME for other in rivals.others()):
        return "Uninstall it, as both have one name; for that platform leave xyserve out"
    return factory.how_to_be_alone()
