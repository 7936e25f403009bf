"""The command as users run it; the slow ones import the real torch and vLLM."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_xyserve import __version__, cli, config

ROOT = Path(__file__).resolve().parents[2]
CODE = "import sys; from vllm_xyserve.cli import main; sys.exit(main(sys.argv[1:]))"
needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"
)


def _environment(**changes: str) -> dict[str, str]:
    dropped = ("XYSERVE_", "VLLM_", "LD_PRELOAD", "OMP_")
    kept = {name: v for name, v in os.environ.items() if not name.startswith(dropped)}
    return {**kept, **changes}


def _doctor(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    # The machine may be busy with other tests; how long it takes is not what is tested.
    command = [sys.executable, "-c", CODE, "doctor", "--timeout", "280", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=_environment(**environ)
    )


def _bare(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The doctor in an interpreter that finds the sources, `folder` and nothing else."""
    paths = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]; "
    command = [sys.executable, "-I", "-S", "-c", paths + CODE, "doctor", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=_environment(XYSERVE_ISA="")
    )


def _kinds(report: dict[str, Any]) -> list[str]:
    return [problem["kind"] for problem in report["problems"]]


def _package(folder: Path, name: str, code: str, entry_points: str = "") -> None:
    """A package with metadata, as pip leaves it."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"vllm-xyserve {__version__}\n"


def test_config_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config"]) == 0
    out = capsys.readouterr().out
    joined = " ".join(out.split())
    assert "--additional-config" in out
    column = next(line.index("meaning") for line in out.splitlines() if "meaning" in line)
    for name, allowed, default, text in config.describe():
        assert f"{name} {allowed} {default} {text.split()[0]}" in joined
        (line,) = (line for line in out.splitlines() if line.startswith(f"{name} "))
        assert line[column - 1 :].startswith(f" {text.split()[0]}")


@pytest.mark.parametrize(
    "arguments", [[], ["docter"], ["doctor", "--timeout", "0"], ["doctor", "--timeout", "soon"]]
)
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert "vllm-xyserve" in capsys.readouterr().err


def test_without_vllm_and_torch(tmp_path: Path) -> None:
    done = _bare(tmp_path)
    assert done.returncode == 1
    assert done.stderr == ""
    assert "1. vLLM is not installed" in done.stdout
    assert "2. torch is not installed" in done.stdout
    report = json.loads(_bare(tmp_path, "--json").stdout)
    assert _kinds(report) == ["vllm-missing", "torch-missing", "not-installed"]
    assert report["ok"] is False
    assert report["vllm"] is None
    assert report["children"] == {}
    assert report["machine"]["isas"][0] == "scalar"


def test_torch_that_crashes(tmp_path: Path) -> None:
    _package(tmp_path, "torch", "import ctypes; ctypes.string_at(0)")
    done = _bare(tmp_path, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert _kinds(report) == ["vllm-missing", "torch-import", "not-installed"]
    assert "SIGSEGV" in report["problems"][1]["what"]


def test_torch_that_hangs(tmp_path: Path) -> None:
    _package(tmp_path, "torch", "import time; time.sleep(600)")
    report = json.loads(_bare(tmp_path, "--json", "--timeout", "2").stdout)
    assert "torch-import" in _kinds(report)
    assert report["children"]["native"]["status"] == "timeout"


def test_vllm_that_does_not_import_and_a_companion_that_crashes(tmp_path: Path) -> None:
    _package(tmp_path, "torch", "print('hello'); __version__ = '1.0'; version = None")
    _package(tmp_path, "vllm", "raise ImportError('libcudart.so.13: no such file')")
    _package(tmp_path, "torchvision", "import os; os.abort()")
    report = json.loads(_bare(tmp_path, "--json").stdout)
    what = {problem["kind"]: problem["what"] for problem in report["problems"]}
    assert "libcudart.so.13" in what["vllm-import"]
    assert "SIGABRT" in what["companion"]


@needs_vllm
def test_this_installation() -> None:
    done = _doctor("--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["problems"]) == (0, [])
    assert report["ok"] is True
    assert report["would_be_active"] is True
    assert report["choice"]["chosen"] is False
    assert report["active_class"].startswith("vllm_xyserve.platform.")
    assert {child["status"] for child in report["children"].values()} == {"ok"}
    assert set(report["native_kernels"]["silu_and_mul"]) == {"f32", "bf16", "f16"}
    ours = [p for p in report["plugins"] if p["name"] == "xyserve"]
    assert [(p["allowed"], p["activates"]) for p in ours] == [(True, True), (True, None)]


@needs_vllm
def test_a_second_platform_and_how_vllm_plugins_keeps_it_out(tmp_path: Path) -> None:
    _package(
        tmp_path,
        "dummy_platform",
        "def register():\n    return 'vllm.platforms.cpu.CpuPlatform'\n",
        "[vllm.platform_plugins]\ndummy = dummy_platform:register\n",
    )
    done = _doctor(PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert "Only one platform plugin can be activated" in text
    assert "mend: uninstall dummy-platform, or set VLLM_PLUGINS=xyserve" in text
    mended = _doctor(PYTHONPATH=str(tmp_path), VLLM_PLUGINS="xyserve")
    assert mended.returncode == 0
    assert mended.stdout.splitlines()[-1] == "ok"
    assert "left out by VLLM_PLUGINS" in mended.stdout


@needs_vllm
def test_vllm_plugins_that_leaves_us_out() -> None:
    done = _doctor("--json", VLLM_PLUGINS="", XYSERVE_PLATFORM="1")
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert _kinds(report) == ["plugins-variable"]
    assert report["would_be_active"] is False
    assert report["choice"]["chosen"] is True
