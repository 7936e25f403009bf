"""What vLLM's real CPU kernel choice does with our patch of it; runs in config_cases' child."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any, TypeGuard

Facts = dict[str, Any]


def callers(function: str) -> Facts:
    """Modules of vLLM that call the function, and those that import it when they are imported."""
    import vllm

    found, early = [], []
    root = Path(vllm.__file__).parent
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if function not in text:
            continue
        tree = ast.parse(text)
        called = {n.func.id for n in ast.walk(tree) if _is_plain_call(n)}
        imported = {a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
        found += [str(path.relative_to(root))] if function in called else []
        early += [str(path.relative_to(root))] if function in imported else []
    return {"callers": sorted(found), "early_importers": early}


def _is_plain_call(node: ast.AST) -> TypeGuard[Any]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def dispatch() -> Facts:
    """Wraps vLLM's real function twice and lets it choose for a layer of each kind."""
    import torch
    from vllm.model_executor.kernels import linear
    from vllm.model_executor.layers import utils

    from vllm_xyserve.compat import patches

    original = utils.dispatch_cpu_unquantized_gemm
    asked: list[bool] = []

    def bind(layer: Any, remove_weight: bool) -> bool:
        assert remove_weight
        asked.append(layer.ours)
        if layer.ours:
            layer.cpu_linear = "ours"
        return bool(layer.ours)

    for _ in range(2):
        patches.wrap_cpu_gemm_dispatch(bind)
    ours, theirs = torch.nn.Linear(64, 32), torch.nn.Linear(64, 32)
    ours.ours, theirs.ours = True, False
    x, weight, bias = torch.randn(3, 64), theirs.weight.detach().clone(), theirs.bias.detach()
    for layer in (ours, theirs):
        utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    expected = torch.nn.functional.linear(x, weight, bias)
    got = theirs.cpu_linear(x, theirs.weight, bias)
    facts = {
        "parameters": list(inspect.signature(original).parameters),
        "asked": asked,
        "ours": ours.cpu_linear,
        "theirs": float((got - expected).abs().max()),
        "wraps_the_original": utils.dispatch_cpu_unquantized_gemm._xyserve_wrapped is original,
        "kernel_tables": [name for name in vars(linear) if name.startswith("_POSSIBLE")],
    }
    utils.dispatch_cpu_unquantized_gemm = original
    return facts


def int8_kernels() -> Facts:
    """What our patch does with vLLM's real list, and vLLM's own way to register a kernel."""
    from vllm.model_executor.kernels import linear
    from vllm.platforms import PlatformEnum

    from vllm_xyserve.compat import patches

    class Ours(linear.Int8ScaledMMLinearKernel):
        pass

    kernels = linear._POSSIBLE_INT8_KERNELS[PlatformEnum.CPU]
    original = list(kernels)

    def names() -> list[str]:
        return [kernel.__name__ for kernel in kernels]

    facts: Facts = {"original": names()}
    for _ in range(2):
        patches.prefer_int8_kernel(Ours, first=True)
    facts["preferred"] = names()
    patches.prefer_int8_kernel(Ours, first=False)
    facts["left"] = names()
    linear.register_linear_kernel(Ours, PlatformEnum.CPU, "int8")
    facts["registered"] = names()
    kernels[:] = original
    return facts
