"""The CPU worker's own steps, without an engine."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_xyserve.worker.cpu import XyCPUWorker


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {"is_checkpoint_format": False}), ((None, "folder", False), {})]
)
def test_weights_in_kernel_format_are_refused_by_name(args: Any, kwargs: Any) -> None:
    worker = object.__new__(XyCPUWorker)
    with pytest.raises(ValueError, match=r"reload_weights .* is_checkpoint_format=False.*Leave"):
        worker.reload_weights(*args, **kwargs)
