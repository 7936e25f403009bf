"""Every change that we make to somebody else's code while it runs. Nothing else patches.

| patch | why there is no hook | may go when |
|---|---|---|
| `silence_ascend_registration` | vllm-ascend's platform plugin activates unconditionally, and vLLM refuses two active platforms | vllm-ascend's function can answer None |
| `wrap_cpu_gemm_dispatch` | vLLM's CPU linear layers choose their kernel in one function that takes no plugin | vLLM offers a registry of unquantised CPU linear kernels |

Each is idempotent, probes for what it replaces, and has a test that fails once it can go.
"""

from __future__ import annotations

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


def wrap_cpu_gemm_dispatch(bind: Callable[[Any], bool]) -> None:
    """Ask ``bind(layer)`` before vLLM chooses the kernel of an unquantised CPU linear layer.

    ``vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm(layer, remove_weight)`` sets
    ``layer.cpu_linear``, the callable that the layer's ``apply`` then uses with (x, weight, bias).
    Its callers import it inside their functions, so replacing the module's attribute reaches all.

    Args:
        bind: sets ``layer.cpu_linear`` and returns True, or leaves the layer alone and returns
            False, which hands it to vLLM.

    Raises:
        PatchError: this vLLM has no such function.
    """
    utils = importlib.import_module("vllm.model_executor.layers.utils")
    upstream = getattr(utils, "dispatch_cpu_unquantized_gemm", None)
    if upstream is None:
        raise PatchError(
            "vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm is missing in this "
            'vLLM; set {"xyserve": {"linear": "upstream"}} to run without our linear layers'
        )
    upstream = getattr(upstream, _WRAPPED, upstream)

    def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:
        if not bind(layer):
            upstream(layer, remove_weight=remove_weight)

    setattr(dispatch_cpu_unquantized_gemm, _WRAPPED, upstream)
    utils.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm
