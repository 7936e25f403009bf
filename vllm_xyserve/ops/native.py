"""Finds and loads the native CPU library, and says why where that is not possible.

`load()` never raises: without the library every operation runs on its reference twin, and
`NativeStatus` carries the reason and the mend for `doctor` and for the log.
"""

import importlib.metadata
import importlib.util
import json
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import vllm_xyserve
from vllm_xyserve.ops.isa import ISAS

DISTRIBUTION: Final = "vllm-xyserve"
LIBRARY: Final = Path("_native", "libxyserve_cpu.so")
REINSTALL: Final = "pip install --no-build-isolation --no-deps --force-reinstall PATH_TO_SOURCE"


@dataclass(frozen=True, slots=True)
class NativeStatus:
    """Whether the native library is in use.

    loaded: its operations are registered as `torch.ops.xyserve.*`. path: the library file, None if
    there is none. reason: why it is not loaded, empty if it is. mend: what to do about it. isa: the
    highest instruction set that dispatch may use. available: all that this CPU has, rising.
    misconfigured: XYSERVE_ISA cannot be obeyed; operations then raise instead of quietly running
    something else.
    """

    loaded: bool
    path: Path | None
    reason: str = ""
    mend: str = ""
    isa: str = ""
    available: tuple[str, ...] = ()
    misconfigured: bool = False


_lock = threading.Lock()
_status: NativeStatus | None = None


def load() -> NativeStatus:
    """Load the library on the first call; later calls return the same answer at once.

    Thread safe, never raises. Imports torch, and only if there is a library to load.
    """
    global _status
    if _status is None:
        with _lock:
            if _status is None:
                _status = _check_environment() or _load()
    return _status


def find_library(library: Path = LIBRARY) -> Path | None:
    """The library of this installation, or None.

    library: its place below the package.

    An editable install keeps Python files in the source tree and the library in site-packages;
    both are in `__path__`, unless the source tree was found through `sys.path` first. The recorded
    installation answers in that case.
    """
    return next((path for path in _candidates(library) if path.is_file()), None)


def _candidates(library: Path) -> Iterator[Path]:
    for root in vllm_xyserve.__path__:
        yield Path(root) / library
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return
    yield Path(str(distribution.locate_file("vllm_xyserve"))) / library


def _check_environment() -> NativeStatus | None:
    """A failed status if XYSERVE_ISA names no instruction set (the library checks the CPU)."""
    wanted = os.environ.get("XYSERVE_ISA", "")
    if not wanted or wanted in ISAS:
        return None
    return NativeStatus(
        loaded=False,
        path=find_library(),
        reason=f"XYSERVE_ISA={wanted} is not an instruction set; allowed: {', '.join(ISAS)}",
        mend="set XYSERVE_ISA to an allowed value, or unset it for the best one",
        misconfigured=True,
    )


def _load() -> NativeStatus:
    path = find_library()
    if path is None:
        return _absent()
    try:
        import torch

        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
        from vllm_xyserve.ops import fake

        fake.register()
        state = json.loads(torch.ops.xyserve.describe())
        error = torch.ops.xyserve.isa_error()
    except Exception as failure:  # whatever is wrong with it, the reference path still works
        lines = str(failure).strip().splitlines() or [type(failure).__name__]
        return NativeStatus(
            loaded=False,
            path=path,
            reason=f"{path} cannot be loaded: {lines[0]}",
            mend=f"it needs torch >= 2.10; build it again for this environment: {REINSTALL}",
        )
    return NativeStatus(
        loaded=not error,
        path=path,
        reason=error,
        mend="set XYSERVE_ISA to an allowed value, or unset it for the best one" if error else "",
        isa=state["isa"],
        available=tuple(state["available"]),
        misconfigured=bool(error),
    )


def _absent() -> NativeStatus:
    """Status without a library; the mend names what the build would miss now."""
    compilers = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    steps = []
    if not any(name and shutil.which(name) for name in compilers):
        steps.append("install a C++20 compiler (Debian, Ubuntu: apt install g++)")
    if importlib.util.find_spec("cmake") is None and shutil.which("cmake") is None:
        steps.append("install CMake and Ninja (pip install cmake ninja)")
    if importlib.util.find_spec("torch") is None:
        steps.append("install vLLM, or torch >= 2.10")
    steps.append(f"{REINSTALL} (XYSERVE_BUILD_NATIVE=1 shows why a build fails)")
    return NativeStatus(
        loaded=False,
        path=None,
        reason=(
            "this installation has no native library: at installation XYSERVE_BUILD_NATIVE was 0, "
            "or compiler, CMake or torch were missing, or the source tree is used uninstalled"
        ),
        mend="; then ".join(steps),
    )
