"""`vllm serve` in a child process: start it, wait for it, and leave nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

VLLM = Path(sys.executable).parent / "vllm"
# Import, weights and warm-up take 40 s on two idle cores; the rest is for a busy machine.
READY_S = 400.0
STOP_S = 60.0
_OURS = ("VLLM_", "XYSERVE_")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Ended:
    """A `vllm serve` that came to its end by itself."""

    code: int
    log: str
    """Standard output and standard error, in the order of a terminal."""
    survivors: tuple[str, ...]
    """Processes of its session that were still there after it."""

    def tail(self, num_lines: int = 8) -> str:
        """What a user reads first: the last lines of the log that are not blank."""
        lines = [line for line in self.log.splitlines() if line.strip()]
        return "\n".join(lines[-num_lines:])


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    url: str
    log_file: Path
    process: subprocess.Popen[bytes]

    def log(self) -> str:
        """All that its processes have printed so far."""
        return self.log_file.read_text(errors="replace")

    def log_lines(self, containing: str) -> list[str]:
        """The lines of the log that hold a text."""
        return [line for line in self.log().splitlines() if containing in line]

    def members(self) -> list[psutil.Process]:
        """The server's processes: API server, engine core, workers and their helpers."""
        return _members(self.process.pid)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def serve(
    arguments: Sequence[str | Path], log_file: Path, environ: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run ``vllm serve ARGUMENTS`` on a free port for the length of the context.

    Args:
        arguments: without host and port.
        log_file: takes the output of all processes.
        environ: variables besides the inherited ones, of which those of vLLM and xyserve are
            left out.

    Raises:
        AssertionError: it does not become ready (with the end of the log), or a process of it
            outlives the SIGTERM that ends the context.
    """
    port = free_port()
    process = _start([*arguments, "--host", "127.0.0.1", "--port", str(port)], log_file, environ)
    server = Server(f"http://127.0.0.1:{port}", log_file, process)
    try:
        _wait_ready(server)
        yield server
    except BaseException:
        _kill_session(process)
        raise
    process.send_signal(signal.SIGTERM)
    survivors = _wait_gone(process.pid, STOP_S)
    _kill_session(process)
    assert not survivors, f"left {STOP_S} s after SIGTERM: {survivors}\n{_tail(log_file)}"


def run_to_end(
    arguments: Sequence[str | Path],
    log_file: Path,
    environ: Mapping[str, str] | None = None,
    deadline_s: float = READY_S,
) -> Ended:
    """Run a ``vllm serve ARGUMENTS`` that is expected to end by itself.

    Raises:
        AssertionError: it does not end before the deadline (with the end of the log).
    """
    process = _start(arguments, log_file, environ)
    try:
        code = process.wait(deadline_s)
        survivors = _wait_gone(process.pid, STOP_S)
    except subprocess.TimeoutExpired:
        names = [_describe(member) for member in _members(process.pid)]
        raise AssertionError(
            f"`vllm serve` still runs after {deadline_s} s: {names}\n{_tail(log_file)}"
        ) from None
    finally:
        _kill_session(process)
    return Ended(code, log_file.read_text(errors="replace"), tuple(survivors))


def _start(
    arguments: Sequence[str | Path], log_file: Path, environ: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
    # vLLM reports usage over the network otherwise; colour codes would split the words of the log.
    fixed = {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "auto", "NO_COLOR": "1"}
    with log_file.open("wb") as stream:
        return subprocess.Popen(
            [VLLM, "serve", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**inherited, **fixed, **(environ or {})},
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )


def _die_with_parent() -> None:
    """Have Linux stop the server if the tests are killed and cannot do it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_ready(server: Server) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        code = server.process.poll()
        assert code is None, f"the server ended with {code}\n{_tail(server.log_file)}"
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{server.url}/health", timeout=5, trust_env=False).is_success:
                return
        time.sleep(0.25)
    raise AssertionError(f"the server is not ready after {READY_S} s\n{_tail(server.log_file)}")


def _members(session: int) -> list[psutil.Process]:
    """Living processes of a session. vLLM renames its children, so names do not find them."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            # A zombie has ended; who inherits an orphan decides when it disappears.
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _wait_gone(session: int, seconds: float) -> list[str]:
    deadline = time.monotonic() + seconds
    while (members := _members(session)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [_describe(member) for member in members]


def _describe(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return f"{process.pid} {' '.join(process.cmdline())[:80]}"
    return str(process.pid)


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    for member in _members(process.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


def _tail(log_file: Path, num_lines: int = 60) -> str:
    return "\n".join(log_file.read_text(errors="replace").splitlines()[-num_lines:])
