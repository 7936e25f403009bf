"""The linear part's binding of layers, and its fp32 twin, without an engine."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from tests.helpers.compare import assert_close
from vllm_xyserve import parts
from vllm_xyserve.linear import install
from vllm_xyserve.linear.method import SmoothGemmLinear
from vllm_xyserve.ops import registry
from vllm_xyserve.ops.reference.linear import linear

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def layer(weight: torch.Tensor) -> SimpleNamespace:
    return SimpleNamespace(weight=weight)


def binder(path: parts.Taken) -> install._Binder:
    return install._Binder(lambda dtype: path)


def test_reference_binds_a_layer_and_keeps_its_weight() -> None:
    weight = torch.randn(7, 5)
    fake = layer(weight)
    assert binder("reference")(fake, True)
    assert isinstance(fake.cpu_linear, SmoothGemmLinear)
    assert fake.cpu_linear.path == "reference"
    assert fake.cpu_linear.weight_shape == (7, 5)
    assert fake.weight is weight
    x = torch.randn(3, 5)
    assert_close(fake.cpu_linear(x, weight, None), x @ weight.T, atol=1e-5, rtol=1e-5, name="y")


def test_upstream_leaves_every_layer_to_vllm() -> None:
    fake = layer(torch.randn(7, 5))
    assert not binder("upstream")(fake, True)
    assert not hasattr(fake, "cpu_linear")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5,), (1, 5), (2, 3, 5), (0, 5)])
def test_native_packs_a_layer_and_frees_its_weight(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    weight, bias = torch.randn(7, 5).to(dtype), torch.randn(7).to(dtype)
    fake = layer(torch.nn.Parameter(weight.clone(), requires_grad=False))
    before = calls(dtype)
    assert binder("native")(fake, True)
    assert fake.weight.numel() == 0
    assert fake.weight.dtype == dtype
    x = torch.randn(shape).to(dtype)
    got = fake.cpu_linear(x, fake.weight, bias)
    eps = torch.finfo(dtype).eps
    assert_close(
        got,
        linear(x, weight, bias),
        atol=8 * eps,
        rtol=2 * eps,
        name="linear",
        allow_empty=shape[0] == 0,
    )
    assert calls(dtype) > before or shape[0] == 0


def calls(dtype: torch.dtype) -> int:
    return registry.chosen("linear", dtype).calls


def test_native_takes_strided_input() -> None:
    weight = torch.randn(7, 6)
    fake = layer(weight.clone())
    binder("native")(fake, True)
    for x in (torch.randn(6, 4).T, torch.randn(3, 12)[:, ::2], torch.randn(2, 9, 6)[:, ::2]):
        assert not x.is_contiguous()
        got = fake.cpu_linear(x, fake.weight, None)
        assert_close(got, x @ weight.T, atol=1e-5, rtol=1e-5, name="strided")


def test_native_keeps_the_weight_that_is_looked_up_too() -> None:
    """An output layer: packed, but its weight may be the input embedding's."""
    weight = torch.randn(7, 5)
    fake = layer(weight)
    assert binder("native")(fake, False)
    assert fake.weight is weight
    assert fake.cpu_linear.packed is not None


def test_paths_go_by_the_dtype_of_the_weight() -> None:
    """A gate in fp32 within a model in bf16."""
    by_dtype: dict[torch.dtype, parts.Taken] = {
        torch.float32: "upstream",
        torch.bfloat16: "native",
    }
    bind = install._Binder(by_dtype.__getitem__)
    assert not bind(layer(torch.randn(7, 5)), True)
    assert bind(layer(torch.randn(7, 5).bfloat16()), True)


def test_binding_again_keeps_the_epilogue() -> None:
    """A reload of weights binds again, and the activation behind the layer has been taken out."""
    weight = torch.randn(8, 5)
    fake = layer(torch.zeros(8, 5))
    binder("native")(fake, True)
    fake.cpu_linear.epilogue = "silu_and_mul"
    fake.weight = weight.clone()
    binder("native")(fake, True)
    x = torch.randn(3, 5)
    gate, up = (x @ weight.T).chunk(2, dim=-1)
    got = fake.cpu_linear(x, fake.weight, None)
    assert_close(got, torch.nn.functional.silu(gate) * up, atol=1e-5, rtol=1e-5, name="silu")


def test_an_unpacked_table_multiplies_with_its_weight_until_it_is_packed() -> None:
    weight = torch.randn(7, 5)
    table = SmoothGemmLinear("native", (7, 5))
    x = torch.randn(3, 5)
    assert_close(table(x, weight, None), x @ weight.T, atol=1e-5, rtol=1e-5, name="unpacked")
    install.pack_table(layer(weight.clone()), table)
    got = table(x, torch.empty(0), None)
    assert_close(got, x @ weight.T, atol=1e-5, rtol=1e-5, name="packed")


@pytest.mark.parametrize("path", ["native", "reference"])
@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (torch.randn(2, 3, 4), "3 dimensions"),
        (torch.zeros(4, 4, dtype=torch.int8), "torch.int8"),
        (torch.empty(4, 4, device="meta"), "not loaded"),
        (torch.empty(0, 4), "empty"),
    ],
)
def test_what_is_not_supported_stays_with_vllm_and_is_said_once(
    weight: torch.Tensor, reason: str, path: parts.Taken, caplog: pytest.LogCaptureFixture
) -> None:
    bind = binder(path)
    install.logger.propagate = True
    logging.getLogger("vllm").propagate = True
    with caplog.at_level(logging.INFO, logger=install.logger.name):
        assert not bind(layer(weight), True)
        assert not bind(layer(weight), True)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert reason in said[0]


@pytest.mark.parametrize("dtype", DTYPES)
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
