"""The CPU worker's own steps, without an engine."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_xyserve.linear import install
from vllm_xyserve.worker.cpu import XyCPUWorker


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {"is_checkpoint_format": False}), ((None, "folder", False), {})]
)
def test_weights_in_kernel_format_are_refused_by_name(args: Any, kwargs: Any) -> None:
    worker = object.__new__(XyCPUWorker)
    with pytest.raises(ValueError, match=r"reload_weights .* is_checkpoint_format=False.*Leave"):
        worker.reload_weights(*args, **kwargs)


def test_free_memory_goes_back_where_the_c_library_can(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    for library in (SimpleNamespace(malloc_trim=asked.append), SimpleNamespace()):
        monkeypatch.setattr(ctypes, "CDLL", lambda name, library=library: library)
        install.return_free_memory()
    assert asked == [0]
