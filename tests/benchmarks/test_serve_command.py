"""`benchmarks.serve` from its command line, on servers without a model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import serve
from benchmarks.harness import main
from benchmarks.serving.answers import WrongAnswer
from benchmarks.serving.servers import ServerFailed
from tests.helpers import models

FAKE = Path(__file__).with_name("fake_vllm.py")
ROOT = Path(__file__).parents[2]


class Command:
    """The benchmark with a stand-in for ``vllm``, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.out, self.pids = folder / "results", folder / "pids"
        self.pids.mkdir()
        self._vllm = folder / "vllm"
        self._vllm.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
        self._vllm.chmod(0o755)

    def arguments(self, more: Sequence[str]) -> list[str]:
        found = ["--quick", "--json", "--vllm", str(self._vllm), "--out", str(self.out)]
        return [*found, "--model", str(models.smollm2()), *more]

    def run_here(self, more: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
        """In this process, which has imported what takes long."""
        monkeypatch.setenv("FAKE_PIDS", str(self.pids))
        argv = self.arguments(more)
        main(serve.run, None, add_arguments=serve.add_arguments, argv=argv)

    def start(self, arguments: Sequence[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.serve", *self.arguments(arguments)],
            cwd=ROOT,
            env={**os.environ, "FAKE_PIDS": str(self.pids)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def living(self) -> list[int]:
        """Processes of servers that are still there."""
        found = []
        for file in self.pids.iterdir():
            if psutil.pid_exists(int(file.name)):
                process = psutil.Process(int(file.name))
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
        return found


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def result_file(command: Command, kind: str) -> Path:
    (found,) = command.out.glob(f"serve-quick-*.{kind}")
    return found


def test_interrupt_while_a_server_starts_leaves_none(command: Command) -> None:
    with command.start(["--workloads", "conversation"]) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if "answers of xyserve" in line:
                break
        deadline = time.monotonic() + 30
        while len(command.living()) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(command.living()) >= 2
        child.send_signal(signal.SIGINT)
        rest = child.stderr.read()
        assert child.wait(60) == 130, rest
    assert "stopped by SIGINT" in rest
    assert command.living() == []


def test_sigterm_leaves_no_server_and_the_next_run_goes_on(
    command: Command, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--workloads", "conversation", "multi-turn"]
    with command.start(arguments) as child:
        assert child.stderr is not None
        seen = []
        for line in child.stderr:
            seen.append(line)
            if "[1/6]" in line:  # the second cell of the first server is running
                break
        assert command.living(), "".join(seen)
        child.send_signal(signal.SIGTERM)
        rest = child.stderr.read()
        assert child.wait(60) == 130, "".join(seen) + rest
    assert command.living() == []
    assert not list(command.out.glob("serve-*"))

    command.run_here(arguments, monkeypatch)

    out, err = capfd.readouterr()
    assert "going on with" in err
    # Cells and answers that had been measured are not measured again.
    done = 1 if "[2/6]" not in rest else 2
    assert f"[{6 - done}/{6 - done}]" in err
    assert "answers of" not in err
    assert command.living() == []
    assert_complete(command, json.loads(out))


def test_a_quick_run_leaves_out_what_does_not_fit_and_says_so(
    command: Command, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--no-answers", "--workloads", "conversation", "mixed", "--minutes", "0.01"]
    command.run_here(arguments, monkeypatch)
    out, err = capfd.readouterr()
    assert "no time left for conversation closed-8" in err
    assert "[3/3]" in err
    whole = json.loads(result_file(command, "json").read_text())
    assert whole["plan"]["left_out"] == ["conversation closed-8"]
    assert {name: list(cells) for name, cells in whole["cells"].items()} == {
        name: ["mixed closed-8"] for name in ("stock", "xyserve", "stock-again")
    }
    assert "mixed_throughput_ratio" in json.loads(out)["summary"]
    assert "conversation_throughput_ratio" not in json.loads(out)["summary"]
    assert "conversation closed-8" in result_file(command, "html").read_text()


def assert_complete(command: Command, shown: dict[str, Any]) -> None:
    whole = json.loads(result_file(command, "json").read_text())
    assert whole["summary"] == shown["summary"]
    for name in ("conversation", "multi_turn"):
        for figure in ("throughput", "ttft_p50", "tbt_p50", "tbt_p99"):
            assert shown["summary"][f"{name}_{figure}_ratio"] > 0
    assert shown["summary"]["harness_error"] >= 0
    assert shown["summary"]["answers_equal"] == 1
    cells = whole["cells"]
    assert set(cells) == {"stock", "xyserve", "stock-again"}
    for cell in ("conversation closed-8", "multi-turn closed-8"):
        taken = [cells[name][cell][0] for name in cells]
        # The same requests on each server.
        for figure in ("num_requests", "prompt_tokens", "generated_tokens"):
            assert len({figures[figure] for figures in taken}) == 1
        assert all(0 < figures["hit_tokens"] < figures["prompt_tokens"] for figures in taken)
        assert all(figures["tbt_p50"] > 0 for figures in taken)
    page = result_file(command, "html").read_text()
    assert page.count("<svg") == 1
    assert "src=" not in page
    assert "<script" not in page
    assert not list(command.out.glob("unfinished-*"))


def test_a_wrong_answer_ends_the_run_before_anything_is_timed(
    command: Command, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_WRONG", "1")
    with pytest.raises(WrongAnswer, match="xyserve differs from stock"):
        command.run_here(["--workloads", "conversation"], monkeypatch)
    said = capfd.readouterr()
    assert said.out == ""
    assert "repeat 1" not in said.err
    assert command.living() == []


def test_a_server_that_does_not_start_ends_the_run(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command.pids = Path("/nonexistent")
    # The end of the server's log is shown.
    with pytest.raises(ServerFailed, match=r"(?s)stock: ended with 1.*FileNotFoundError"):
        command.run_here(["--workloads", "conversation"], monkeypatch)
