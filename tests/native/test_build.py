"""Building wheels: with the library, without it by wish, and without it by need."""

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = "vllm_xyserve/_native/libxyserve_cpu.so"
# What a build needs. The README belongs to the metadata as soon as pyproject.toml names it.
PARTS = ("pyproject.toml", "LICENSE", "README.md", "csrc", "vllm_xyserve")


@dataclass(frozen=True)
class Build:
    returncode: int
    log: str
    wheel: str  # file name, empty if there is none
    files: tuple[str, ...]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the sources, on a path with a space."""
    target = tmp_path / "a source tree"
    target.mkdir()
    for part in (ROOT / name for name in PARTS):
        if part.is_dir():
            # Libraries that lie in a working tree are no sources.
            unwanted = shutil.ignore_patterns("__pycache__", "_native")
            shutil.copytree(part, target / part.name, ignore=unwanted)
        elif part.exists():
            shutil.copy(part, target)
    return target


def build(source: Path, **environment: str) -> Build:
    target = source.parent / "wheels"
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-v"]
    result = subprocess.run(
        [*command, "--no-index", "-w", str(target), str(source)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    wheels = list(target.glob("*.whl"))
    assert len(wheels) <= 1
    files = tuple(zipfile.ZipFile(wheels[0]).namelist()) if wheels else ()
    return Build(result.returncode, result.stdout, wheels[0].name if wheels else "", files)


def test_native_wheel_from_a_path_with_a_space(source: Path) -> None:
    # Not optimised: the setup has built the library as it is shipped, which takes three times as
    # long.
    built = build(
        source,
        XYSERVE_BUILD_NATIVE="1",
        CMAKE_ARGS="-DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0",
    )
    assert built.returncode == 0, built.log
    assert "-py3-none-linux_" in built.wheel
    assert LIBRARY in built.files
    assert "vllm_xyserve/_native/libxyserve_plan.so" in built.files
    assert "vllm_xyserve/ops/native.py" in built.files
    assert not [name for name in built.files if name.startswith(("csrc", "tests"))]
    assert_library_loads(source.parent / "wheels" / built.wheel, source.parent / "a site")


# The editable installation of this repository must not answer instead of the wheel.
LOAD = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
import torch
from vllm_xyserve.ops import native, registry
from vllm_xyserve.ops.activation import silu_and_mul
silu_and_mul(torch.empty(2, 3), torch.ones(2, 6))
print(native.load().path, registry.chosen("silu_and_mul", torch.float32).calls)
"""


def assert_library_loads(wheel: Path, site: Path) -> None:
    """Unpack the wheel as an ordinary installation and call the library in it."""
    zipfile.ZipFile(wheel).extractall(site)
    result = subprocess.run(
        [sys.executable, "-P", "-c", LOAD],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == f"{site / LIBRARY} 1"


def test_opting_out_builds_a_pure_wheel(source: Path) -> None:
    built = build(source, XYSERVE_BUILD_NATIVE="0")
    assert built.returncode == 0, built.log
    assert built.wheel.endswith("-py3-none-any.whl")
    assert LIBRARY not in built.files
    assert "XYSERVE_BUILD_NATIVE=0: installing without the native library" in built.log


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"CXX": "/bin/false"}, "CMake or the C++ compiler failed; its output stands above"),
        ({"CXX": "/nonexistent/g++"}, "CMake or the C++ compiler failed"),
    ],
)
def test_no_compiler_builds_a_pure_wheel_with_a_message(
    source: Path, environment: dict[str, str], reason: str
) -> None:
    built = build(source, **environment)
    assert built.returncode == 0, built.log
    assert built.wheel.endswith("-py3-none-any.whl")
    assert LIBRARY not in built.files
    assert f"the native library was not built: {reason}" in built.log
    assert "every operation runs on its torch reference path" in built.log


def hide(package: str, directory: Path) -> str:
    """A PYTHONPATH entry that makes `package` impossible to find, whatever is installed."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(
        "import importlib.util, sys\n"
        "real = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda n, p=None: None if n == {package!r} else real(n, p)\n"
        f"sys.modules[{package!r}] = None\n"
        "import sysconfig\n"
        f"if {package!r} == 'torch':\n"
        "    sysconfig.get_path = lambda *a, **k: '/nonexistent'\n"
    )
    return str(directory)


def test_no_torch_builds_a_pure_wheel_with_a_message(source: Path, tmp_path: Path) -> None:
    built = build(source, PYTHONPATH=hide("torch", tmp_path / "hide"))
    assert built.returncode == 0, built.log
    assert built.wheel.endswith("-py3-none-any.whl")
    assert "torch >= 2.10 with include/torch/csrc/stable/library.h was not found" in built.log


def test_no_cmake_builds_a_pure_wheel_with_a_message(source: Path, tmp_path: Path) -> None:
    """Neither CMake's Python package nor a program of that name on PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("g++", "c++", "ld", "as", "uname"):
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    built = build(source, PYTHONPATH=hide("cmake", tmp_path / "hide"), PATH=str(programs))
    assert built.returncode == 0, built.log
    assert built.wheel.endswith("-py3-none-any.whl")
    assert "the native library was not built: " in built.log
    assert "cmake" in built.log.lower()


def test_required_library_fails_the_installation(source: Path) -> None:
    built = build(source, XYSERVE_BUILD_NATIVE="1", CXX="/bin/false")
    assert built.returncode != 0
    assert not built.wheel


def test_unknown_mode_is_an_error(source: Path) -> None:
    built = build(source, XYSERVE_BUILD_NATIVE="perhaps")
    assert built.returncode != 0
    assert "XYSERVE_BUILD_NATIVE='perhaps' is unknown; allowed: 0, 1, auto" in built.log
