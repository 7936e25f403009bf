"""Checks of environment variables: values, unknown names, preloads, threads."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path

from vllm_xyserve.compat.patches import ENV_KEEP_ASCEND
from vllm_xyserve.doctor.facts import Facts
from vllm_xyserve.doctor.finding import Finding
from vllm_xyserve.ops.isa import ISAS
from vllm_xyserve.platform import select

ENV_ISA = "XYSERVE_ISA"
# Those of the plugin, of its build (BUILD_NATIVE) and of the set-up (CACHE). A front end hands
# METRICS_DIR on to its engine cores.
KNOWN_VARIABLES = (
    select.ENV_PLATFORM,
    select.ENV_DEVICE,
    ENV_ISA,
    ENV_KEEP_ASCEND,
    "XYSERVE_BUILD_NATIVE",
    "XYSERVE_CACHE",
    "XYSERVE_METRICS_DIR",
    "XYSERVE_TUNED",
)


def values(facts: Facts) -> Iterator[Finding]:
    """Our own variables have values that mean something here."""
    if facts.choice.error:
        yield Finding(
            "platform-variable", facts.choice.error, f"set {select.ENV_PLATFORM}=1, or unset it"
        )
    device = facts.environ.get(select.ENV_DEVICE, "").strip().lower()
    if device and device not in select.FAMILIES:
        yield Finding(
            "device-variable",
            f"{select.ENV_DEVICE}={facts.environ[select.ENV_DEVICE]!r} is no device family",
            f"set it to one of {', '.join(select.FAMILIES)}, or unset it to let vLLM detect one",
        )
    isa, usable = facts.environ.get(ENV_ISA, ""), facts.machine.isas
    if isa and isa not in usable:
        fault = "is not available on this CPU" if isa in ISAS else "is no instruction set"
        yield Finding(
            "isa-variable",
            f"{ENV_ISA}={isa!r} {fault}, so native operations raise an error",
            f"set it to one of {', '.join(usable)}, or unset it for the best one",
        )
    keep = facts.environ.get(ENV_KEEP_ASCEND, "")
    if keep not in ("", "0", "1"):
        yield Finding(
            "keep-ascend-variable",
            f"{ENV_KEEP_ASCEND}={keep!r} has no effect: only 1 has",
            f"set {ENV_KEEP_ASCEND}=1, or unset it",
        )


def unknown_variables(facts: Facts) -> Iterator[Finding]:
    """Variables that look like ours and are not: most likely misspelt."""
    for name in facts.environ:
        if name.startswith("XYSERVE_") and name not in KNOWN_VARIABLES:
            near = difflib.get_close_matches(name, KNOWN_VARIABLES, n=1, cutoff=0.6)
            yield Finding(
                "unknown-variable",
                f"{name} is set, and nothing reads a variable of that name",
                (f"did you mean {near[0]}? Else unset it" if near else "unset it")
                + f" (known: {', '.join(KNOWN_VARIABLES)})",
            )


def preload(facts: Facts) -> Iterator[Finding]:
    """``LD_PRELOAD`` holds paths that the dynamic loader finds: it splits at spaces and colons."""
    for entry in facts.environ.get("LD_PRELOAD", "").split(":"):
        if re.search(r"\s", entry.strip()) and Path(entry.strip()).exists():
            yield Finding(
                "preload-with-space",
                f"LD_PRELOAD holds {entry.strip()!r}, which the dynamic loader splits at the space",
                "name the library by a path without spaces (a link will do)",
            )
            continue
        for path in entry.split():
            if "/" in path and not Path(path).exists():
                yield Finding(
                    "preload-missing",
                    f"LD_PRELOAD names {path}, which does not exist; the dynamic loader says so at "
                    f"every start and goes on",
                    "take it out of LD_PRELOAD",
                    is_warning=True,
                )


def threads(facts: Facts) -> Iterator[Finding]:
    """Threads go to cores that this process may use, and not to more than the quota feeds."""
    machine = facts.machine
    bind = facts.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto")
    if bind not in ("auto", "nobind"):
        yield from _bound_cores(bind, machine.cpuset)
    if machine.quota is not None and machine.quota < len(machine.cpuset) and bind == "auto":
        cores = machine.cpuset[: max(1, int(machine.quota))]
        yield Finding(
            "cpu-quota",
            f"the cgroup allows {machine.quota:g} cores' worth of time on {len(machine.cpuset)} "
            f"cores: threads on all of them are stopped and wait for each other",
            f"for the cpu family set VLLM_CPU_OMP_THREADS_BIND={format_cores(cores)}",
            is_warning=True,
        )


def _bound_cores(bind: str, cpuset: tuple[int, ...]) -> Iterator[Finding]:
    mend = f"use auto, nobind, or cores out of {format_cores(cpuset)}, with | between workers"
    try:
        cores = parse_cores(bind)
    except ValueError:
        yield Finding(
            "threads-variable", f"VLLM_CPU_OMP_THREADS_BIND={bind!r} is no list of cores", mend
        )
        return
    outside = sorted(cores - set(cpuset))
    if outside:
        yield Finding(
            "threads-variable",
            f"VLLM_CPU_OMP_THREADS_BIND={bind!r} names cores that this process may not use: "
            f"{format_cores(outside)}",
            mend,
        )


def parse_cores(text: str) -> set[int]:
    """The cores in a list such as ``0-3,5|8-11``.

    Raises:
        ValueError: it is no such list.
    """
    cores: set[int] = set()
    for item in re.split(r"[,|]", text):
        first, dash, last = item.partition("-")
        begin = int(first)
        cores.update(range(begin, (int(last) if dash else begin) + 1))
    return cores


def format_cores(cores: tuple[int, ...] | list[int]) -> str:
    """Ascending cores as a list such as ``0-3,5``."""
    parts: list[list[int]] = []
    for core in cores:
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
