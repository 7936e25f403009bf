"""Build back end: scikit-build-core, plus an installation that survives a missing tool chain.

`XYSERVE_BUILD_NATIVE` chooses what happens with the native library:

* unset or `auto`: build it; if that fails, say why and install the Python package alone.
* `0`: do not build it.
* `1`: build it, and let the installation fail if that fails (for packagers and for CI).

torch is located without importing it (an import costs seconds). In a build that pip isolates it is
not importable, but the environment's own directories are still known, so it is found there.
"""

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from scikit_build_core import build as _backend
from scikit_build_core.errors import FailedLiveProcessError, FailedProcessError, ScikitBuildError

Settings = dict[str, list[str] | str]

_MODES = {"": "auto", "auto": "auto", "0": "off", "off": "off", "false": "off", "1": "required"}
_PROBE_HEADER = Path("include", "torch", "csrc", "stable", "library.h")


def _mode() -> str:
    """`auto`, `off` or `required`, from XYSERVE_BUILD_NATIVE."""
    value = os.environ.get("XYSERVE_BUILD_NATIVE", "").strip().lower()
    if value not in _MODES:
        allowed = ", ".join(sorted(filter(None, _MODES)))
        raise SystemExit(f"XYSERVE_BUILD_NATIVE={value!r} is unknown; allowed: {allowed}, or unset")
    return _MODES[value]


def _find_torch() -> Path | None:
    """Directory of the installed torch package with the stable C++ headers, or None."""
    spec = importlib.util.find_spec("torch")
    roots = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    roots += [Path(sysconfig.get_path(key), "torch") for key in ("platlib", "purelib")]
    return next((root for root in roots if (root / _PROBE_HEADER).is_file()), None)


def _say(*lines: str) -> None:
    text = "\n".join(f"*** vllm-xyserve: {line}" for line in lines)
    print(text, file=sys.stderr, flush=True)


def _without_cmake(settings: Settings | None) -> Settings:
    return {**(settings or {}), "wheel.cmake": "false"}


def _build(
    step: Callable[[str, Settings | None, str | None], str],
    wheel_directory: str,
    settings: Settings | None,
    metadata_directory: str | None,
) -> str:
    """Run one back-end step with the native library, or without it where that is allowed."""
    mode = _mode()
    if mode == "off":
        _say("XYSERVE_BUILD_NATIVE=0: installing without the native library (torch reference path)")
        return step(wheel_directory, _without_cmake(settings), metadata_directory)
    try:
        torch_dir = _find_torch()
        if torch_dir is None:
            raise ScikitBuildError(
                f"torch >= 2.10 with {_PROBE_HEADER} was not found by {sys.executable}; install "
                "vLLM (or torch) first, then install with `pip install --no-build-isolation .`"
            )
        native = {**(settings or {}), "cmake.define.XYSERVE_TORCH_DIR": torch_dir.as_posix()}
        return step(wheel_directory, native, metadata_directory)
    except (ScikitBuildError, FailedProcessError, FailedLiveProcessError, SystemExit) as error:
        if mode == "required":
            raise
        reason = str(error)
        if isinstance(error, SystemExit):
            reason = "CMake or the C++ compiler failed; its output stands above (pip: add -v)"
    _say(
        f"the native library was not built: {reason}",
        "installing the Python package alone: every operation runs on its torch reference path.",
        "`vllm-xyserve doctor` shows what is missing; XYSERVE_BUILD_NATIVE=1 makes this an error.",
    )
    return step(wheel_directory, _without_cmake(settings), metadata_directory)


def build_wheel(
    wheel_directory: str,
    config_settings: Settings | None = None,
    metadata_directory: str | None = None,
) -> str:
    return _build(_backend.build_wheel, wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str,
    config_settings: Settings | None = None,
    metadata_directory: str | None = None,
) -> str:
    return _build(_backend.build_editable, wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Settings | None = None) -> str:
    return _backend.build_sdist(sdist_directory, config_settings)


def _requires(settings: Settings | None) -> Settings | None:
    return _without_cmake(settings) if _mode() == "off" else settings


def get_requires_for_build_wheel(config_settings: Settings | None = None) -> list[str]:
    return _backend.get_requires_for_build_wheel(_requires(config_settings))


def get_requires_for_build_editable(config_settings: Settings | None = None) -> list[str]:
    return _backend.get_requires_for_build_editable(_requires(config_settings))


def get_requires_for_build_sdist(config_settings: Settings | None = None) -> list[str]:
    return _backend.get_requires_for_build_sdist(config_settings)


# No prepare_metadata_* hooks: whether the wheel is pure is known only after the attempt to build,
# and a front end falls back to building the wheel where the hooks are absent.
