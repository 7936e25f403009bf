"""The end of a benchmark by a signal: what it started is stopped on the way out."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import NoReturn

STOPPED = 130  # exit status, as a shell gives it for an interrupt


class StopRequest(BaseException):
    """A signal that asks the run to end."""


@contextlib.contextmanager
def stopped_by_signals(hint: str = "") -> Iterator[None]:
    """Have the signals that end a program unwind the block, so that no child is left behind.

    hint: what to do next, behind the message. Exits with status 130 where one came.
    """
    stops = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(number: int, frame: object) -> NoReturn:
        for again in stops:  # a second one must not break off the stopping of a child
            signal.signal(again, signal.SIG_IGN)
        raise StopRequest(signal.Signals(number).name)

    for number in stops:
        signal.signal(number, stop)
    try:
        yield
    except StopRequest as stopped:
        print(f"stopped by {stopped}{hint and '; '}{hint}", file=sys.stderr)
        sys.exit(STOPPED)
