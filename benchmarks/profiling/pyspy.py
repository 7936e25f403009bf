"""Sampling of running servers with py-spy: stacks of all processes, no change to them.

py-spy (`bench` extra) reads the stacks of other processes, which Linux allows to root, or to
everybody where ``kernel.yama.ptrace_scope`` is 0.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.profiling.shares import LOOPS, Stack

_NAME = re.compile(r"Process (?P<process>\d+) .*?(?P<thread>\"[^\"]*\"|Thread \S+)?$")


class NoSampler(RuntimeError):
    """py-spy is missing or may not look at the server."""


def find() -> str:
    """The py-spy command.

    Raises:
        NoSampler: it is not installed.
    """
    beside = Path(sys.executable).parent / "py-spy"
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise NoSampler("the profile needs py-spy: pip install 'vllm-xyserve[bench]'")
    return found


def record(pid: int, seconds: int, rate: int, file: Path, during: Callable[[], object]) -> None:
    """Sample a process and its descendants while something runs, at least ``seconds`` long.

    Args:
        pid: the server's.
        seconds: of sampling.
        rate: samples per second.
        file: becomes a speedscope JSON file.
        during: keeps the server at work; runs beside the sampler.

    Raises:
        NoSampler: py-spy failed; with what it said.
    """
    command = [find(), "record", "--pid", str(pid), "--subprocesses", "--idle", "--nonblocking"]
    command += ["--threads", "--format", "speedscope", "--rate", str(rate)]
    command += ["--duration", str(seconds), "--output", str(file)]
    sampler = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        during()
        output = sampler.communicate(timeout=seconds + 60)[0].decode(errors="replace")
    except BaseException:
        sampler.kill()
        sampler.wait()
        raise
    if sampler.returncode != 0 or not file.exists():
        raise NoSampler(
            f"py-spy ended with {sampler.returncode}: {output[-600:]}\n"
            "It needs root, or `sysctl kernel.yama.ptrace_scope=0`"
        )


def stacks(profile: dict[str, Any]) -> Iterator[Stack]:
    """The stacks of a speedscope file."""
    frames = [(_function(frame), frame.get("file") or "") for frame in profile["shared"]["frames"]]
    for thread in profile["profiles"]:
        match = _NAME.match(thread["name"])
        process = int(match["process"]) if match else 0
        name = (match["thread"] or "") if match else thread["name"]
        scale = {"seconds": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6}[thread["unit"]]
        for sample, weight in zip(thread["samples"], thread["weights"], strict=True):
            yield Stack(process, name, tuple(frames[i] for i in sample), weight * scale)


def _function(frame: dict[str, Any]) -> str:
    """Its bare name: py-spy gives qualified ones where Python has them, from 3.11 on."""
    return str(frame["name"]).rpartition(".")[2]


def load(file: Path) -> dict[str, Any]:
    """A speedscope file."""
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def keep_working_threads(profile: dict[str, Any]) -> dict[str, Any]:
    """Without the threads that only ever waited, which are most: vLLM's processes have dozens."""
    frames = profile["shared"]["frames"]
    loops = {i for i, f in enumerate(frames) if _function(f) in LOOPS}
    kept = [
        thread
        for thread in profile["profiles"]
        if any(loops.intersection(sample) for sample in thread["samples"])
        or "MainThread" in thread["name"]
    ]
    return {**profile, "profiles": kept}
