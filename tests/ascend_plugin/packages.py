"""Our own distribution as vLLM discovers it, without an installation."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.helpers.plugins import ROOT, make_distribution

CHOSEN = {"XYSERVE_PLATFORM": "1", "XYSERVE_DEVICE": "npu"}


def make_ours(folder: Path) -> str:
    """Metadata with the entry points of pyproject.toml; the code comes from the source tree."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return make_distribution(folder, "vllm-xyserve", project["entry-points"], {})
