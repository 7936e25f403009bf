"""Runs vLLM engines in a child process: a list of engines and steps in, their answers out.

A child because one process has one platform, and stock and xyserve have to be compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

Step = dict[str, Any]
"""``name``, ``do`` (a function of `tests.engine.steps`) and its arguments."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine start: arguments of ``vllm.LLM``, and what to do with it in order.

    ``asynchronous``: switch asynchronous scheduling on, for an engine in one process.
    """

    name: str
    llm: dict[str, Any]
    steps: list[Step]
    asynchronous: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """What a child brought back."""

    answers: dict[str, Any]
    log: str
    what: str

    def __getitem__(self, key: tuple[str, str]) -> Any:
        """The answer of (engine, step); an error there is an error here."""
        engine, step = key
        answer = self.answers[engine]
        self._raise_if_failed(answer, engine)
        for name, one in answer["steps"].items():
            self._raise_if_failed(one, f"{engine}/{name}")
            if name == step:
                return one["answer"]
        raise KeyError(key)

    def error(self, engine: str, step: str) -> str:
        """The error that a step was expected to end in; fails if it succeeded."""
        answer = self.answers[engine]
        self._raise_if_failed(answer, engine)
        error = answer["steps"][step].get("error")
        assert error, f"{self.what}: {engine}/{step} was expected to fail and did not"
        return str(error)

    def log_lines(self, containing: str, engine: str | None = None) -> list[str]:
        """Log lines that hold a text, of one engine or of the whole child."""
        log = self.log
        if engine is not None:
            log = log.split(f"\n{marker(engine, 'begin')}\n")[1]
            log = log.split(f"\n{marker(engine, 'end')}\n")[0]
        return [line for line in log.splitlines() if containing in line]

    def _raise_if_failed(self, answer: dict[str, Any], where: str) -> None:
        if "error" in answer:
            tail = "\n".join(self.log.splitlines()[-40:])
            raise AssertionError(f"{self.what}: {where}: {answer['error']}\nlog ends in:\n{tail}")


@dataclass(frozen=True, slots=True)
class Setting:
    """How a child runs.

    Attributes:
        options: below the key ``xyserve``; None runs stock vLLM.
        processes: engine core and worker in processes of their own, as users run them. Else all in
            one process, which starts an engine in a quarter of the time.
        env: more environment variables.
    """

    name: str
    options: dict[str, Any] | None
    processes: bool = False
    env: dict[str, str] = field(default_factory=dict)


def run(setting: Setting, engines: list[Engine], folder: Path, timeout: float = 600) -> Run:
    """Run the engines one after the other in one child; the log is kept in ``folder``.

    Raises:
        AssertionError: the child crashed or ran out of time (in seconds); with the log's end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    spec, answers, log = (folder / name for name in ("spec.json", "answers.json", "log.txt"))
    spec.write_text(json.dumps([_as_json(engine, setting) for engine in engines]))
    command = [sys.executable, "-m", "tests.engine.child", str(spec), str(answers)]
    with log.open("wb") as stream:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env=_environment(setting),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | str = child.wait(timeout)
        except subprocess.TimeoutExpired:
            code = f"none after {timeout} s"
            child.send_signal(signal.SIGUSR1)  # writes all stacks to the log
            time.sleep(1)
        finally:
            _end_session(child)
    text = log.read_text(errors="replace")
    if code != 0 or not answers.is_file():
        tail = "\n".join(text.splitlines()[-60:])
        raise AssertionError(f"{setting.name}: exit status {code}; {log} ends in:\n{tail}")
    return Run(json.loads(answers.read_text()), text, setting.name)


def marker(engine: str, place: str) -> str:
    """The log line at the begin or end of an engine's part."""
    return f"=== {engine}: {place} ==="


def _as_json(engine: Engine, setting: Setting) -> dict[str, Any]:
    llm = {"dtype": "float32", "enforce_eager": True, **engine.llm}
    if setting.options is not None:
        llm.setdefault("additional_config", {"xyserve": setting.options})
    if not setting.processes:
        llm["distributed_executor_backend"] = "uni"
    return {
        "name": engine.name,
        "llm": llm,
        "steps": engine.steps,
        "asynchronous": engine.asynchronous,
    }


def _environment(setting: Setting) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XYSERVE_", "VLLM_"))}
    env = {
        **kept,
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "auto",
        # Lets a function of ours look at the worker from inside, beside the plugin's own report.
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    }
    if not setting.processes:
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        env["OMP_NUM_THREADS"] = "1"  # tiny models: a second thread only waits for the first
    if setting.options is not None:
        env["XYSERVE_PLATFORM"] = "1"
    return {**env, **setting.env}


def _end_session(child: subprocess.Popen[bytes]) -> None:
    """End whatever the child left behind: engine core and worker are in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
