"""The scripts that make the Ascend test environment and build the Ascend C library."""

from __future__ import annotations

import importlib.util

import pytest

from deploy import ascend, build_ascend


@pytest.mark.parametrize(
    ("requirement", "needed"),
    [
        ("numpy", True),
        ("regex>=1", True),
        ("torch==2.11.0+cpu; platform_machine == 'x86_64'", False),
        ("Torchvision", False),
        ("scipy; extra == 'audio'", False),
        ('scipy; extra == "audio"', False),
        ("torch-geometric", True),
    ],
)
def test_what_is_installed_for_vllm(requirement: str, needed: bool) -> None:
    assert ascend._is_needed(requirement) is needed


def test_a_build_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    monkeypatch.setattr(build_ascend.shutil, "which", lambda name: None)
    real = importlib.util.find_spec
    monkeypatch.setattr(
        build_ascend.importlib.util,
        "find_spec",
        lambda name: None if name == "torch_npu" else real(name),
    )
    assert build_ascend.main() == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[2].split(" ")[0] for line in lines] == [
        "ASCEND_HOME_PATH",
        "cmake",
        "torch_npu",
    ]
    assert "source CANN's set_env.sh first" in lines[0]


def test_the_library_goes_where_the_plugin_looks() -> None:
    assert build_ascend.target().parts[-3:] == ("vllm_xyserve", "_native", build_ascend.LIBRARY)
