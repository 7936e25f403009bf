"""Makes the platform object; vLLM calls it where an error still reaches the user."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, NoReturn

from vllm_xyserve.log import get_logger
from vllm_xyserve.platform import notes, rivals, select

if TYPE_CHECKING:
    from vllm.platforms.interface import Platform

logger = get_logger("platform")


class PlatformError(RuntimeError):
    """xyserve was chosen and cannot become the active platform."""


def platform_class(family: select.Family) -> type[Platform]:
    """The platform class of a family; imports the family's parent platform."""
    module = importlib.import_module(f"vllm_xyserve.platform.{family}")
    cls: type[Platform] = module.platform_class()
    return cls


def make_platform() -> Platform:
    """The platform object that vLLM installs as ``current_platform``.

    Raises:
        PlatformError: with what is wrong and what to do; vLLM's own commands exit with it.
    """
    try:
        choice = select.read_choice()
        family, reason = select.detect_family()
    except select.ChoiceError as error:
        fail(str(error))
    _note_ascend()
    try:
        platform = platform_class(family)()
    except Exception as error:
        fail(
            f"xyserve was chosen ({choice.source}) for {family} ({reason}), but its platform "
            f"could not be loaded: {type(error).__name__}: {error}. `vllm-xyserve doctor` says "
            f"what is missing; for vLLM's own platform leave xyserve out",
            error,
        )
    logger.debug("platform %s, chosen by %s; %s", type(platform).__name__, choice.source, reason)
    return platform


def fail(message: str, cause: Exception | None = None) -> NoReturn:
    """End vLLM's own commands with status 1 and the message; raise `PlatformError` elsewhere."""
    end_command(message, cause)
    raise PlatformError(message) from cause


def end_command(message: str, cause: Exception | None = None) -> None:
    """End vLLM's own commands with status 1 and the message; do nothing elsewhere."""
    if select.is_vllm_cli(sys.argv):
        logger.debug("cause", exc_info=cause)
        print(f"vllm: error: {message}", file=sys.stderr, flush=True)
        raise SystemExit(1)


def refuse_rivals(choice: select.Choice) -> None:
    """End vLLM's own commands if another platform plugin activates as well.

    Elsewhere it is an error in the log: vLLM swallows what a plugin's function raises, and then
    reports the two by name, but not what to set.
    """
    if not (found := rivals.active()):
        return
    message = (
        f"xyserve was chosen ({choice.source}), and another platform plugin is active, too: "
        f"{rivals.describe(found)}. {how_to_be_alone()}"
    )
    end_command(message)
    logger.error("%s", message)


def how_to_be_alone() -> str:
    """What a message tells the user to do about another platform plugin."""
    return (
        f"Set VLLM_PLUGINS={select.NAME} (add the general plugins that you need), or uninstall the "
        f"other platform plugin; for that platform leave xyserve out"
    )


def _note_ascend() -> None:
    from vllm_xyserve.compat import patches

    if patches.ascend_is_silenced():
        notes.add(
            "vllm-ascend's own platform plugin is installed and stays inactive, since xyserve "
            "takes its place (its general plugins still load)"
        )
