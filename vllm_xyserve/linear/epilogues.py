"""Moves SiLU-and-multiply into the gate-up product of MLPs that allow it, without their source.

vLLM has no hook between a linear layer and the activation behind it, but its MLPs keep both as
submodules. Where an MLP's forward hands the product of ``gate_up_proj`` to a plain ``SiluAndMul``
and to nothing else, the product's kernel can apply it, and the activation then hands on its input.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vllm_xyserve.linear.method import SmoothGemmLinear


def fuse_silu_and_mul(model: torch.nn.Module) -> int:
    """Fuse every MLP of a loaded model that allows it.

    Not for models with LoRA: an adapter adds to the product before the activation.

    Returns:
        Number of MLPs.
    """
    count = 0
    for module in model.modules():
        linear = _gate_up(module)
        if linear is not None and _only_activation_reads_product(module):
            linear.epilogue = "silu_and_mul"
            module.act_fn = PassOn()
            count += 1
    return count


class PassOn(torch.nn.Module):
    """Stands where an activation was that the product before it has applied."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Hand on."""
        return x


def _gate_up(module: torch.nn.Module) -> SmoothGemmLinear | None:
    """The native product of an MLP of two equal parts whose activation is a plain SiluAndMul."""
    from vllm.model_executor.layers.activation import SiluAndMul
    from vllm.model_executor.layers.linear import MergedColumnParallelLinear

    parts = module._modules
    if not {"gate_up_proj", "act_fn", "down_proj"} <= parts.keys():
        return None
    layer: Any = parts["gate_up_proj"]
    if type(layer) is not MergedColumnParallelLinear or type(parts["act_fn"]) is not SiluAndMul:
        return None
    widths = layer.output_partition_sizes
    if layer.gather_output or layer.skip_bias_add or len(widths) != 2 or widths[0] != widths[1]:
        return None
    linear = vars(layer).get("cpu_linear")
    if not isinstance(linear, SmoothGemmLinear) or linear.packed is None:
        return None
    return linear


class _UsedElsewhere(Exception):
    """The forward reads the product, and not through the activation."""


class _Product(torch.Tensor):
    """What the stub of ``gate_up_proj`` hands out: any operation on it raises."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise _UsedElsewhere


class _Stub(torch.nn.Module):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result
        self.inputs: list[Any] = []

    def forward(self, x: Any) -> Any:
        self.inputs.append(x)
        return self.result


def _only_activation_reads_product(module: torch.nn.Module) -> bool:
    """Run the forward once with stubs in place of the three layers, and watch where values go."""
    given, product = torch.zeros(1, 1), torch.zeros(1, 1).as_subclass(_Product)
    activated, out = torch.zeros(1, 1), torch.zeros(1, 1)
    gate_up, act, down = _Stub((product, None)), _Stub(activated), _Stub((out, None))
    with _replaced(module, gate_up_proj=gate_up, act_fn=act, down_proj=down):
        try:
            result = module(given)
        except Exception:  # of any kind: it wants more than a plain MLP has
            return False
    return (
        result is out
        and _is(gate_up.inputs, given)
        and _is(act.inputs, product)
        and _is(down.inputs, activated)
    )


def _is(inputs: list[Any], expected: torch.Tensor) -> bool:
    return len(inputs) == 1 and inputs[0] is expected


@contextmanager
def _replaced(module: torch.nn.Module, **stubs: torch.nn.Module) -> Iterator[None]:
    kept = {name: module._modules[name] for name in stubs}
    module._modules.update(stubs)
    try:
        yield
    finally:
        module._modules.update(kept)
