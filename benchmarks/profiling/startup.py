"""Where the time from ``vllm serve`` to the first answer goes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.serving.servers import Settings, Variant, running

# What the processes import before they do anything. The command itself only imports what it needs.
ENTRIES = {
    "front end": "vllm.entrypoints.openai.api_server",
    "worker": "vllm.v1.worker.cpu_worker",
}
_LINE = re.compile(r"import time:\s+(?P<own>\d+) \|\s+(?P<all>\d+) \|(?P<name>.*)")


def start(variant: Variant, settings: Settings, log: Path) -> dict[str, Any]:
    """One start: seconds to ready, CPU seconds by then, and when the log announced each phase."""
    with running(variant, settings, log) as server:
        return {
            "server": variant.name,
            "eager": settings.eager,
            "startup_s": server.startup_s,
            "cpu_s": server.cost().cpu_s,
            "phases": server.phases,
        }


def phase_lengths(phases: Mapping[str, float], startup_s: float) -> dict[str, float]:
    """How long each phase lasted, from when it was announced to when the next one was."""
    names = list(phases)
    begins = [0.0, *phases.values(), startup_s]
    return {
        name: round(end - begin, 2)
        for name, (begin, end) in zip(
            ["starting Python, importing vLLM", *names], pairwise(begins), strict=True
        )
    }


def import_times(module: str) -> dict[str, float]:
    """Seconds that importing a module takes in a fresh process, by top-level package.

    A package's own seconds, without those of what it imports. -X importtime itself adds a little.

    Raises:
        RuntimeError: the import failed.
    """
    answer = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", f"import {module}"],
        capture_output=True,
        text=True,
    )
    if answer.returncode != 0:
        raise RuntimeError(f"importing {module} failed:\n{answer.stderr[-2000:]}")
    return parse_import_times(answer.stderr.splitlines())


def parse_import_times(lines: Iterable[str]) -> dict[str, float]:
    """Seconds per top-level package, the largest first, from ``-X importtime``'s output."""
    found: dict[str, float] = {}
    for line in lines:
        if match := _LINE.match(line):
            package = match["name"].strip().partition(".")[0]
            found[package] = found.get(package, 0.0) + int(match["own"]) / 1e6
    return dict(sorted(found.items(), key=lambda item: -item[1]))
