"""Children that end in every possible way; each is a module that this test writes."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from vllm_xyserve.doctor import children
from vllm_xyserve.doctor.facts import Child

PREFIX = """
import os, sys, json, time
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
def say(**record):
    out.write(json.dumps(record) + "\\n"); out.flush()
def main(name):
    say(step="begin")
    say(data={"name": name})
"""


def _run(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, timeout: float = 30.0) -> Child:
    (folder / "made_up_probe.py").write_text(PREFIX + f"    {body}\n")
    monkeypatch.syspath_prepend(str(folder))
    found = children.run(["one"], timeout=timeout, module="made_up_probe")
    assert list(found) == ["one"]
    return found["one"]


def test_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = _run(tmp_path, monkeypatch, "print('noise'); os._exit(0)")
    assert (child.status, child.error, child.step) == ("ok", "", "begin")
    assert child.data == {"name": "one"}
    assert child.name == "one"


def test_segfault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = _run(tmp_path, monkeypatch, "import ctypes; ctypes.string_at(0)")
    assert child.status == "crashed"
    assert child.error == "killed by SIGSEGV in the step 'begin'"
    assert child.data == {"name": "one"}


def test_hang_is_ended_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    child = _run(tmp_path, monkeypatch, body, timeout=3.0)
    assert child.status == "timeout"
    assert child.error == "no answer within 3 s in the step 'begin'"
    assert child.data == {"name": "one"}
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


def test_an_exception_that_the_child_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = _run(tmp_path, monkeypatch, "say(data={'error': 'E: x'}); os._exit(1)")
    assert (child.status, child.error) == ("failed", "E: x")


def test_exit_from_native_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = _run(tmp_path, monkeypatch, "print('last words', flush=True); os._exit(7)")
    assert child.status == "crashed"
    assert child.error == "ended with status 7 in the step 'begin': last words"
    assert child.log == "last words"


def test_a_report_that_breaks_off_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = _run(tmp_path, monkeypatch, "out.write('{\"data\": {'); out.flush(); os.abort()")
    assert child.status == "crashed"
    assert "SIGABRT" in child.error
    assert child.data == {"name": "one"}


def test_a_grandchild_that_holds_the_output_open_does_not_delay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = (
        "import subprocess; p = subprocess.Popen(['sleep', '60']); "
        "say(data={'pid': p.pid}); os._exit(0)"
    )
    started = time.monotonic()
    child = _run(tmp_path, monkeypatch, body, timeout=50.0)
    assert child.status == "ok"
    assert time.monotonic() - started < 45.0  # the grandchild sleeps for 60
    os.kill(child.data["pid"], signal.SIGKILL)  # raises if it had not been there


def test_all_run_even_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_up_probe.py").write_text(PREFIX + "    os._exit(int(name))\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = children.run(["0", "3", "1"], timeout=30.0, width=1, module="made_up_probe")
    assert {name: child.status for name, child in found.items()} == {
        "0": "ok",
        "1": "crashed",
        "3": "crashed",
    }


def test_a_child_has_our_import_path_and_the_given_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "say(data={'path': sys.path, 'argv': sys.argv, 'x': os.environ.get('X_Y')}); os._exit(0)"
    (tmp_path / "made_up_probe.py").write_text(PREFIX + f"    {body}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = children.run(["one"], timeout=30.0, module="made_up_probe", environ={"X_Y": "given"})
    assert found["one"].data["path"] == json.loads(json.dumps(sys.path))
    assert found["one"].data["argv"] == ["vllm-xyserve"]
    assert found["one"].data["x"] == "given"
