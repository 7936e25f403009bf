"""Build the Ascend C library and put it where the plugin looks for it.

    source /usr/local/Ascend/ascend-toolkit/set_env.sh
    python -m deploy.build_ascend

Run from the project's root with the Python that has torch and torch_npu. Needs CANN's compiler; the
plugin works without the library, on vllm-ascend's kernels.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "csrc" / "ascendc"
BUILD = ROOT / "build" / "ascend"
LIBRARY = "libxyserve_ascend.so"


def problems(environ: Mapping[str, str]) -> list[str]:
    """What is missing for a build, each with what to do."""
    found = []
    if not environ.get("ASCEND_HOME_PATH"):
        found.append("ASCEND_HOME_PATH is not set: source CANN's set_env.sh first")
    found += [
        f"{tool} is not in PATH: pip install {tool}, or the package of your system"
        for tool in ("cmake",)
        if shutil.which(tool) is None
    ]
    found += [
        f"{name} does not import here: run this with the Python that vllm-ascend is installed in"
        for name in ("torch", "torch_npu")
        if importlib.util.find_spec(name) is None
    ]
    return found


def target() -> Path:
    """Where the plugin looks: below the package that Python imports."""
    spec = importlib.util.find_spec("vllm_xyserve")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    return Path(places[0] if places else ROOT / "vllm_xyserve") / "_native" / LIBRARY


def main() -> int:
    """Build and install; return 0, or 1 after a message."""
    if missing := problems(os.environ):
        print("\n".join(f"build: {line}" for line in missing), file=sys.stderr)
        return 1
    configure = ["cmake", "-S", str(SOURCES), "-B", str(BUILD)]
    configure.append(f"-DPython3_EXECUTABLE={sys.executable}")
    for command in (configure, ["cmake", "--build", str(BUILD), "--parallel"]):
        if subprocess.run(command).returncode != 0:
            print(f"build: failed: {' '.join(command)}", file=sys.stderr)
            return 1
    place = target()
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(BUILD / LIBRARY, place)
    print(f"build: {place}; `vllm-xyserve doctor` and the worker's log say what runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
