"""The operation under torch.compile: fakes, functionalisation, and no graph break."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.helpers.compare import assert_close
from vllm_xyserve.ops import registry
from vllm_xyserve.ops.activation import silu_and_mul
from vllm_xyserve.ops.reference import activation as reference

pytestmark = pytest.mark.usefixtures("needs_native")


def gated(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape[0], x.shape[1] // 2, dtype=x.dtype)
    silu_and_mul(out, x * 2)
    return out + 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles_without_graph_break(backend: str, rng: torch.Generator) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(gated, fullgraph=True, dynamic=True, backend=backend)
    name = registry.chosen("silu_and_mul", torch.float32).name
    for num_rows in (2, 5, 9):
        x = torch.randn(num_rows, 34, generator=rng)
        before = registry.calls()[name]
        result = compiled(x)
        assert registry.calls()[name] == before + 1
        assert_close(result, reference.silu_and_mul(x * 2) + 1, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", registry.DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(3, 14), (0, 14), (2, 3, 14), (14,)])
def test_opcheck(shape: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator) -> None:
    x = torch.randn(shape, generator=rng).to(dtype)
    out = torch.empty(*shape[:-1], 7, dtype=dtype)
    torch.library.opcheck(torch.ops.xyserve.silu_and_mul.default, (out, x))


def test_fake_keeps_shapes_and_refuses_wrong_ones() -> None:
    with FakeTensorMode():
        out, x = torch.empty(5, 7), torch.empty(5, 14)
        assert torch.ops.xyserve.silu_and_mul(out, x) is None
        assert out.shape == (5, 7)
        with pytest.raises(RuntimeError, match=r"got x \[5, 13\] and out \[5, 7\]"):
            torch.ops.xyserve.silu_and_mul(out, torch.empty(5, 13))
        with pytest.raises(RuntimeError, match="one dtype"):
            torch.ops.xyserve.silu_and_mul(out, x.half())
        with pytest.raises(RuntimeError, match=r"float16, got torch\.int32"):
            torch.ops.xyserve.silu_and_mul(out.int(), x.int())
