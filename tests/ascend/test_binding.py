"""The torch_npu binding compiles against torch's headers, and its Meta functions give shapes.

torch_npu and CANN are stood in for by tests/ascend/stand_in. In a process of its own: the library
stays loaded, and with it the operators.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"

CALLS = """
import sys, torch
torch.ops.load_library(sys.argv[1])
ops = torch.ops._C_xyserve
meta = dict(device="meta")
x = torch.empty(2, 5, 64, dtype=torch.float16, **meta)
w = torch.empty(32, 64, dtype=torch.float16, **meta)
out = ops.smooth_gemm(x, w, None, 32)
assert (out.shape, out.dtype, out.device.type) == ((2, 5, 32), torch.float16, "meta")
scales = torch.empty(32, **meta)
out = ops.smooth_gemm_int8(x.char(), w.char(), scales, None, None, torch.bfloat16, 32)
assert (out.shape, out.dtype) == ((2, 5, 32), torch.bfloat16)
cache = torch.empty(4, 128, 2, 64, **meta)
slots = torch.empty(3, dtype=torch.int32, **meta)
assert ops.kv_write(cache[0, :3], cache[0, :3], cache, cache, slots) is None
assert ops.copy_blocks(cache, cache, torch.empty(1, 2, dtype=torch.int64, **meta)) is None
for name in ("smooth_gemm", "smooth_gemm_int8", "kv_write", "copy_blocks", "meta_attention"):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"_C_xyserve::{name}", "PrivateUse1")
print("all called")
"""


@pytest.mark.ascend_full
def test_binding_compiles_and_traces(tmp_path: Path) -> None:
    root = Path(torch.__file__).parent
    library = tmp_path / "libxyserve_ascend.so"
    sources = [CSRC / "ascendc" / "bind_ascend.cc", HERE / "stand_in" / "launch.cc"]
    sources += sorted((CSRC / "ascendc" / "host").glob("*.cc"))
    includes = [HERE / "stand_in", root / "include", CSRC, CSRC / "include"]
    command = ["g++", "-std=c++20", "-O0", "-shared", "-fPIC", "-o", str(library)]
    command += [f"-I{path}" for path in includes] + [str(source) for source in sources]
    command += [f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    called = subprocess.run(
        [sys.executable, "-c", CALLS, str(library)], capture_output=True, text=True, check=False
    )
    assert "all called" in called.stdout, called.stderr
