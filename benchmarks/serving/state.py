"""What a run has measured so far, in a file that outlives it: a line of JSON per finished piece.

A run that was broken off goes on where it ended. It must have the settings of the first one, since
figures of two settings cannot be compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class OtherSettings(RuntimeError):
    """The file belongs to a run with other settings."""


class State:
    """Records of one run.

    Args:
        path: the file; made with its folder if it is missing.
        settings: all that the figures depend on, as JSON.

    Raises:
        OtherSettings: the file has other settings; says which.
    """

    def __init__(self, path: Path, settings: Record) -> None:
        self.path = path
        self._settings: Record = json.loads(json.dumps(settings))
        self._records = list(_read(path))
        if not self._records:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
            self.add("settings", self._settings)
        elif (found := self._records[0]["value"]) != self._settings:
            keys = sorted(
                key
                for key in found.keys() | self._settings.keys()
                if found.get(key) != self._settings.get(key)
            )
            raise OtherSettings(
                f"{path} holds an unfinished run with other settings ({', '.join(keys)}); "
                "give those to go on with it, or --fresh to throw it away"
            )

    @property
    def is_resumed(self) -> bool:
        """Whether there is more than the settings."""
        return len(self._records) > 1

    def add(self, kind: str, value: Any, **key: Any) -> None:
        """Append a record, on the disk when this returns."""
        record = {"kind": kind, "key": key, "value": value}
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record, allow_nan=False) + "\n")
        self._records.append(json.loads(json.dumps(record)))

    def get(self, kind: str, **key: Any) -> Any:
        """The value of a record, None if there is none; the last one counts."""
        for record in reversed(self._records):
            if record["kind"] == kind and record["key"] == key:
                return record["value"]
        return None

    def all(self, kind: str) -> list[tuple[Record, Any]]:
        """Keys and values of a kind, in the order in which they were added."""
        return [(r["key"], r["value"]) for r in self._records if r["kind"] == kind]


def _read(path: Path) -> Iterator[Record]:
    """Whole records; a run that was killed while it wrote leaves half a line, which is cut off."""
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8")
    whole, newline, rest = text.rpartition("\n")
    if rest:
        path.write_text(whole + newline, encoding="utf-8")
    for line in whole.splitlines():
        yield json.loads(line)
