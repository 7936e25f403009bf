"""The kernel sources alone: C++17, no torch, and no instruction set beyond the baseline.

Compiled as on a machine that is not x86: proves that the bodies need no torch header, that the
scalar path stands alone, and what happens where XYSERVE_ISA asks for more than the CPU has.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
CPU = ROOT / "csrc" / "cpu"
SOURCES = [CPU / "isa.cc", CPU / "registry.cc", *sorted(CPU.glob("*_scalar.cc"))]
NUM_SCALAR = (CPU / "kernels.inc").read_text(encoding="utf-8").count(", scalar, ")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not COMPILER:
        pytest.skip("no C++ compiler; set CXX")
    path = tmp_path_factory.mktemp("scalar") / "scalar_only"
    command = [COMPILER, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined"]
    command += [f"-I{ROOT / 'csrc' / name}" for name in ("include", "cpu")]
    command += [str(Path(__file__).with_name("scalar_only.cc"))]
    command += [str(source) for source in SOURCES]
    subprocess.run([*command, "-o", str(path)], check=True, capture_output=True, text=True)
    return path


def run(program: Path, wanted: str) -> tuple[int, str]:
    env = {**os.environ, "XYSERVE_ISA": wanted}
    result = subprocess.run([program], env=env, capture_output=True, text=True, timeout=60)
    assert not result.stderr, result.stderr
    return result.returncode, result.stdout.strip()


@pytest.mark.parametrize("wanted", ["", "scalar"])
def test_scalar_stands_alone(program: Path, wanted: str) -> None:
    code, text = run(program, wanted)
    assert code == 0
    # silu(1) * 3, silu(-2) * 5, silu(100) * 7
    assert NUM_SCALAR >= 3
    assert text == f"{NUM_SCALAR} silu_and_mul_f32_scalar 1 2.193176 -1.192029 700.000000"


@pytest.mark.parametrize("wanted", ["avx2", "avx512", "avx512_bf16"])
def test_instruction_set_that_the_cpu_lacks_is_an_error(program: Path, wanted: str) -> None:
    code, text = run(program, wanted)
    assert code == 3
    assert text == (
        f"XYSERVE_ISA={wanted} is not available on this CPU; allowed here: scalar, "
        "or unset for the best one"
    )


def test_unknown_instruction_set_is_an_error(program: Path) -> None:
    code, text = run(program, "AVX2")
    assert code == 3
    assert text.startswith("XYSERVE_ISA=AVX2 is not an instruction set; allowed here: scalar")
