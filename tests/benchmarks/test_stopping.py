"""A benchmark that is ended by a signal stops what it started."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARK = """
import subprocess, sys
from benchmarks.stopping import stopped_by_signals

with stopped_by_signals("try again"):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        print(child.pid, flush=True)
        child.wait()
    finally:
        child.kill()
        child.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_children_end_with_it(number: signal.Signals) -> None:
    command = [sys.executable, "-c", textwrap.dedent(BENCHMARK)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        child = int(running.stdout.readline())
        os.kill(child, 0)  # it lives
        running.send_signal(number)
        assert running.wait(30) == 130
        assert running.stderr.read() == f"stopped by {number.name}; try again\n"
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{child}").exists()
