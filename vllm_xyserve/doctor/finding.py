"""One problem or warning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong and what to do about it.

    kind: a fixed word for the sort of finding, under which `docs/doctor.md` explains it.
    is_warning: it does not change the verdict.
    """

    kind: str
    what: str
    mend: str
    is_warning: bool = False
