"""Inputs of the linear tests in poisoned memory, and the references they are compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tests.helpers.compare import assert_close

# Relative to the size of the terms of a sum: fp32 arithmetic over K, and one rounding of the result
# (half a unit in the last place). vdpbf16ps and the scalar form round twice per product.
SUM_ERROR = 1e-6
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SENTINEL = 77.0


@dataclass(frozen=True, slots=True)
class Layer:
    """weight [N, K] and bias [N] in one dtype."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def exact(self, x: torch.Tensor) -> torch.Tensor:
        """The answer in fp64."""
        out = x.double() @ self.weight.double().T
        return out if self.bias is None else out + self.bias.double()

    def terms(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of the absolute terms in fp64: what rounding errors are measured by."""
        out = x.double().abs() @ self.weight.double().abs().T
        return out if self.bias is None else out + self.bias.double().abs()


def layer(n: int, k: int, dtype: torch.dtype, rng: torch.Generator, *, bias: bool = True) -> Layer:
    weight = torch.randn(n, k, generator=rng).to(dtype)
    return Layer(weight, torch.randn(n, generator=rng).to(dtype) if bias else None)


def poisoned_rows(m: int, k: int, dtype: torch.dtype, rng: torch.Generator) -> torch.Tensor:
    """Random ``[m, k]`` with NaN before, between and after its rows."""
    memory = torch.full((m + 2, k + 5), math.nan, dtype=dtype)
    rows = memory[1 : m + 1, 3 : 3 + k]
    rows.copy_(torch.randn(m, k, generator=rng))
    return rows


def assert_linear(
    actual: torch.Tensor, exact: torch.Tensor, terms: torch.Tensor, name: str = "linear"
) -> None:
    """Require the fp64 answer up to fp32 sums and one rounding; NaN and infinities fail."""
    if actual.shape != exact.shape:
        raise AssertionError(f"{name}: shape {tuple(actual.shape)}, expected {tuple(exact.shape)}")
    bound = SUM_ERROR * terms + 1e-30
    # In units of each element's own bound, so that one comparison serves all of them.
    error = (actual.double() - exact) / (bound + ROUNDING[actual.dtype] * exact.abs())
    assert_close(error, torch.zeros_like(error), atol=1.0, rtol=0.0, name=name, allow_empty=True)
