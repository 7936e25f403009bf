"""A server in a child process that is stopped together with all of its own children."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

_GRACE_S = 20.0
_PR_SET_PDEATHSIG = 1
# make's variables are for us; a library that reads PORT or MODEL must not see them.
_OURS = ("MODEL", "PORT", "ARGS", "PLATFORM", "ONCE", "VERBOSE", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")


class ServerProcess:
    """Starts a command with its output in a log file; leaving the context stops its whole group.

    The group is the server's own, so a Ctrl-C in the terminal reaches us alone and the server is
    told to stop once, by us.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        """environ: the server's whole environment (None: ours without make's variables)."""
        self.log = log
        self._command = command
        self._environ = environ

    @property
    def pid(self) -> int:
        """The server's process id, which is that of its session and its group too."""
        return self._child.pid

    def __enter__(self) -> ServerProcess:
        environment = self._environ
        if environment is None:
            environment = {name: text for name, text in os.environ.items() if name not in _OURS}
        with self.log.open("wb") as stream:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=_prepare_child,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def exit_code(self) -> int | None:
        """Return the server's exit code, or None while it runs."""
        return self._child.poll()

    def stop(self) -> None:
        """Ask the server to stop, insist after 20 s, and remove whatever is left of its group."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_GRACE_S)
        # vLLM's engine and workers are in the group; they may outlive a server that crashed.
        while _signal_group(self._child.pid, signal.SIGKILL):
            self._child.poll()
            time.sleep(0.05)
        self._child.wait()


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; return whether the group still has a member."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _prepare_child() -> None:
    """Let the server hear SIGINT, and have the kernel stop it if we get killed (Linux).

    A shell starts background jobs with SIGINT ignored, which children inherit: stopping would then
    take the whole grace time.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def terminal_to_ourselves() -> Iterator[None]:
    """Make the terminal send Ctrl-C to this process and not to the make that started it.

    make would end with "Interrupt" and an error code whatever we return. We become the terminal's
    foreground process group, as a shell does it for a job, and hand the terminal back at the end.
    """
    if "MAKELEVEL" not in os.environ or not sys.stdin.isatty():
        yield
        return
    terminal, ours = sys.stdin.fileno(), os.getpgrp()
    if os.tcgetpgrp(terminal) != ours:  # in the background
        yield
        return
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # else giving the terminal back stops us
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # Ctrl-Z would stop us and leave make waiting
    os.setpgid(0, 0)
    os.tcsetpgrp(terminal, os.getpgrp())
    try:
        yield
    finally:
        os.tcsetpgrp(terminal, ours)
