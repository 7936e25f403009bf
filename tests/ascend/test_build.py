"""The Ascend project configures only where CANN is, and says so."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_without_cann_it_says_what_is_missing(tmp_path: Path) -> None:
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not installed")
    environment = {k: v for k, v in os.environ.items() if k != "ASCEND_HOME_PATH"}
    result = subprocess.run(
        [cmake, "-S", str(ROOT / "csrc" / "ascendc"), "-B", str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert result.returncode != 0
    assert "need CANN 8" in " ".join(result.stderr.split())


def test_the_normal_build_does_not_know_it() -> None:
    text = (ROOT / "csrc" / "CMakeLists.txt").read_text()
    assert "ascendc" not in text
