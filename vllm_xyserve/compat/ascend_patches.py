"""Every change that we make to vllm-ascend's code while it runs, beside that of `patches`.

- `wrap_unquantized`. Why: its layer classes construct their method by name, and ~25 modules of vLLM
  hold that class. May go when the method's kernel can be registered.
- `replace_schemes`. Why: registering a second scheme under a key is an error. May go when a scheme
  can be overridden.
- `wrap_experts`. Why: the experts' products are calls of torch_npu inside of one function, on
  weights that one method lays out. May go when vllm-ascend has a seam for them.

Each is idempotent, probes for what it replaces, and can be undone by calling it with nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch

from vllm_xyserve.compat.patches import PatchError

_UPSTREAM = "_xyserve_upstream"
_EXPERTS = "vllm_ascend.ops.fused_moe"
_OFF = 'set {"xyserve": {"linear": "upstream"}} to run without our linear layers'

Prepare = Callable[[Any], bool]
Multiply = Callable[[Any, torch.Tensor, torch.Tensor | None], torch.Tensor]
Grouped = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def wrap_unquantized(prepare: Prepare, multiply: Multiply) -> None:
    """Offer each loaded unquantised linear layer to ``prepare``, and multiply those that it takes.

    Args:
        prepare: gets a layer that vllm-ascend has processed; True if it is ours from now on.
        multiply: ``(layer, x [..., K], bias)`` to ``[..., N]``.

    Raises:
        PatchError: vllm-ascend has no such method class.
    """
    module: Any = importlib.import_module("vllm_ascend.ops.linear")
    cls = getattr(module, "AscendUnquantizedLinearMethod", None)
    names = ("process_weights_after_loading", "apply")
    if cls is None or any(name not in vars(cls) for name in names):
        raise PatchError(
            "vllm_ascend.ops.linear.AscendUnquantizedLinearMethod with "
            f"{' and '.join(names)} is missing in this vllm-ascend; {_OFF}"
        )
    upstream_process, upstream_apply = (
        getattr(vars(cls)[name], _UPSTREAM, vars(cls)[name]) for name in names
    )

    def process_weights_after_loading(self: Any, layer: Any) -> None:
        upstream_process(self, layer)
        layer.xy_is_ours = prepare(layer)

    def apply(
        self: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        if getattr(layer, "xy_is_ours", False):
            return multiply(layer, x, bias)
        out: torch.Tensor = upstream_apply(self, layer, x, bias)
        return out

    for ours, upstream in (
        (process_weights_after_loading, upstream_process),
        (apply, upstream_apply),
    ):
        setattr(ours, _UPSTREAM, upstream)
        setattr(cls, ours.__name__, ours)


def upstream_scheme(quant_type: str, layer_type: str) -> type[Any]:
    """The scheme class that vllm-ascend registered under a key, not one of ours.

    Raises:
        PatchError: it registered none.
    """
    found = _registry().get((quant_type, layer_type))
    if found is None:
        raise PatchError(
            f"vllm-ascend has no quantisation scheme for {quant_type}/{layer_type}; {_OFF}"
        )
    upstream: type[Any] = getattr(found, _UPSTREAM, found)
    return upstream


def replace_schemes(schemes: dict[tuple[str, str], type[Any]]) -> None:
    """Put scheme classes into vllm-ascend's registry; keys that are not given get theirs back.

    Args:
        schemes: subclasses of `upstream_scheme` by its key.
    """
    registry = _registry()
    for key, cls in list(registry.items()):
        registry[key] = getattr(cls, _UPSTREAM, cls)
    for key, cls in schemes.items():
        setattr(cls, _UPSTREAM, upstream_scheme(*key))
        registry[key] = cls


def _registry() -> dict[tuple[str, str], type[Any]]:
    importlib.import_module("vllm_ascend.quantization.methods")  # where they register themselves
    module: Any = importlib.import_module("vllm_ascend.quantization.methods.registry")
    registry = getattr(module, "_SCHEME_REGISTRY", None)
    if not isinstance(registry, dict):
        raise PatchError(
            "vllm_ascend.quantization.methods.registry._SCHEME_REGISTRY is missing in this "
            f"vllm-ascend; {_OFF}"
        )
    return registry


def is_compressed_tensors(layer: Any) -> bool:
    """Whether a quantised layer's checkpoint is in that format, whose bias is not quantised."""
    from vllm_ascend.utils import COMPRESSED_TENSORS_METHOD

    return bool(getattr(layer, "ascend_quant_method", "") == COMPRESSED_TENSORS_METHOD)


