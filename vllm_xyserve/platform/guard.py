"""Checks in every process that the chosen platform is the active one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vllm_xyserve.log import get_logger
from vllm_xyserve.platform import factory, select

if TYPE_CHECKING:
    from vllm.platforms.interface import Platform

logger = get_logger("guard")


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
    try:
        family, _ = select.detect_family()
        ours = factory.platform_class(family)
    except Exception as error:
        factory.fail(f"xyserve was chosen ({choice.source}) but cannot run here: {error}", error)
    if type(current_platform) in ours.__bases__:
        current_platform.__class__ = ours
        logger.info(
            "xyserve: took over %s's place after vLLM had chosen it (%s)",
            ours.__bases__[-1].__name__,
            _why_missed(),
        )
        return
    active = type(current_platform)
    factory.fail(
        f"xyserve was chosen ({choice.source}), but vLLM runs on {active.__module__}."
        f"{active.__qualname__} ({_why_missed()}). Set VLLM_PLUGINS={select.NAME},"
        f"{select.GUARD_NAME} (add the general plugins that you need), or uninstall the other "
        f"platform plugin; for that platform leave xyserve out"
    )


def is_xyserve(platform: Platform) -> bool:
    """Whether a platform object is one of ours."""
    from vllm_xyserve.platform.common import XyPlatformMixin

    return isinstance(platform, XyPlatformMixin)


def _why_missed() -> str:
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu":
        return "VLLM_TARGET_DEVICE=cpu makes vLLM skip every platform plugin"
    plugins = os.environ.get("VLLM_PLUGINS")
    if plugins is not None and select.NAME not in plugins.split(","):
        return f"VLLM_PLUGINS={plugins!r} does not name {select.NAME}"
    return "another platform plugin was activated in its place"
