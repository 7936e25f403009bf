"""What is worth a log line but comes up before vLLM has set up its logging.

vLLM resolves the platform and loads the general plugins first; an INFO line of that time reaches
nobody. The platform logs the notes when it is given the configuration.
"""

from __future__ import annotations

_notes: list[str] = []


def add(note: str) -> None:
    """Keep a note for the log; a repeated one once."""
    if note not in _notes:
        _notes.append(note)


def take() -> list[str]:
    """The notes so far, which are forgotten."""
    taken = _notes.copy()
    _notes.clear()
    return taken
