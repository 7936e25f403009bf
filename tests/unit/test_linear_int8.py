"""The int8 kernel behind vLLM's interface: packing, scales, zero points, fallback; no engine."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import pytest
import torch
from vllm.model_executor.kernels.linear import (
    CPUInt8ScaledMMLinearKernel,
    Int8ScaledMMLinearLayerConfig,
)

from tests.helpers.compare import assert_close
from vllm_xyserve.linear import int8
from vllm_xyserve.linear.int8 import SmoothGemmInt8Linear
from vllm_xyserve.ops import registry

NAMES = ["weight", "weight_scale", "input_scale", "input_zero_point", "azp_adj"]
WIDTHS = [24, 8, 5]
K = 40


def make(static: bool, symmetric: bool, channelwise: bool, parts: list[int]) -> tuple[Any, Any]:
    """A kernel and a layer as vLLM hands them over, with random contents."""
    config = Int8ScaledMMLinearLayerConfig(
        is_static_input_scheme=static, is_channelwise=channelwise, input_symmetric=symmetric
    )
    num_out = sum(parts)
    layer = torch.nn.Module()
    layer.logical_widths = parts  # type: ignore[assignment]
    tensors: dict[str, torch.Tensor | None] = dict.fromkeys(NAMES)
    tensors["weight"] = torch.randint(-127, 128, (num_out, K), dtype=torch.int8)
    num_scales = (num_out, 1) if channelwise else (len(parts),)
    tensors["weight_scale"] = torch.rand(num_scales) / 100 + 0.001
    if static:
        tensors["input_scale"] = torch.rand(len(parts)) / 20 + 0.02
        if not symmetric:
            tensors["input_zero_point"] = torch.randint(-40, 40, (len(parts),), dtype=torch.int8)
    for name, tensor in tensors.items():
        parameter = None if tensor is None else torch.nn.Parameter(tensor, requires_grad=False)
        layer.register_parameter(name, parameter)
    return SmoothGemmInt8Linear(config, NAMES), layer


def expected(layer: Any, x: torch.Tensor, symmetric: bool, parts: list[int]) -> torch.Tensor:
    """In fp64, from the layer as it was loaded."""
    scale = layer.weight_scale.reshape(-1).double()
    if scale.numel() == len(parts):
        scale = scale.repeat_interleave(torch.tensor(parts))
    weight = layer.weight.double() * scale[:, None]
    if layer.input_scale is None and symmetric:
        step, zero = x.abs().amax(-1, keepdim=True).double() / 127, torch.tensor(0.0)
    elif layer.input_scale is None:
        low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
        step = (high - low).double() / 255
        zero = (-128 - low / step).round()
    elif symmetric:
        step, zero = layer.input_scale.max().double(), torch.tensor(0.0)
    else:
        zeros = layer.input_zero_point.double()
        high = (layer.input_scale * (127 - zeros)).max()
        low = (layer.input_scale * (-128 - zeros)).min()
        step = (high - low) / 255
        zero = (-128 - low / step).round()
    rounded = ((x.double() / step).round() + zero).clamp(-128, 127) - zero
    return rounded * step @ weight.T


@pytest.mark.parametrize("parts", [[37], WIDTHS])
@pytest.mark.parametrize("channelwise", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("static", [True, False])
def test_against_fp64(static: bool, symmetric: bool, channelwise: bool, parts: list[int]) -> None:
    kernel, layer = make(static, symmetric, channelwise, parts)
    x = torch.randn(2, 3, K) + 0.3
    want = expected(layer, x, symmetric, parts)
    before = registry.chosen("linear_int8", torch.float32).calls
    kernel.process_weights_after_loading(layer)
    assert kernel.is_ours
    assert layer.weight.ndim == 1, "the weight was not packed"
    got = kernel.apply_weights(layer, x, None)
    # One activation in a row may be rounded the other way in fp32: a step times a weight.
    atol = float(2 * (x.abs().amax() / 127).double() * 127 * 0.011)
    assert_close(got.double(), want, atol=atol, rtol=1e-5, name="int8")
    assert (got.double() - want).abs().median() < 1e-4
    assert registry.chosen("linear_int8", torch.float32).calls > before


def test_processing_again_packs_the_new_weight() -> None:
    """As a reload does: the loaded form comes back under the same names."""
    kernel, layer = make(False, True, True, [37])
    kernel.process_weights_after_loading(layer)
    first = layer.weight.clone()
    _, other = make(False, True, True, [37])
    for name in NAMES:
        layer.register_parameter(name, getattr(other, name))
    kernel.process_weights_after_loading(layer)
    assert layer.weight.shape == first.shape
    assert not torch.equal(layer.weight, first)


def test_a_layer_without_a_kernel_is_the_parents_and_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []
    for name in ("process_weights_after_loading", "apply_weights"):
        monkeypatch.setattr(
            CPUInt8ScaledMMLinearKernel, name, lambda *_, name=name: calls.append(name)
        )
    monkeypatch.setattr(int8.ops, "MAX_K", K - 1)
    monkeypatch.setattr(int8, "_said", set())
    int8.logger.propagate = True
    logging.getLogger("vllm").propagate = True
    with caplog.at_level(logging.INFO, logger=int8.logger.name):
        for _ in range(2):
            kernel, layer = make(False, True, True, [37])
            kernel.process_weights_after_loading(layer)
            assert not kernel.is_ours
            kernel.apply_weights(layer, torch.randn(2, K), None)
    assert calls == ["process_weights_after_loading", "apply_weights"] * 2
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert f"K = {K}" in said[0]


def test_scales_that_fit_no_layout_are_explained() -> None:
    _, layer = make(False, True, False, WIDTHS)
    with pytest.raises(ValueError, match=r"37 rows in parts of \[24, 8, 5\].*it has 2"):
        int8._per_channel(torch.rand(2), layer, 37)


def test_scales_go_to_the_rows_of_their_part() -> None:
    _, layer = make(False, True, False, WIDTHS)
    scale = int8._per_channel(torch.tensor([1.0, 2.0, 3.0]), layer, 37)
    begins = [0, *torch.tensor(WIDTHS).cumsum(0).tolist()]
    for part, (begin, end) in enumerate(pairwise(begins)):
        assert (scale[begin:end] == part + 1).all()
