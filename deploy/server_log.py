"""What the log of a starting vLLM server says: its phase, our start-up line, its errors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

# In the order in which they occur; wording of vLLM 0.32 and 0.33.
PHASES = (
    (r"non-default args|vLLM API server version|model_tag", "reading model and configuration"),
    (r"Resolved architecture|Using max model len", "checking the configuration"),
    (r"Initializing a V1 LLM engine", "starting the engine"),
    (r"OpenMP thread binding|world_size=", "starting the worker"),
    (r"Starting to load model|Loading safetensors", "loading weights"),
    (r"torch\.compile|[Dd]ynamo|Inductor compil|Compiling a graph", "compiling"),
    (r"[Ww]arming up", "warming up"),
    (r"KV cache size|for KV cache", "reserving the KV cache"),
    (r"init engine|Supported tasks", "starting the HTTP server"),
    (r"Starting vLLM|Application startup complete", "ready to answer"),
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_WARNING = re.compile(r"\bWARNING\b")
_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b(?: \(\w+\))?: .*|\berror: .*")
_STARTUP = re.compile(r"xyserve: family=.*")


def plain(line: str) -> str:
    """Return a log line without colours and without the line end."""
    return _COLOUR.sub("", line).rstrip()


def phase_of(line: str) -> int:
    """Return the index of the last of PHASES that a log line announces, or -1.

    Warnings announce nothing: with --enforce-eager one says that compilation and warm-up are off.
    """
    if _WARNING.search(line):
        return -1
    # The engine's configuration dump holds nearly every word; only its beginning counts.
    head = line[:160]
    return max((i for i, (pattern, _) in enumerate(PHASES) if re.search(pattern, head)), default=-1)


def startup_line(lines: Iterable[str]) -> str | None:
    """Return the plugin's summary line (`xyserve: family=...`), or None if there is none."""
    for line in lines:
        match = _STARTUP.search(plain(line))
        if match:
            return match[0]
    return None


def error_lines(lines: Iterable[str], limit: int = 3) -> list[str]:
    """Return the first distinct error messages: later ones only say that an earlier one came."""
    found: list[str] = []
    for line in lines:
        match = _ERROR.search(plain(line))
        if match and match[0] not in found:
            found.append(match[0])
    return found[:limit]


class Follower:
    """Reads what another process appends to a file, a whole line at a time."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("rb")
        self._rest = b""

    def lines(self) -> list[str]:
        """Return the lines that were completed since the last call."""
        *whole, self._rest = (self._rest + self._stream.read()).split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    def close(self) -> None:
        self._stream.close()
