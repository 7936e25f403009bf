"""The entry points that vLLM and torch load. Imports only the standard library.

Nothing here may fail at import: vLLM logs an entry point that does not import and goes on with
its stock platform, which a user who asked for xyserve would not notice. Whatever can fail is
imported inside the functions, and its failure is reported where vLLM does not swallow it.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

logger = logging.getLogger("vllm.xyserve")

PLATFORM_FACTORY = "vllm_xyserve.platform.factory.make_platform"


def _register() -> str | None:
    """Platform plugin (group ``vllm.platform_plugins``): the factory's path, or None if not chosen.

    vLLM calls this twice in every process and swallows what it raises, so it is cheap, idempotent
    and leaves all that fails to the factory, whose errors do reach the user.
    """
    try:
        return PLATFORM_FACTORY if _chosen() else None
    except Exception:  # the factory meets the same error, where it is shown
        return PLATFORM_FACTORY if _perhaps_chosen() else None


def _chosen() -> bool:
    from vllm_xyserve.platform import factory, select

    select.reject_unknown_platform()
    choice = select.read_choice()
    if choice.chosen:
        select.commit(choice)
        factory.refuse_rivals(choice)
    return choice.chosen


def register_general() -> None:
    """General plugin (group ``vllm.general_plugins``): xyserve is active if chosen, else an error.

    Runs in the front end, the engine core and each worker.
    """
    try:
        from vllm_xyserve.platform import guard, select
    except Exception as error:
        if _perhaps_chosen():
            raise
        _log_broken(error)
        return
    select.reject_unknown_platform()
    guard.ensure_active()


def torch_autoload() -> None:
    """Device-backend hook (group ``torch.backends``), which torch runs while it is imported.

    It registers no backend. It is the only one of our entry points that ``VLLM_PLUGINS`` cannot
    filter out, so the only place to notice that xyserve was asked for and then filtered out.
    """
    try:
        from vllm_xyserve.platform import select
    except Exception as error:  # raised, it would make torch useless to every other program
        _log_broken(error)
        return
    select.report_filtered_out()


def _perhaps_chosen() -> bool:
    """Whether anything hints at xyserve; asked only when what reads the choice has failed."""
    hinted = os.environ.get("XYSERVE_PLATFORM", "") not in ("", "0")
    return hinted or any("xyserve" in arg for arg in sys.argv[1:])


def _log_broken(error: Exception) -> None:
    logger.error(
        "xyserve is installed, but does not import (%s: %s); reinstall or uninstall vllm-xyserve",
        type(error).__name__,
        error,
    )


def __getattr__(name: str) -> Any:
    """``register`` is looked up here, so that loading the entry point already acts.

    vLLM loads all platform plugins before it calls the first, and vllm-ascend's function may be
    called before ours: it has to be silent by then. Importing this module is too early, since
    torch imports it for `torch_autoload`, and a script may choose xyserve after that.
    """
    if name != "register":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        _silence_ascend()
    except Exception as error:
        logger.error(
            "xyserve could not take vllm-ascend's place (%s: %s); if vLLM then reports two active "
            "platform plugins, set VLLM_PLUGINS=xyserve and add the vllm-ascend "
            "general plugins that you need",
            type(error).__name__,
            error,
        )
    return _register


def _silence_ascend() -> None:
    """Let only one of xyserve and vllm-ascend activate, if xyserve was chosen."""
    from vllm_xyserve.platform import select

    try:
        chosen = select.read_choice().chosen
    except select.ChoiceError:
        return
    if chosen:
        from vllm_xyserve.compat import patches

        patches.silence_ascend_registration()
