"""The parent's side of the engines: stock and ours, each in a child process that stays up."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_TICKS = os.sysconf("SC_CLK_TCK")


class EngineFailed(RuntimeError):
    """A child reported an error or died."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One engine.

    name: in messages. options: of the plugin, below its key; None runs stock vLLM. llm: arguments
    of ``vllm.LLM``. want_margins: also bring by how much each token was the best. threads: of
    torch. env: more environment variables. module: the child's.
    """

    name: str
    options: dict[str, Any] | None
    llm: dict[str, Any]
    want_margins: bool = False
    threads: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    module: str = "benchmarks.prefix_child"


class EngineProcess:
    """A child process with one engine (`benchmarks.prefix_child`)."""

    def __init__(self, setting: Setting) -> None:
        self.name = setting.name
        self._log = tempfile.NamedTemporaryFile("w+", prefix="prefix-", suffix=".log")  # noqa: SIM115
        read_fd, write_fd = os.pipe()
        self._child = subprocess.Popen(
            [sys.executable, "-m", setting.module, str(write_fd)],
            cwd=ROOT,
            env=_environment(setting),
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            pass_fds=[write_fd],
            start_new_session=True,
            text=True,
        )
        os.close(write_fd)
        self._answers = os.fdopen(read_fd)
        self.facts: dict[str, Any] = {}
        llm = {"distributed_executor_backend": "uni", "enforce_eager": True, **setting.llm}
        if setting.options is not None:
            llm["additional_config"] = {"xyserve": setting.options}
        try:
            self.facts = self.ask("start", llm=llm, want_margins=setting.want_margins)
        except BaseException:
            self.close()
            raise

    def ask(self, command: str, **arguments: Any) -> Any:
        """Have the child carry out a command.

        Raises:
            EngineFailed: with the child's traceback, or the end of its log if it died.
        """
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps({"do": command, **arguments}), file=self._child.stdin, flush=True)
        line = self._answers.readline()
        if not line:
            self._log.seek(0)
            tail = "\n".join(self._log.read().splitlines()[-40:])
            raise EngineFailed(
                f"engine {self.name!r} died in {command!r}; its log ends in:\n{tail}"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise EngineFailed(f"engine {self.name!r}, {command!r}:\n{answer['error']}")
        return answer["answer"]

    def cpu_s(self) -> float:
        """CPU time that the child has taken so far."""
        fields = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def close(self) -> None:
        """End the child."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._answers.close()
        self._log.close()

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _environment(setting: Setting) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XYSERVE_", "VLLM_"))}
    env = {
        **kept,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "auto",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    if setting.options is not None:
        env["XYSERVE_PLATFORM"] = "1"
    if setting.threads is not None:
        env["OMP_NUM_THREADS"] = str(setting.threads)
    return {**env, **setting.env}
