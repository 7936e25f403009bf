"""Progress lines, and child commands whose failures are explained."""

from __future__ import annotations

import contextlib
import fcntl
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_HEARTBEAT_S = 10.0
_TAIL_LINES = 15

# What pip and venv print, and what the user can do about it. First match wins: a full disk or a
# dead network also ends in "No matching distribution", so that one comes last.
_HINTS = (
    (
        r"No space left on device",
        "the disk is full: free some space (a fresh installation needs about 5 GB)",
    ),
    (
        r"NewConnectionError|NameResolutionError|Temporary failure in name resolution"
        r"|Network is unreachable|ConnectTimeout|ReadTimeoutError|ProxyError|SSLError",
        "a package index could not be reached: check the network, the proxy and `pip config list`",
    ),
    (
        r"No matching distribution found for (?P<what>\S+)",
        "no package index that pip is set up with offers {what} for this Python and platform",
    ),
    (
        r"externally-managed-environment",
        "this Python refuses packages from pip: use a virtual environment (VENV=path)",
    ),
)


class SetupError(Exception):
    """A failure that the user can mend; its text says what was needed, what came, what to do."""


def say(text: str) -> None:
    """Print one progress line at once, also where standard output is a pipe."""
    print(text, flush=True)


@contextlib.contextmanager
def alone(file: Path) -> Iterator[None]:
    """Hold a lock, so that two runs do not write the same environment or model together."""
    with file.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("      another set-up is at work here, waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def tail(path: Path, count: int = _TAIL_LINES) -> str:
    """Return the last count lines of a log file, indented."""
    lines = path.read_text(errors="replace").splitlines()[-count:]
    return "\n".join(f"    {line}" for line in lines)


def explain(output: str) -> str | None:
    """Return advice for a failed pip or venv command, from what it printed; None if unknown."""
    for pattern, advice in _HINTS:
        match = re.search(pattern, output)
        if match:
            return advice.format(**match.groupdict())
    return None


def run_logged(command: Sequence[str], log: Path, what: str) -> str:
    """Run command with its output in log, a line of progress every 10 s; return the output.

    Raises SetupError with advice and the end of the log if the command fails.
    """
    started = time.monotonic()
    next_beat = _HEARTBEAT_S
    with log.open("wb") as stream:
        stream.write((" ".join(command) + "\n").encode())
        stream.flush()
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT
        )
        try:
            while (code := _wait(child, 0.5)) is None:
                elapsed = time.monotonic() - started
                if elapsed >= next_beat:
                    next_beat += _HEARTBEAT_S
                    say(f"      {elapsed:4.0f} s  {_last_line(log)}")
        except BaseException:
            child.terminate()
            child.wait()
            raise
    output = log.read_text(errors="replace")
    if code != 0:
        advice = explain(output)
        raise SetupError(
            f"{what} failed (exit code {code})"
            + (f": {advice}" if advice else "")
            + f"\n  end of {log}:\n{tail(log)}"
        )
    return output


def _wait(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _last_line(log: Path, width: int = 84) -> str:
    """Return the last line worth showing: no warning, no progress bar."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 16384))
        text = stream.read().decode(errors="replace")
    lines = [line.strip() for line in text.splitlines()[1:]]
    shown = (ln for ln in reversed(lines) if ln and "WARNING" not in ln and "it/s" not in ln)
    return next(shown, "")[:width]
