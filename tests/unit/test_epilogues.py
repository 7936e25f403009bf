"""Which MLPs let the activation go into the product before it: told from their forward alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vllm_xyserve.linear import epilogues


class Mlp(torch.nn.Module):
    """As vLLM's."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj: Any = torch.nn.Linear(4, 12)
        self.act_fn: Any = torch.nn.Identity()
        self.down_proj: Any = torch.nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        x, _ = self.gate_up_proj(x)
        x = self.act_fn(x)
        x, _ = self.down_proj(x)
        return x


class ClampsFirst(Mlp):
    def forward(self, x: Any) -> Any:
        x, _ = self.gate_up_proj(x)
        x, _ = self.down_proj(self.act_fn(x.clamp(max=7)))
        return x


class ReadsTwice(Mlp):
    def forward(self, x: Any) -> Any:
        product, _ = self.gate_up_proj(x)
        x, _ = self.down_proj(self.act_fn(product))
        return x + product.sum()


class ActivatesTwice(Mlp):
    def forward(self, x: Any) -> Any:
        product, _ = self.gate_up_proj(x)
        self.act_fn(product)
        x, _ = self.down_proj(self.act_fn(product))
        return x


class ReturnsIt(Mlp):
    def forward(self, x: Any) -> Any:
        product, _ = self.gate_up_proj(x)
        x, _ = self.down_proj(self.act_fn(product))
        return x, product


class ScalesAfter(Mlp):
    """Fusing would do here too, but it is no plain MLP: better left alone."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


class WantsMore(Mlp):
    def forward(self, x: Any, residual: Any) -> Any:
        return super().forward(x) + residual


def test_a_plain_mlp_allows_it() -> None:
    mlp = Mlp()
    layers = list(mlp.children())
    assert epilogues._only_activation_reads_product(mlp)
    assert list(mlp.children()) == layers, "the layers were not put back"


@pytest.mark.parametrize(
    "kind", [ClampsFirst, ReadsTwice, ActivatesTwice, ReturnsIt, ScalesAfter, WantsMore]
)
def test_others_do_not(kind: type[Mlp]) -> None:
    mlp = kind()
    layers = list(mlp.children())
    assert not epilogues._only_activation_reads_product(mlp)
    assert list(mlp.children()) == layers, "the layers were not put back"


def test_passing_on() -> None:
    x = torch.randn(3, 4)
    assert epilogues.PassOn()(x) is x
