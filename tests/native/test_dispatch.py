"""Loading, instruction sets and the registry: what is chosen, refused, and left alone."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from vllm_xyserve.ops import isa, native, registry
from vllm_xyserve.ops.activation import silu_and_mul

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("needs_native")


def run_python(code: str, **environment: str) -> str:
    """Standard output of a fresh interpreter, which sees the repository and `environment`.

    -P: the working directory must not be found before PYTHONPATH.
    """
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    result = subprocess.run(
        [sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


CALL = """
import torch
from vllm_xyserve.ops import native, registry
from vllm_xyserve.ops.activation import silu_and_mul
status, x, out = native.load(), torch.ones(2, 6), torch.zeros(2, 3)
"""
REPORT_CALL = (
    CALL
    + """
silu_and_mul(out, x)
print([name for name, calls in registry.calls().items() if calls], out[0, 0].item(), status)
"""
)
REPORT_ERROR = (
    CALL
    + """
for call in (silu_and_mul, getattr(torch.ops.xyserve, "silu_and_mul", silu_and_mul)):
    try:
        call(out, x)
        print("NO ERROR")
    except (ValueError, RuntimeError) as error:
        print(error)
print(status.loaded, status.misconfigured, status.reason)
"""
)


def test_status_is_one_object_from_all_threads() -> None:
    seen: list[native.NativeStatus] = []
    threads = [threading.Thread(target=lambda: seen.append(native.load())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert all(status is native.load() for status in seen)
    assert native.load().path == native.find_library()


def test_importing_native_does_not_import_torch() -> None:
    code = "import sys; from vllm_xyserve.ops import native, isa; print('torch' in sys.modules)"
    assert run_python(code) == "False"


def test_library_agrees_with_cpuinfo() -> None:
    info = isa.cpu_info()
    state = json.loads(torch.ops.xyserve.describe())
    assert native.load().available == info.isas == tuple(state["available"])
    assert state["amx_bf16"] == info.amx_bf16


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", ("scalar",)),
        ("avx2 fma", ("scalar",)),
        ("avx2 fma f16c", ("scalar", "avx2")),
        ("avx2 fma f16c avx512f avx512bw avx512dq", ("scalar", "avx2")),
        ("avx2 fma f16c avx512f avx512bw avx512dq avx512vl", ("scalar", "avx2", "avx512")),
        (
            "avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_bf16",
            ("scalar", "avx2", "avx512"),
        ),
        ("avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_bf16 avx512_vnni", isa.ISAS),
        ("avx512_bf16 avx512f avx512bw avx512dq avx512vl", ("scalar",)),
    ],
)
def test_isas_from_flags(flags: str, expected: tuple[str, ...]) -> None:
    assert isa.isas_from_flags(frozenset(flags.split())) == expected


@pytest.mark.parametrize("cap", native.load().available)
def test_choice_is_the_best_allowed(cap: str) -> None:
    """Pinned by name: the highest instruction set below the cap that has a kernel."""
    rank = {name: i for i, name in enumerate(isa.ISAS)}
    with registry.isa_cap(cap):
        for name, dtype in registry.DTYPES.items():
            lines = [
                k for k in registry.kernels("silu_and_mul") if k.dtype == name and k.isa in rank
            ]
            best = max((k for k in lines if rank[k.isa] <= rank[cap]), key=lambda k: rank[k.isa])
            assert registry.chosen("silu_and_mul", dtype).name == best.name
    best_bf16 = {"avx512_bf16": "avx512_bf16", "avx512": "avx512", "avx2": "avx2"}
    top = native.load().available[-1]
    assert registry.chosen("silu_and_mul", torch.bfloat16).isa == best_bf16.get(top, "scalar")


def test_cap_is_restored_and_refuses_nonsense() -> None:
    before = registry.chosen("silu_and_mul", torch.float32)
    with pytest.raises(KeyError), registry.isa_cap("scalar"):
        raise KeyError
    assert registry.chosen("silu_and_mul", torch.float32).name == before.name
    with pytest.raises(RuntimeError, match="instruction set that this CPU has, got 'sse9'"):
        torch.ops.xyserve.set_isa("sse9")


def test_supports_tells_the_truth() -> None:
    for dtype in registry.DTYPES.values():
        assert registry.supports("silu_and_mul", dtype=dtype) == registry.Support(True)
    refused = registry.supports("silu_and_mul", dtype=torch.float64)
    assert not refused.ok
    assert "not for torch.float64" in refused.reason
    assert (
        "got cuda" in registry.supports("silu_and_mul", dtype=torch.float32, device="cuda").reason
    )
    assert "no native kernel" in registry.supports("nonsense", dtype=torch.float32).reason
    with pytest.raises(ValueError, match="no kernel for op='nonsense'"):
        registry.chosen("nonsense", torch.float32)


@pytest.mark.parametrize("name", native.load().available[:2])  # each start costs seconds
def test_environment_caps_the_instruction_set(name: str) -> None:
    output = run_python(REPORT_CALL, XYSERVE_ISA=name)
    assert output.startswith(f"['silu_and_mul_f32_{name}'] 0.7310"), output
    assert f"isa='{name}'" in output


def test_unknown_instruction_set_is_an_error() -> None:
    output = run_python(REPORT_ERROR, XYSERVE_ISA="avx9")
    assert "NO ERROR" not in output
    assert output.count("XYSERVE_ISA=avx9 is not an instruction set; allowed: scalar, avx2,") == 3
    assert "False True XYSERVE_ISA" in output


def copy_package(target: Path) -> None:
    """The Python files of the package alone, as an installation without the library has them."""
    ignore = shutil.ignore_patterns("__pycache__", "_native")
    shutil.copytree(ROOT / "vllm_xyserve", target / "vllm_xyserve", ignore=ignore)


# Reads the copy instead of the installed package, and knows of no installation.
ISOLATE = """
import sys, importlib.metadata
sys.meta_path[:] = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
def absent(name, real=importlib.metadata.distribution):
    if name == "vllm-xyserve":
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)
importlib.metadata.distribution = absent
"""


def test_missing_library_runs_the_reference_and_says_why(tmp_path: Path) -> None:
    copy_package(tmp_path)
    output = run_python(ISOLATE + REPORT_CALL, PYTHONPATH=str(tmp_path))
    assert "silu_and_mul_f32_reference" in output.split("]")[0]
    assert "0.7310" in output
    assert "loaded=False" in output
    assert "this installation has no native library" in output
    assert "pip install --no-build-isolation" in output


def test_broken_library_runs_the_reference_and_says_why(tmp_path: Path) -> None:
    copy_package(tmp_path)
    broken = tmp_path / "vllm_xyserve" / native.LIBRARY
    broken.parent.mkdir()
    broken.write_bytes(b"no library")
    output = run_python(ISOLATE + REPORT_CALL, PYTHONPATH=str(tmp_path))
    assert "silu_and_mul_f32_reference" in output.split("]")[0]
    assert f"{broken} cannot be loaded" in output
    assert "needs torch >= 2.10" in output


def test_misconfigured_without_library_is_an_error_too(tmp_path: Path) -> None:
    copy_package(tmp_path)
    output = run_python(ISOLATE + REPORT_ERROR, PYTHONPATH=str(tmp_path), XYSERVE_ISA="avx9")
    assert "NO ERROR" not in output


def test_library_leaves_subnormals_alone() -> None:
    """A library linked with -ffast-math would set FTZ and DAZ in every thread that loads it."""
    code = """
import numpy as np, torch
from vllm_xyserve.ops import native
assert native.load().loaded
torch.ops.xyserve.silu_and_mul(torch.empty(200, 300), torch.ones(200, 600))
tiny = 2.0**-149
by_torch = (torch.full((100000,), tiny) * 1.0).min().item()
by_numpy = (np.full(9, tiny, np.float32) * np.float32(1)).min().item()
print(by_torch == tiny, by_numpy == tiny)
"""
    assert run_python(code) == "True True"


def test_counters_count_calls() -> None:
    x, out = torch.ones(2, 6), torch.empty(2, 3)
    name = registry.chosen("silu_and_mul", torch.float32).name
    before = registry.calls()
    for _ in range(5):
        silu_and_mul(out, x)
    after = registry.calls()
    changed = {key for key in after if after[key] != before[key]}
    assert changed == {name}
    assert after[name] == before[name] + 5