class _Proxy:
    """torch_npu for one module, with one function replaced."""

    def __init__(self, upstream: Any, grouped_matmul: Callable[..., Any]) -> None:
        self.upstream = upstream
        self.npu_grouped_matmul = grouped_matmul

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["upstream"], name)


def wrap_experts(grouped: Grouped | None) -> None:
    """Multiply unquantised experts by ``grouped(x, weight [groups, N, K], group_ends)``.

    vllm-ascend stores experts as ``[groups, K, N]``; that shape stays, and the memory becomes that
    of ``[groups, N, K]``, which its own operations take as well. Calls of another form (bias,
    quantised, several tensors) stay torch_npu's. None gives all back.

    Raises:
        PatchError: vllm-ascend's experts are computed elsewhere.
    """
    if grouped is None and _EXPERTS not in sys.modules:
        return
    mlp: Any = importlib.import_module(f"{_EXPERTS}.moe_mlp")
    layers: Any = importlib.import_module(f"{_EXPERTS}.fused_moe")
    method = getattr(layers, "AscendUnquantizedFusedMoEMethod", None)
    name = "process_weights_after_loading"
    if method is None or name not in vars(method) or not hasattr(mlp, "unquant_apply_mlp"):
        raise PatchError(
            f"{_EXPERTS} has no AscendUnquantizedFusedMoEMethod with {name}, or no "
            'unquant_apply_mlp, in this vllm-ascend; set {"xyserve": {"grouped_experts": false}}'
        )
    torch_npu = mlp.torch_npu.upstream if isinstance(mlp.torch_npu, _Proxy) else mlp.torch_npu
    upstream = getattr(vars(method)[name], _UPSTREAM, vars(method)[name])
    if grouped is None:
        mlp.torch_npu = torch_npu
        setattr(method, name, upstream)
        return

    def process_weights_after_loading(self: Any, layer: Any) -> None:
        upstream(self, layer)
        for weight in (getattr(layer, "w13_weight", None), getattr(layer, "w2_weight", None)):
            if weight is not None and weight.ndim == 3:
                weight.data = weight.data.transpose(1, 2).contiguous().transpose(1, 2)

    def npu_grouped_matmul(**kw: Any) -> Any:
        call = _plain_call(kw)
        return torch_npu.npu_grouped_matmul(**kw) if call is None else [grouped(*call)]

    setattr(process_weights_after_loading, _UPSTREAM, upstream)
    setattr(method, name, process_weights_after_loading)
    mlp.torch_npu = _Proxy(torch_npu, npu_grouped_matmul)


_PLAIN = {"x", "weight", "bias", "split_item", "group_list_type", "group_type", "group_list"}


def _plain_call(kw: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Rows, weights ``[groups, N, K]`` and ends of groups of a call that ours can answer."""
    if not set(kw) <= _PLAIN or kw.get("bias") is not None or kw.get("group_type") != 0:
        return None
    (x, *others), (weight, *more) = kw["x"], kw["weight"]
    if others or more or weight.dtype != x.dtype or weight.ndim != 3:
        return None
    weight = weight.transpose(1, 2)  # [groups, K, N]: usually a view of what was loaded
    if not weight.is_contiguous() or kw.get("group_list_type") not in (0, 1):
        return None
    ends = kw["group_list"] if kw["group_list_type"] == 0 else kw["group_list"].cumsum(0)
    return x, weight, ends.to(torch.int64)
