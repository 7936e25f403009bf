"""Installs fake distributions and runs the rows of the platform table in child processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.helpers.platform_child import OUR_VARIABLES

ROOT = Path(__file__).parents[2]
CHILD = "tests.helpers.platform_child"
VLLM_SERVE = ("/usr/bin/vllm", "serve", "model")
OWN_SCRIPT = ("/home/user/chat.py",)


@dataclass(frozen=True, slots=True)
class Row:
    """The circumstances of one process.

    `before` and `after` are folders with distributions that are discovered before and after ours.
    `env_after_torch` is set once torch is imported by the user (only in a fresh process, and with
    `torch_first`), `late_env` once the platform is resolved. `broken` modules do not import.
    """

    argv: Sequence[str] = OWN_SCRIPT
    env: Mapping[str, str] = field(default_factory=dict)
    env_after_torch: Mapping[str, str] = field(default_factory=dict)
    late_env: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[str] = ()
    after: Sequence[str] = ()
    broken: Sequence[str] = ()
    torch_first: bool = False
    children: bool = False
    probe_modules: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a process ended; `facts` is empty if it did not get as far as a platform."""

    code: int
    log: str
    facts: dict[str, Any]


def run_forked(rows: Mapping[str, Row], folder: Path) -> dict[str, Outcome]:
    """Observe rows in forks of one process, see `platform_child.serve`."""
    file = folder / "rows.json"
    file.write_text(json.dumps({n: asdict(r) for n, r in rows.items()}), encoding="utf-8")
    done = run_command(("-m", CHILD, "serve", str(file)))
    if done.code:
        raise RuntimeError(f"the process that forks the rows failed:\n{done.log}")
    codes = json.loads((folder / "codes.json").read_text(encoding="utf-8"))
    return {
        name: Outcome(
            codes[name],
            _read(folder / f"{name}.out") + _read(folder / f"{name}.err"),
            json.loads(_read(folder / f"{name}.json") or "{}"),
        )
        for name in rows
    }


def run_fresh(row: Row, file: Path) -> Outcome:
    """Observe a row in an interpreter of its own."""
    file.write_text(json.dumps(asdict(row)), encoding="utf-8")
    done = run_command(("-m", CHILD, "fresh", str(file)))
    facts = json.loads(_read(file.with_suffix(".facts")) or "{}")
    return Outcome(done.code, done.log, facts)


def run_command(args: Sequence[str], env: Mapping[str, str] | None = None) -> Outcome:
    """Run Python from the root of the tree; `env` replaces our and vLLM's variables."""
    done = subprocess.run(
        [sys.executable, *args],
        env=clean_environment() | dict(env or {}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    return Outcome(done.returncode, done.stdout + done.stderr, {})


def clean_environment() -> dict[str, str]:
    """This process's environment without what could choose a platform."""
    return {k: v for k, v in os.environ.items() if not k.startswith(OUR_VARIABLES)}


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def make_distribution(
    folder: Path,
    name: str,
    entry_points: Mapping[str, Mapping[str, str]],
    files: Mapping[str, str],
) -> str:
    """Write an installed distribution; the folder goes on ``sys.path``.

    Args:
        folder: where to; made if missing.
        name: of the distribution.
        entry_points: ``{group: {name: "module:function"}}``.
        files: ``{path below folder: text}`` of its modules.
    """
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, members in entry_points.items():
        lines += [f"[{group}]", *(f"{n} = {value}" for n, value in members.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return str(folder)


def make_rival(folder: Path, entry_point: str) -> str:
    """A platform plugin that always activates, on top of vLLM's CPU platform."""
    return make_distribution(
        folder,
        "rival-platform",
        {"vllm.platform_plugins": {entry_point: "rival_platform:register"}},
        {
            "rival_platform/__init__.py": (
                'def register():\n    return "rival_platform.platform.RivalPlatform"\n'
            ),
            "rival_platform/platform.py": (
                "from vllm.platforms.cpu import CpuPlatform\n\n\n"
                "class RivalPlatform(CpuPlatform):\n    pass\n"
            ),
        },
    )


def make_ascend(folder: Path) -> str:
    """What matters here of vllm-ascend 0.23: it activates always and imports vLLM when imported.

    Its platform module needs torch_npu, of which an empty module is installed, too.
    """
    make_distribution(folder, "torch-npu", {}, {"torch_npu.py": "STUB = True\n"})
    return make_distribution(
        folder,
        "vllm-ascend",
        {
            "vllm.platform_plugins": {"ascend": "vllm_ascend:register"},
            "vllm.general_plugins": {"ascend_model": "vllm_ascend:register_model"},
        },
        {
            "vllm_ascend/__init__.py": (
                'def register():\n    return "vllm_ascend.platform.NPUPlatform"\n\n\n'
                "def register_model():\n    import vllm_ascend.models\n\n\n"
                "import vllm_ascend.logger\n"
            ),
            "vllm_ascend/logger.py": (
                "from vllm import envs\nfrom vllm.logging_utils import NewLineFormatter\n"
            ),
            "vllm_ascend/models.py": "",
            "vllm_ascend/platform.py": (
                "import torch_npu\n"
                "from vllm.platforms.interface import Platform, PlatformEnum\n\n\n"
                "class NPUPlatform(Platform):\n"
                "    _enum = PlatformEnum.OOT\n"
                '    device_name = "npu"\n'
                '    device_type = "npu"\n'
            ),
        },
    )
