"""The callable that a linear layer of ours multiplies with."""

from __future__ import annotations

from typing import Literal

import torch

from vllm_xyserve.ops import linear as ops
from vllm_xyserve.ops.reference.linear import linear as reference_linear

LinearPath = Literal["native", "reference"]
Epilogue = Literal["", "silu_and_mul"]


class SmoothGemmLinear:
    """``y = x @ weight.T + bias`` for any number of tokens; set as a layer's ``cpu_linear``.

    Args:
        path: the kernel to multiply with.
        weight_shape: ``(N, K)`` of the layer.
        packed: on the native path, the weight in the kernel's panels (``ops.linear_pack``), held
            here as a tensor: compiled code then reads it anew at each call, as vLLM's does with
            its oneDNN handle, and does not freeze it. None multiplies with the layer's weight:
            for tables that are looked up and never multiplied with, see `install.pack_table`.
        epilogue: what the native kernel does with the product before it is written.
            ``silu_and_mul``: ``silu(y[..., :N/2]) * y[..., N/2:]``.

    Attributes:
        num_calls: calls so far; compiled code does not count, since a counter would break the
            graph or become a guard that changes at every step. The kernels' own counters do
            (``ops.registry.calls``).
    """

    __slots__ = ("epilogue", "num_calls", "packed", "path", "weight_shape")

    def __init__(
        self,
        path: LinearPath,
        weight_shape: tuple[int, int],
        packed: torch.Tensor | None = None,
        epilogue: Epilogue = "",
    ) -> None:
        self.path = path
        self.weight_shape = weight_shape
        self.packed = packed
        self.epilogue = epilogue
        self.num_calls = 0

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Multiply.

        Args:
            x: ``[..., K]`` float.
            weight: ``[N, K]``, dtype of ``x``; not read where the weight is packed.
            bias: ``[N]`` or None.

        Returns:
            ``[..., N]``, dtype of ``x``; ``[..., N/2]`` behind ``silu_and_mul``.
        """
        if not torch.compiler.is_compiling():
            self.num_calls += 1
        if self.packed is not None:
            if self.epilogue == "silu_and_mul":
                return ops.linear_silu_mul(x, self.packed, bias, self.weight_shape[0])
            return ops.linear(x, self.packed, bias, self.weight_shape[0])
        if self.path == "native":
            return torch.nn.functional.linear(x, weight, bias)
        return reference_linear(x, weight, bias)
