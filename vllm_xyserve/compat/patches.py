"""Every change that we make to somebody else's code while it runs. Nothing else patches, but
`ascend_patches` for the inside of vllm-ascend.

- `silence_ascend_registration`. Why: vllm-ascend's platform plugin activates unconditionally, and
  vLLM refuses two active platforms. May go when vllm-ascend's function can answer None.
- `wrap_cpu_gemm_dispatch`. Why: vLLM's CPU linear layers choose their kernel in one function that
  takes no plugin. May go when vLLM offers a registry of unquantised CPU linear kernels.
- `prefer_int8_kernel`. Why: `register_linear_kernel` puts a plugin's kernel behind vLLM's,
  takes every layer. May go when it takes a place in the list.
- `skip_lora_on_base_rows`. Why: vLLM's CPU LoRA operations give rows of the base model the last
  adapter. May go when vllm-project/vllm#48421 is in all supported versions.
- `replace_block_copy`. Why: vLLM copies KV blocks by index tensors, which takes 2 to 4 ms for one
  block on a CPU. May go when its CPU worker copies row by row.

Each is idempotent, probes for what it replaces, and has a test that fails once it can go.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable
from types import FunctionType
from typing import Any

ENV_KEEP_ASCEND = "XYSERVE_KEEP_ASCEND"

_WRAPPED = "_xyserve_wrapped"


class PatchError(RuntimeError):
    """What a patch replaces does not look as expected in the installed version."""


def silence_ascend_registration() -> bool:
    """Make vllm-ascend's platform plugin answer None, so that ours is the only active one.

    The function object itself is changed, since vLLM may hold it already: it imports all platform
    plugins, in any order, before it calls the first. `XYSERVE_KEEP_ASCEND=1` leaves it alone.

    Returns:
        Whether vllm-ascend is installed and silent now.
    """
    if os.environ.get(ENV_KEEP_ASCEND) == "1" or importlib.util.find_spec("vllm_ascend") is None:
        return False
    register = getattr(importlib.import_module("vllm_ascend"), "register", None)
    if not isinstance(register, FunctionType) or register.__code__.co_freevars:
        raise PatchError(
            "vllm_ascend.register was expected to be a plain function and is "
            f"{type(register).__name__}; this vllm-ascend is not supported"
        )
    register.__code__ = _answer_none.__code__
    return True


def ascend_is_silenced() -> bool:
    """Whether `silence_ascend_registration` has taken effect in this process."""
    if importlib.util.find_spec("vllm_ascend") is None:
        return False
    register = getattr(importlib.import_module("vllm_ascend"), "register", None)
    return getattr(register, "__code__", None) is _answer_none.__code__


def _answer_none() -> None:
    return None


def wrap_cpu_gemm_dispatch(bind: Callable[[Any, bool], bool]) -> None:
    """Ask ``bind(layer, remove_weight)`` before vLLM chooses an unquantised CPU layer's kernel.

    ``vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm(layer, remove_weight)`` sets
    ``layer.cpu_linear``, the callable that the layer's ``apply`` then uses with (x, weight, bias).
    Its callers import it inside their functions, so replacing the module's attribute reaches all.

    Args:
        bind: sets ``layer.cpu_linear`` and returns True, or leaves the layer alone and returns
            False, which hands it to vLLM. ``remove_weight``: whether to free ``layer.weight``.

    Raises:
        PatchError: this vLLM has no such function.
    """
    utils: Any = importlib.import_module("vllm.model_executor.layers.utils")
    upstream = getattr(utils, "dispatch_cpu_unquantized_gemm", None)
    if upstream is None:
        raise PatchError(
            "vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm is missing in this "
            'vLLM; set {"xyserve": {"linear": "upstream"}} to run without our linear layers'
        )
    upstream = getattr(upstream, _WRAPPED, upstream)

    def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:
        if not bind(layer, remove_weight):
            upstream(layer, remove_weight=remove_weight)

    setattr(dispatch_cpu_unquantized_gemm, _WRAPPED, upstream)
    utils.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm


def prefer_int8_kernel(kernel: type[Any], first: bool) -> None:
    """Offer W8A8 int8 layers on a CPU to ``kernel`` before vLLM's own kernels, or no more.

    Args:
        kernel: an ``Int8ScaledMMLinearKernel``.
        first: False takes it out of the list.

    Raises:
        PatchError: this vLLM has no such list.
    """
    from vllm.platforms import PlatformEnum

    linear: Any = importlib.import_module("vllm.model_executor.kernels.linear")
    kernels = getattr(linear, "_POSSIBLE_INT8_KERNELS", {}).get(PlatformEnum.CPU)
    if kernels is None and not first:
        return
    if kernels is None:
        raise PatchError(
            "vllm.model_executor.kernels.linear._POSSIBLE_INT8_KERNELS has no list for the CPU in "
            'this vLLM; set {"xyserve": {"linear": "upstream"}} to run without our linear layers'
        )
    kernels[:] = [kernel] * first + [known for known in kernels if known is not kernel]


_LORA_MODULES = (
    "vllm.lora.ops.torch_ops.lora_ops",
    "vllm.lora.ops.torch_ops",
    "vllm.lora.punica_wrapper.punica_cpu",
)
_LORA_OPS = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")


def skip_lora_on_base_rows() -> None:
    """Keep adapters off the rows of the base model where both share a batch (CPU).

    vLLM's torch operations index the stacked adapters with -1 for a row without an adapter, which
    is the last adapter: a base request then gets another user's fine-tuning. The other prefill
    operations (``sgmv_*``) call these.

    Raises:
        PatchError: this vLLM has no such operations.
    """
    modules = [importlib.import_module(name) for name in _LORA_MODULES]
    for name in _LORA_OPS:
        upstream = getattr(modules[0], name, None)
        if upstream is None:
            raise PatchError(f"{_LORA_MODULES[0]}.{name} is missing in this vLLM")
        if hasattr(upstream, _WRAPPED):
            continue
        for module in modules:
            setattr(module, name, _without_base_rows(upstream))


def _without_base_rows(upstream: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(upstream)
    def operation(
        inputs: Any, weights: Any, output: Any, indices: Any, *args: Any, **kw: Any
    ) -> None:
        # No branch on the data: with torch.compile it would break the graph.
        inputs = inputs.masked_fill((indices < 0).unsqueeze(1), 0)
        upstream(inputs, weights, output, indices.clamp(min=0), *args, **kw)

    setattr(operation, _WRAPPED, upstream)
    return operation


def replace_block_copy(copy: Callable[..., None]) -> None:
    """Carry the block copies of a step out with ``copy(kv_caches, num_blocks, copies)``.

    Raises:
        PatchError: this vLLM's model runner has no such step.
    """
    runner: Any = importlib.import_module("vllm.v1.worker.gpu_model_runner")
    if not hasattr(runner, "copy_kv_cache_blocks_inplace"):
        raise PatchError(
            "vllm.v1.worker.gpu_model_runner.copy_kv_cache_blocks_inplace is missing in this vLLM; "
            'set {"xyserve": {"prefix": {"token_level": false}}} to run without block copies'
        )
    runner.copy_kv_cache_blocks_inplace = copy
