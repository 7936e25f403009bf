"""The entry points that vLLM and torch load. Imports only the standard library.

Nothing here may fail at import: vLLM logs an entry point that does not import and goes on with
its stock platform, which a user who asked for xyserve would not notice. Whatever can fail is
imported inside the functions, and its failure is reported where vLLM does not swallow it.
"""

from __future__ import annotations

PLATFORM_FACTORY = "vllm_xyserve.platform.factory.make_platform"


def register() -> str | None:
    """Platform plugin (group ``vllm.platform_plugins``): the factory's path, or None if not chosen.

    vLLM calls this twice in every process and swallows what it raises, so it is cheap, idempotent
    and leaves all that can fail to the factory, whose errors do reach the user.
    """
    from vllm_xyserve.platform import select

    select.reject_unknown_platform()
    try:
        choice = select.read_choice()
    except select.ChoiceError:
        return PLATFORM_FACTORY  # which meets the same error where it is shown
    if not choice.chosen:
        return None
    select.commit(choice)
    return PLATFORM_FACTORY


def register_general() -> None:
    """General plugin (group ``vllm.general_plugins``): xyserve is active if chosen, else an error.

    Runs in the front end, the engine core and each worker.
    """
    from vllm_xyserve.platform import guard, select

    select.reject_unknown_platform()
    guard.ensure_active()


def torch_autoload() -> None:
    """Device-backend hook (group ``torch.backends``), which torch runs while it is imported.

    It registers no backend. It is the only one of our entry points that ``VLLM_PLUGINS`` cannot
    filter out, so the only place to notice that xyserve was asked for and then filtered out.
    """
    from vllm_xyserve.platform import select

    select.report_filtered_out()


def _silence_ascend() -> None:
    """Let only one of xyserve and vllm-ascend activate, whatever the discovery order.

    vLLM imports every platform plugin before it calls the first, so this has to happen while this
    module is imported: vllm-ascend's function may be called before ours.
    """
    from vllm_xyserve.platform import select

    try:
        chosen = select.read_choice().chosen
    except select.ChoiceError:
        return
    if chosen:
        from vllm_xyserve.compat import patches

        patches.silence_ascend_registration()


try:
    _silence_ascend()
except Exception as error:
    import logging

    logging.getLogger("vllm.xyserve").error(
        "xyserve could not take vllm-ascend's place (%s: %s); if vLLM then reports two active "
        "platform plugins, set VLLM_PLUGINS=xyserve,xyserve_guard and add the vllm-ascend "
        "general plugins that you need",
        type(error).__name__,
        error,
    )
