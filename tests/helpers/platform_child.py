"""Does in a process what vLLM does to find its platform, and reports what came of it.

`python -m tests.helpers.platform_child fresh FILE` observes one row in this interpreter.
`python -m tests.helpers.platform_child serve FILE` imports vLLM once (7 s, most of it torch) and
observes each row in a fork of that process: the platform is not resolved by then, our modules are
dropped and torch's autoload is run again, so that a fork starts where a fresh process would.

FILE holds rows as JSON; results are written beside it.
"""

from __future__ import annotations

import importlib
import importlib.abc
import json
import multiprocessing
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

OUR_VARIABLES = ("XYSERVE_", "VLLM_", "TORCH_DEVICE_BACKEND_AUTOLOAD")


class _Breaker(importlib.abc.MetaPathFinder):
    """Makes the import of chosen modules fail."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in self.names:
            raise ImportError(f"injected: {name} does not import")
        return None


def describe_platform() -> dict[str, Any]:
    """The active platform, read off the object that all importers share."""
    from vllm.platforms import current_platform

    cls = type(current_platform)
    return {
        "cls": cls.__name__,
        "mro": [c.__name__ for c in cls.__mro__],
        "device_type": current_platform.device_type,
        "enum": current_platform._enum.name,
    }


def observe(row: dict[str, Any]) -> dict[str, Any]:
    """Resolve the platform and load the general plugins under the row's circumstances."""
    if row["torch_first"]:
        import torch  # noqa: F401

        os.environ.update(row["env_after_torch"])
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins

    before = type(current_platform).__name__
    os.environ.update(row["late_env"])
    load_general_plugins()
    from vllm.platforms import current_platform as now

    facts = describe_platform() | {
        "cls_before_general_plugins": before,
        "same_object": now is current_platform,
        "argv": sys.argv,
        "variable": os.environ.get("XYSERVE_PLATFORM"),
        "loaded": {n: n in sys.modules for n in row["probe_modules"]},
        "notes": _notes(),
    }
    if row["children"]:
        facts["spawned"] = _in_spawned_child()
        facts["subprocess"] = _in_subprocess()
    return facts


def _notes() -> list[str]:
    """What the platform is going to log once vLLM has set up its logging."""
    notes = sys.modules.get("vllm_xyserve.platform.notes")
    taken: list[str] = notes.take() if notes else []
    return taken


def _observe_quietly(queue: Any) -> None:
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    queue.put(describe_platform() | {"argv": sys.argv})


def _in_spawned_child() -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_observe_quietly, args=(queue,))
    process.start()
    facts: dict[str, Any] = queue.get(timeout=500)
    process.join()
    return facts


def _in_subprocess() -> dict[str, Any]:
    code = (
        "import json; from tests.helpers import platform_child as c; "
        "from vllm.plugins import load_general_plugins as g; g(); "
        "print('FACTS', json.dumps(c.describe_platform()))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=500
    ).stdout
    line = next(line for line in out.splitlines() if line.startswith("FACTS "))
    facts: dict[str, Any] = json.loads(line.removeprefix("FACTS "))
    return facts


def _enter(row: dict[str, Any]) -> None:
    sys.argv = list(row["argv"])
    for name in [n for n in os.environ if n.startswith(OUR_VARIABLES)]:
        del os.environ[name]
    os.environ.update(row["env"])
    sys.path[:0] = row["before"]
    sys.path += row["after"]
    importlib.invalidate_caches()
    if row["broken"]:
        sys.meta_path.insert(0, _Breaker(row["broken"]))


def _run(row: dict[str, Any], facts_file: Path) -> int:
    """Observe; the exit status is what Python's would be."""
    try:
        facts_file.write_text(json.dumps(observe(row)), encoding="utf-8")
    except SystemExit as error:
        if isinstance(error.code, int):
            return error.code
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _fork(row: dict[str, Any], stem: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        for fd, suffix in ((1, ".out"), (2, ".err")):
            os.dup2(os.open(stem.with_suffix(suffix), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
        _enter(row)
        for name in [n for n in sys.modules if n.partition(".")[0] == "vllm_xyserve"]:
            del sys.modules[name]
        code = _autoload_and_run(row, stem.with_suffix(".json"))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _autoload_and_run(row: dict[str, Any], facts_file: Path) -> int:
    import torch

    try:
        if torch._is_device_backend_autoload_enabled():
            torch._import_device_backends()
    except SystemExit as error:
        return int(error.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return _run(row, facts_file)


def serve(file: Path) -> None:
    """Observe all rows, two at a time; the exit status of each goes to `codes.json`."""
    import huggingface_hub.hf_api  # noqa: F401 - vLLM's own general plugins import it
    import vllm.logger
    import vllm.platforms
    import vllm.plugins

    if vllm.platforms._current_platform is not None:
        raise RuntimeError("the platform is resolved already, so forks would not resolve it")
    names: dict[int, str] = {}
    codes: dict[str, int] = {}

    def reap() -> None:
        pid, status = os.wait()
        codes[names.pop(pid)] = os.waitstatus_to_exitcode(status)

    for name, row in json.loads(file.read_text(encoding="utf-8")).items():
        if len(names) == 2:
            reap()
        names[_fork(row, file.parent / name)] = name
    while names:
        reap()
    (file.parent / "codes.json").write_text(json.dumps(codes), encoding="utf-8")


def fresh(file: Path) -> int:
    """Observe one row in this process, which has imported neither torch nor vLLM."""
    row = json.loads(file.read_text(encoding="utf-8"))
    _enter(row)
    return _run(row, file.with_suffix(".facts"))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(Path(sys.argv[2]))
    else:
        sys.exit(fresh(Path(sys.argv[2])))
