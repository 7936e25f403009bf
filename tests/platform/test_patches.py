"""Each patch of `vllm_xyserve.compat.patches`: what it does, and whether it is still needed."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Callable
from concurrent.futures import Future
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.platform.config_cases import Facts
from vllm_xyserve.compat import patches

# The first test that needs the child waits for it; see test_activation.py.
pytestmark = pytest.mark.timeout(1200)

NPU_PLATFORM = "vllm_ascend.platform.NPUPlatform"


# silence_ascend_registration --------------------------------------------------------------------


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Puts a module `vllm_ascend` with these members in place."""
    monkeypatch.delenv(patches.ENV_KEEP_ASCEND, raising=False)

    def install_module(**members: Any) -> ModuleType:
        module = ModuleType("vllm_ascend")
        module.__spec__ = ModuleSpec("vllm_ascend", None)
        for name, value in members.items():
            setattr(module, name, value)
        monkeypatch.setitem(sys.modules, "vllm_ascend", module)
        return module

    return install_module


def fresh_register() -> Callable[[], Any]:
    """As in vllm-ascend 0.23; fresh, since the patch changes the function object itself."""
    namespace: dict[str, Any] = {}
    exec("def register():\n    return 'vllm_ascend.platform.NPUPlatform'", namespace)
    function: Callable[[], Any] = namespace["register"]
    return function


def test_silences_the_function_that_vllm_holds_already(install: Callable[..., ModuleType]) -> None:
    held = fresh_register()
    install(register=held)
    assert held() == NPU_PLATFORM
    assert not patches.ascend_is_silenced()
    assert patches.silence_ascend_registration()
    assert held() is None
    assert patches.ascend_is_silenced()


def test_silencing_is_idempotent(install: Callable[..., ModuleType]) -> None:
    held = fresh_register()
    install(register=held)
    assert patches.silence_ascend_registration()
    assert patches.silence_ascend_registration()
    assert held() is None


def test_keep_ascend(install: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    held = fresh_register()
    install(register=held)
    monkeypatch.setenv(patches.ENV_KEEP_ASCEND, "1")
    assert not patches.silence_ascend_registration()
    assert held() == NPU_PLATFORM
    assert not patches.ascend_is_silenced()


def test_without_vllm_ascend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches.importlib.util, "find_spec", lambda name: None)
    assert not patches.silence_ascend_registration()
    assert not patches.ascend_is_silenced()


def closure() -> Callable[[], Any]:
    """A function with a free variable, whose code cannot be exchanged."""
    path = NPU_PLATFORM
    return lambda: path


@pytest.mark.parametrize("member", [None, "a string", SimpleNamespace(), print, closure()])
def test_unexpected_register_is_an_error(install: Callable[..., ModuleType], member: Any) -> None:
    install(**({} if member is None else {"register": member}))
    with pytest.raises(patches.PatchError, match=r"vllm_ascend\.register was expected"):
        patches.silence_ascend_registration()
    assert not patches.ascend_is_silenced()


@pytest.mark.skipif(
    importlib.util.find_spec("vllm_ascend") is None, reason="vllm-ascend is not installed"
)
def test_vllm_ascend_still_activates_unconditionally() -> None:
    """Fails once its function looks at anything first; then see whether the patch can go."""
    spec = importlib.util.find_spec("vllm_ascend")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    (function,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "register"]
    returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return)]
    assert [ast.literal_eval(value) for value in returned if value] == [NPU_PLATFORM]
    assert not [n for n in ast.walk(function) if isinstance(n, ast.If)]


# wrap_cpu_gemm_dispatch -------------------------------------------------------------------------


@pytest.fixture
def dispatch(started: dict[str, Future[Any]]) -> Facts:
    """What a child found with vLLM's real function."""
    facts: Facts = started["config"].result()["cpu_gemm_dispatch"]
    assert "raised" not in facts, facts["raised"]
    return facts


def test_layers_are_offered_to_us_first_and_once(dispatch: Facts) -> None:
    """Once, although the child installs the patch twice."""
    assert dispatch["asked"] == [True, False]
    assert dispatch["ours"] == "ours"
    assert dispatch["wraps_the_original"]


def test_what_we_leave_is_vllms(dispatch: Facts) -> None:
    assert dispatch["theirs"] < 1e-5  # fp32, 64 terms of about 1/8


def test_patch_reaches_all_callers(dispatch: Facts) -> None:
    """A caller that imports the function with its module would keep the original."""
    assert dispatch["callers"] == [
        "model_executor/layers/linear.py",
        "model_executor/layers/vocab_parallel_embedding.py",
    ]
    assert dispatch["early_importers"] == []
    assert dispatch["parameters"] == ["layer", "remove_weight"]


def test_vllm_has_no_registry_of_unquantised_kernels(dispatch: Facts) -> None:
    """Fails once vLLM has one; then our kernel goes there and the patch can go."""
    tables = dispatch["kernel_tables"]
    assert "_POSSIBLE_INT8_KERNELS" in tables  # the naming that the next line goes by
    assert not [t for t in tables if re.search("UNQUANT|BF16|FP16|FP32|FLOAT|DENSE|GEMM", t)]


def test_missing_function_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "vllm.model_executor.layers.utils"
    monkeypatch.setattr(patches.importlib, "import_module", lambda module: ModuleType(module))
    with pytest.raises(patches.PatchError, match=rf"{name}\.dispatch_cpu_unquantized_gemm is miss"):
        patches.wrap_cpu_gemm_dispatch(lambda layer, remove_weight: True)


# prefer_int8_kernel -----------------------------------------------------------------------------


@pytest.fixture
def int8_kernels(started: dict[str, Future[Any]]) -> Facts:
    """What a child found with vLLM's real list."""
    facts: Facts = started["config"].result()["int8_kernels"]
    assert "raised" not in facts, facts["raised"]
    return facts


def test_our_int8_kernel_comes_first_and_once(int8_kernels: Facts) -> None:
    assert len(int8_kernels["original"]) >= 1
    assert int8_kernels["preferred"] == ["Ours", *int8_kernels["original"]]
    assert int8_kernels["left"] == int8_kernels["original"]


def test_vllm_still_registers_behind_its_own(int8_kernels: Facts) -> None:
    """Fails once `register_linear_kernel` takes a place; then the patch can go."""
    assert int8_kernels["registered"] == [*int8_kernels["original"], "Ours"]


def test_missing_int8_list_is_an_error_only_if_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches.importlib, "import_module", lambda module: ModuleType(module))
    monkeypatch.setitem(
        sys.modules, "vllm.platforms", SimpleNamespace(PlatformEnum=SimpleNamespace(CPU=1))
    )
    patches.prefer_int8_kernel(int, first=False)
    with pytest.raises(patches.PatchError, match=r"_POSSIBLE_INT8_KERNELS has no list"):
        patches.prefer_int8_kernel(int, first=True)
