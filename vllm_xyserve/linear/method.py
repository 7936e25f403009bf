"""The callable that a linear layer of ours multiplies with."""

from __future__ import annotations

from typing import Literal

import torch

from vllm_xyserve.ops.reference.linear import linear as reference_linear

LinearPath = Literal["reference"]


class SmoothGemmLinear:
    """``y = x @ weight.T + bias`` for any number of tokens; set as a layer's ``cpu_linear``.

    Args:
        path: the kernel to multiply with.
        weight_shape: ``(N, K)`` of the layer, for messages.

    Attributes:
        num_calls: calls so far; compiled code does not count, since a counter would break the
            graph or become a guard that changes at every step.
    """

    __slots__ = ("num_calls", "path", "weight_shape")

    def __init__(self, path: LinearPath, weight_shape: tuple[int, int]) -> None:
        self.path = path
        self.weight_shape = weight_shape
        self.num_calls = 0

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Multiply.

        Args:
            x: ``[..., K]`` float.
            weight: ``[N, K]``, dtype of ``x``.
            bias: ``[N]`` or None.

        Returns:
            ``[..., N]``, dtype of ``x``.
        """
        if not torch.compiler.is_compiling():
            self.num_calls += 1
        return reference_linear(x, weight, bias)
