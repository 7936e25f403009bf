"""Child processes: a few at a time, each with a time limit, every way to end accounted for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from vllm_xyserve.doctor.facts import Child, ChildStatus

_POLL_S = 0.02
_LOG_LINES = 12
# The parent's import path, so that a child sees just what this process sees; then the probe. The
# first argument must not look like vLLM's command, which would read a choice from it.
_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); name = sys.argv[2]; "
    "sys.argv = ['vllm-xyserve']; from {module} import main; main(name)"
)


@dataclass
class _Running:
    name: str
    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]
    deadline: float


def run(
    names: Sequence[str],
    *,
    timeout: float,
    environ: Mapping[str, str] | None = None,
    width: int = 2,
    module: str = "vllm_xyserve.doctor.child",
) -> dict[str, Child]:
    """Run the probes ``names``, at most ``width`` at a time and ``timeout`` seconds each.

    Children stay in this process group, so that Ctrl-C reaches them too. Their output goes to
    files: a grandchild that holds a pipe open would keep us waiting.

    Args:
        names: ``probe`` or ``probe:argument``.
        environ: variables of the children, this process' own if None.
        module: where the function ``main(name)`` comes from that a child runs.
    """
    waiting = deque(names)
    running: list[_Running] = []
    results: dict[str, Child] = {}
    try:
        while waiting or running:
            while waiting and len(running) < max(1, width):
                running.append(_start(waiting.popleft(), timeout, environ, module))
            time.sleep(_POLL_S)
            for item in list(running):
                late = time.monotonic() > item.deadline
                if item.process.poll() is not None or late:
                    running.remove(item)
                    results[item.name] = _finish(item, timeout)
    finally:
        for item in running:
            item.process.kill()
    return {name: results[name] for name in names}


def _start(name: str, timeout: float, environ: Mapping[str, str] | None, module: str) -> _Running:
    command = [sys.executable, *_interpreter_flags(), "-c", _CODE.format(module=module)]
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - _read closes
    process = subprocess.Popen(
        [*command, json.dumps(sys.path), name],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        env=dict(os.environ if environ is None else environ),
    )
    return _Running(name, process, out, err, time.monotonic() + timeout)


def _interpreter_flags() -> list[str]:
    flags = {
        "-I": sys.flags.isolated,
        "-E": sys.flags.ignore_environment,
        "-s": sys.flags.no_user_site,
        "-S": sys.flags.no_site,
        "-P": sys.flags.safe_path,
        "-B": sys.flags.dont_write_bytecode,
    }
    return [flag for flag, is_set in flags.items() if is_set]


def _finish(item: _Running, timeout: float) -> Child:
    code = item.process.poll()
    if code is None:
        item.process.kill()
        item.process.wait()
    step, data = _parse(_read(item.out))
    log = "\n".join(_read(item.err).splitlines()[-_LOG_LINES:])
    status, error = _verdict(code, step, data, timeout, log)
    return Child(item.name, status, step, error, data, log)


def _read(stream: IO[bytes]) -> str:
    with stream:
        stream.seek(0)
        return stream.read().decode("utf-8", "replace")


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    """The last step and all data of a report, which may end in the middle of a line."""
    step, data = "", {}
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        step = record.get("step", step)
        data.update(record.get("data", {}))
    return step, data


def _verdict(
    code: int | None, step: str, data: Mapping[str, Any], timeout: float, log: str
) -> tuple[ChildStatus, str]:
    doing = f" in the step '{step}'" if step else ""
    if code is None:
        return "timeout", f"no answer within {timeout:g} s{doing}"
    if code == 0:
        return "ok", ""
    if code < 0:
        return "crashed", f"killed by {_signal_name(-code)}{doing}"
    if "error" in data:
        return "failed", str(data["error"])
    last = log.splitlines()[-1].strip() if log.strip() else "no message"
    return "crashed", f"ended with status {code}{doing}: {last}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
