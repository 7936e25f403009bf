"""The linear part's binding of layers, and its fp32 twin, without an engine."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from tests.helpers.compare import assert_close
from vllm_xyserve.linear import install
from vllm_xyserve.linear.method import SmoothGemmLinear
from vllm_xyserve.ops.reference.linear import linear


def layer(weight: torch.Tensor) -> SimpleNamespace:
    return SimpleNamespace(weight=weight)


def test_reference_binds_a_layer_and_keeps_its_weight() -> None:
    weight = torch.randn(7, 5)
    fake = layer(weight)
    assert install._Binder("reference")(fake)
    assert isinstance(fake.cpu_linear, SmoothGemmLinear)
    assert fake.cpu_linear.path == "reference"
    assert fake.cpu_linear.weight_shape == (7, 5)
    assert fake.weight is weight
    x = torch.randn(3, 5)
    assert_close(fake.cpu_linear(x, weight, None), x @ weight.T, atol=1e-5, rtol=1e-5, name="y")


def test_upstream_leaves_every_layer_to_vllm() -> None:
    fake = layer(torch.randn(7, 5))
    assert not install._Binder("upstream")(fake)
    assert not hasattr(fake, "cpu_linear")


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (torch.randn(2, 3, 4), "3 dimensions"),
        (torch.zeros(4, 4, dtype=torch.int8), "torch.int8"),
        (torch.empty(4, 4, device="meta"), "not loaded"),
    ],
)
def test_what_is_not_supported_stays_with_vllm_and_is_said_once(
    weight: torch.Tensor, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    binder = install._Binder("reference")
    install.logger.propagate = True
    logging.getLogger("vllm").propagate = True
    with caplog.at_level(logging.INFO, logger=install.logger.name):
        assert not binder(layer(weight))
        assert not binder(layer(weight))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert reason in said[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5,), (1, 5), (2, 3, 5), (0, 5)])
def test_the_twin_against_float64(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weight, bias = torch.randn(shape), torch.randn(7, 5), torch.randn(7)
    x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
    expected = x.double() @ weight.double().T + bias.double()
    got = linear(x, weight, bias)
    assert got.dtype == dtype
    eps = torch.finfo(dtype).eps
    assert_close(
        got.double(), expected, atol=4 * eps, rtol=2 * eps, name="linear", allow_empty=shape[0] == 0
    )


def test_the_twin_takes_strided_input() -> None:
    x = torch.randn(5, 4).T
    weight = torch.randn(3, 5)
    assert_close(linear(x, weight, None), x @ weight.T, atol=1e-5, rtol=1e-5, name="strided")
