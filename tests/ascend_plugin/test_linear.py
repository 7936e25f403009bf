"""Our methods in vllm-ascend's linear layers, compared with its own."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.ascend_plugin import world
from vllm_xyserve.compat import ascend_patches
from vllm_xyserve.ops import ascend as ops
from vllm_xyserve.ops.ascend import FRACTAL_NZ

pytestmark = pytest.mark.usefixtures("npu")


@pytest.fixture(scope="module")
def config() -> Iterator[Any]:
    with world.using(world.make_config(world.NATIVE)) as found:
        yield found


@pytest.fixture
def installed(config: Any) -> Iterator[Any]:
    """Our methods, taken out again afterwards."""
    from vllm_xyserve.linear import ascend

    ascend.install(config)
    yield ascend
    ascend_patches.wrap_unquantized(lambda layer: False, ops.linear)
    ascend_patches.replace_schemes({})
    ascend_patches.wrap_experts(None)


class Layer(torch.nn.Module):
    """What a method sees of a linear layer."""

    def __init__(
        self, weight: torch.Tensor, prefix: str = "model.layers.0.mlp.gate_up_proj"
    ) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.prefix = prefix
        self.params_dtype = torch.bfloat16


def unquantised() -> Any:
    from vllm_ascend.ops.linear import AscendUnquantizedLinearMethod

    return AscendUnquantizedLinearMethod()


def multiplied(layer: Layer, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    method = unquantised()
    method.process_weights_after_loading(layer)
    found: torch.Tensor = method.apply(layer, x, bias)
    return found


@pytest.mark.parametrize("rows", [0, 1, 5, 129])
@pytest.mark.parametrize(("n", "k"), [(384, 256), (50, 40)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_unquantised(installed: Any, rows: int, n: int, k: int, with_bias: bool) -> None:
    from torch_npu import _kernels

    weight, x = torch.randn(n, k).bfloat16(), torch.randn(rows, k).bfloat16()
    bias = torch.randn(n).bfloat16() if with_bias else None
    layer, before = Layer(weight.clone()), ops.calls["linear"]
    found = multiplied(layer, x, bias)
    assert ops.calls["linear"] == before + 1
    assert _kernels.get_npu_format(layer.weight) == (FRACTAL_NZ if n == 384 else 2)
    expected = torch.nn.functional.linear(x.float(), weight.float())
    world.close(found, expected if bias is None else expected + bias.float(), 6e-2)


def test_three_dimensions(installed: Any) -> None:
    weight, x = torch.randn(32, 64).half(), torch.randn(2, 3, 64).half()
    found = multiplied(Layer(weight.clone()), x)
    assert found.shape == (2, 3, 32)
    world.close(found, x.float() @ weight.float().T, 6e-2)


@pytest.mark.parametrize(
    ("weight", "prefix"),
    [
        (torch.randn(8, 64).bfloat16(), "gate"),  # fewer columns than a fractal
        (torch.randn(32, 64), "gate"),
        (torch.randn(4, 32, 8).bfloat16(), "experts"),
        (torch.randn(32, 64).bfloat16(), "model.layers.0.self_attn.kv_b_proj"),
        (torch.randn(32, 64).bfloat16(), "model.layers.0.linear_attn.conv1d"),
    ],
)
def test_layers_that_stay(installed: Any, weight: torch.Tensor, prefix: str) -> None:
    layer = Layer(weight, prefix)
    unquantised().process_weights_after_loading(layer)
    assert layer.xy_is_ours is False
    assert installed.linear_name(layer) is None


def test_patches_are_idempotent_and_come_off(config: Any, installed: Any) -> None:
    from vllm_ascend.ops.linear import AscendUnquantizedLinearMethod
    from vllm_ascend.quantization.methods.registry import get_scheme_class
    from vllm_ascend.quantization.methods.w8a8_static import AscendW8A8LinearMethod

    first = AscendUnquantizedLinearMethod.apply
    installed.install(config)
    assert (
        vars(AscendUnquantizedLinearMethod.apply)["_xyserve_upstream"]
        is vars(first)["_xyserve_upstream"]
    )
    ours = get_scheme_class("W8A8", "linear")
    assert ours is not AscendW8A8LinearMethod
    assert issubclass(ours, AscendW8A8LinearMethod)
    off = world.make_config({"linear": "upstream"})
    with world.using(off):
        installed.install(off)
    assert get_scheme_class("W8A8", "linear") is AscendW8A8LinearMethod
    layer = Layer(torch.randn(32, 64).bfloat16())
    before = ops.calls["linear"]
    multiplied(layer, torch.randn(3, 64).bfloat16())
    assert ops.calls["linear"] == before


def scheme(key: str) -> Any:
    from vllm_ascend.quantization.methods.registry import get_scheme_class

    found = get_scheme_class(key, "linear")
    assert found is not None
    return found()


def dynamic_layer(n: int, k: int, dtype: torch.dtype) -> Layer:
    layer = Layer(torch.randint(-127, 128, (n, k), dtype=torch.int8))
    layer.weight_scale = torch.nn.Parameter((torch.rand(n, 1) * 0.01).to(dtype), False)
    layer.weight_offset = torch.nn.Parameter(torch.zeros(n, 1, dtype=dtype), False)
    return layer


def both(key: str, make: Any, apply: Any) -> tuple[torch.Tensor, torch.Tensor, Layer]:
    """What ours and vllm-ascend's scheme give for the same layer."""
    torch.manual_seed(3)
    ours_layer = make()
    torch.manual_seed(3)
    their_layer = make()
    ours = scheme(key)
    ours.process_weights_after_loading(ours_layer)
    theirs = ascend_patches.upstream_scheme(key, "linear")()
    theirs.process_weights_after_loading(their_layer)
    return apply(ours, ours_layer), apply(theirs, their_layer), ours_layer


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_bias", [False, True])
def test_w8a8_dynamic(installed: Any, dtype: torch.dtype, with_bias: bool) -> None:
    from torch_npu import _kernels

    x = torch.randn(7, 96).to(dtype)
    bias = torch.randn(48).to(dtype) if with_bias else None
    before = ops.calls["linear_int8"], _kernels.calls["npu_dynamic_quant"]
    found, expected, layer = both(
        "W8A8_DYNAMIC", lambda: dynamic_layer(48, 96, dtype), lambda s, lay: s.apply(lay, x, bias)
    )
    assert ops.calls["linear_int8"] == before[0] + 1
    assert _kernels.calls["npu_dynamic_quant"] == before[1] + 2  # its own op, in both
    assert _kernels.get_npu_format(layer.weight) == FRACTAL_NZ
    assert layer.weight.shape == (48, 96)
    world.close(found, expected, 1e-2)


