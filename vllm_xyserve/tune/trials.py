"""Runs jobs in child processes: a crash or a hang costs the task that it happened in."""

from __future__ import annotations

import dataclasses
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import IO, Any

from vllm_xyserve.plan.tuning import Tiling
from vllm_xyserve.tune.search import Task


def job_json(dtype: str, tasks: list[Task], tilings: list[Tiling] | None) -> str:
    """A `child.Job`, written without importing torch here."""
    rows = None if tilings is None else [dataclasses.asdict(tiling) for tiling in tilings]
    tasks_json = [dataclasses.asdict(task) for task in tasks]
    return json.dumps({"dtype": dtype, "tasks": tasks_json, "tilings": rows})


def answers(
    dtype: str,
    tasks: list[Task],
    tilings: list[Tiling] | None,
    timeout: float,
    command: tuple[str, ...] = (sys.executable, "-m", "vllm_xyserve.tune.child"),
) -> Iterator[dict[str, Any]]:
    """The child's answer to each task in turn, or ``{"error": why there is none}``.

    A child that ends early, or says nothing for ``timeout`` seconds, is ended; another one goes on
    with the task behind.
    """
    done = 0
    while done < len(tasks):
        left = None if tilings is None else tilings[done:]
        job = job_json(dtype, tasks[done:], left)
        for answer in _one_child([*command, job], len(tasks) - done, timeout):
            yield answer
            done += 1


def _one_child(command: list[str], count: int, timeout: float) -> Iterator[dict[str, Any]]:
    """Answers of one child; the last one is an error if there are fewer than ``count``."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines: queue.Queue[str | None] = queue.Queue()
        errors: list[str] = []
        readers = [
            threading.Thread(target=_forward, args=(process.stdout, lines), daemon=True),
            threading.Thread(target=_keep, args=(process.stderr, errors), daemon=True),
        ]
        for reader in readers:
            reader.start()
        try:
            for _ in range(count):
                try:
                    line = lines.get(timeout=timeout)
                except queue.Empty:
                    yield {"error": f"no answer within {timeout:g} s"}
                    return
                if line is None:
                    readers[1].join(timeout=5)
                    yield {"error": _ending(process, errors)}
                    return
                yield json.loads(line)
        finally:
            process.kill()


def _forward(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _keep(stream: IO[str], lines: list[str]) -> None:
    for line in stream:
        lines.append(line.strip())


def _ending(process: subprocess.Popen[str], errors: list[str]) -> str:
    said = next((line for line in reversed(errors) if line), "it said nothing")
    return f"the process ended with status {process.wait()}: {said}"
