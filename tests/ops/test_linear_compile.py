"""The linear operations under torch.compile: fakes, dynamic row counts, no graph break."""

import pytest
import torch

from vllm_xyserve.ops import linear as ops
from vllm_xyserve.ops import linear_int8, native

pytestmark = pytest.mark.skipif(
    not native.load().loaded, reason="no native library: tests/native fails and says why"
)


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.randn(64, 24).bfloat16()


def test_compiles_without_graph_break(weight: torch.Tensor) -> None:
    torch._dynamo.reset()
    packed = ops.linear_pack(weight)
    packed8, sums = linear_int8.linear_pack_int8(
        torch.ones(64, 24, dtype=torch.int8), torch.ones(1)
    )

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = ops.linear(x * 2, packed, None, 64)
        z = linear_int8.linear_int8(x, packed8, torch.ones(1), sums, None, None, None, 64)
        return (
            y,
            ops.linear_silu_mul(x, packed, None, 64),
            z,
            ops.linear_add(x, packed, None, 64, y),
        )

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for num_rows in (2, 5, 9):
        x = torch.randn(num_rows, 24).bfloat16()
        for got, want in zip(compiled(x), step(x), strict=True):
            assert torch.equal(got, want)


@pytest.mark.parametrize("shape", [(3, 24), (0, 24), (2, 3, 24), (24,)])
def test_opcheck(shape: tuple[int, ...], weight: torch.Tensor) -> None:
    x, packed = torch.randn(shape).bfloat16(), ops.linear_pack(weight)
    bias, out = torch.randn(64).bfloat16(), torch.randn(*shape[:-1], 64).bfloat16()
    xy = torch.ops.xyserve
    torch.library.opcheck(xy.linear.default, (x, packed, bias, 64))
    torch.library.opcheck(xy.linear_out.default, (out, x, packed, None, 64))
    torch.library.opcheck(xy.linear_silu_mul.default, (x, packed, None, 64))
    torch.library.opcheck(xy.linear_add.default, (x, packed, bias, 64, out))


def test_opcheck_packing_and_int8(weight: torch.Tensor) -> None:
    xy, x = torch.ops.xyserve, torch.randn(3, 24).bfloat16()
    weight8, scale = torch.ones(37, 23, dtype=torch.int8), torch.ones(37)
    packed, sums = xy.linear_pack_int8(weight8, scale)
    torch.library.opcheck(xy.linear_pack.default, (weight[:37, :23],))
    torch.library.opcheck(xy.linear_pack_int8.default, (weight8, scale))
    torch.library.opcheck(xy.quantize_rows.default, (x,))
    arguments = (x[:, :23], packed, scale, sums, None, None, None, 37)
    torch.library.opcheck(xy.linear_int8.default, arguments)