def static_layer(n: int, k: int, dtype: torch.dtype, method: str = "") -> Layer:
    layer = Layer(torch.randint(-127, 128, (n, k), dtype=torch.int8))
    layer.params_dtype = dtype
    scale = torch.rand(n) * 1e-3
    encoded = scale if dtype == torch.bfloat16 else scale.view(torch.int32).to(torch.int64)
    values = {
        "input_scale": torch.tensor([0.03]).to(dtype),
        "input_offset": torch.tensor([4], dtype=torch.int8),
        "quant_bias": torch.randint(-5000, 5000, (n,), dtype=torch.int32),
        "deq_scale": encoded,
        "weight_scale": (torch.rand(n, 1) * 0.01).to(dtype),
        "weight_offset": torch.zeros(n, 1, dtype=dtype),
    }
    for name, value in values.items():
        setattr(layer, name, torch.nn.Parameter(value, False))
    layer.ascend_quant_method = method
    return layer


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tp_rank", [0, 1])
@pytest.mark.parametrize("quantised", [False, True])
def test_w8a8_static(
    installed: Any, dtype: torch.dtype, tp_rank: int, quantised: bool, monkeypatch: Any
) -> None:
    prefetch = SimpleNamespace(
        maybe_prefetch_attn_weight_preprocess=lambda **_: None,
        maybe_prefetch_attn_weight_postprocess=lambda **_: None,
    )
    import vllm_ascend.quantization.methods.w8a8_static as upstream

    monkeypatch.setattr(upstream, "get_weight_prefetch_method", lambda: prefetch)
    x = torch.randn(7, 96).to(dtype)
    if quantised:  # by a fused operation in front of the layer
        x = torch.randint(-127, 128, (7, 96), dtype=torch.int8)
    before = ops.calls["linear_int8"]
    found, expected, _ = both(
        "W8A8",
        lambda: static_layer(48, 96, dtype),
        lambda s, lay: s.apply(lay, x, None, tp_rank),
    )
    assert ops.calls["linear_int8"] == before + 1
    assert found.dtype == dtype
    world.close(found, expected, 1e-2)


def test_w8a8_static_of_compressed_tensors(installed: Any, monkeypatch: Any) -> None:
    import vllm_ascend.quantization.methods.w8a8_static as upstream
    from vllm_ascend.utils import COMPRESSED_TENSORS_METHOD

    prefetch = SimpleNamespace(
        maybe_prefetch_attn_weight_preprocess=lambda **_: None,
        maybe_prefetch_attn_weight_postprocess=lambda **_: None,
    )
    monkeypatch.setattr(upstream, "get_weight_prefetch_method", lambda: prefetch)
    x, bias = torch.randn(7, 96).bfloat16(), torch.randn(48).bfloat16()
    found, expected, _ = both(
        "W8A8",
        lambda: static_layer(48, 96, torch.bfloat16, COMPRESSED_TENSORS_METHOD),
        lambda s, lay: s.apply(lay, x, bias),
    )
    world.close(found, expected, 2e-2)


@pytest.mark.parametrize("list_type", [0, 1])
def test_grouped_experts(config: Any, list_type: int) -> None:
    from torch_npu import _kernels
    from vllm_ascend.ops.fused_moe import moe_mlp

    hidden, inter, rows = 64, 32, 13
    w1, w2 = torch.randn(3, 2 * inter, hidden) / 8, torch.randn(3, hidden, inter) / 8
    w1, w2 = w1.bfloat16(), w2.bfloat16()
    x = torch.randn(rows, hidden).bfloat16()
    counts = torch.tensor([4, 0, 9])
    listed = counts if list_type == 1 else counts.cumsum(0)

    def run(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        out, _ = moe_mlp.unquant_apply_mlp(
            x.clone(), first, second, listed, group_list_type=list_type, need_trans=False,
            activation=_gelu(),
        )  # fmt: skip
        return out

    as_loaded = [w.transpose(1, 2).contiguous() for w in (w1, w2)]
    expected = run(*as_loaded)
    ascend_patches.wrap_experts(ops.grouped_linear)
    try:
        before = _kernels.calls["npu_grouped_matmul"], ops.calls["grouped_linear"]
        found = run(*[w.transpose(1, 2) for w in (w1, w2)])  # as our processing lays it out
        assert _kernels.calls["npu_grouped_matmul"] == before[0]
        assert ops.calls["grouped_linear"] == before[1] + 2
        world.close(found, expected)
        world.close(run(*as_loaded), expected)  # of another layout: torch_npu's
        assert _kernels.calls["npu_grouped_matmul"] == before[0] + 2
    finally:
        ascend_patches.wrap_experts(None)
    assert moe_mlp.torch_npu.__name__ == "torch_npu"


def _gelu() -> Any:
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    return MoEActivation.GELU
