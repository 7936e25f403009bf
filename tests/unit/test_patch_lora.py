"""vLLM's CPU LoRA operations and rows of the base model, with and without our patch."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.helpers.compare import assert_close
from vllm_xyserve.compat import patches

NUM_ADAPTERS, RANK, NUM_IN, NUM_OUT = 2, 4, 24, 40
INDICES = [1, -1, 0, -1, 1]


@pytest.fixture
def lora_ops(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """vLLM's operations as they are; what a test patches is taken back."""
    for module in map(importlib.import_module, patches._LORA_MODULES):
        for name in patches._LORA_OPS:
            upstream = getattr(module, name)
            monkeypatch.setattr(module, name, getattr(upstream, patches._WRAPPED, upstream))
    return importlib.import_module("vllm.lora.ops.torch_ops")


def run(lora_ops: ModuleType, prefill: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Output of shrink and expand over five sequences, and what it has to be, both fp32."""
    down = torch.randn(NUM_ADAPTERS, 1, RANK, NUM_IN)
    up = torch.randn(NUM_ADAPTERS, 1, NUM_OUT, RANK)
    lengths = torch.tensor([3, 2, 1, 4, 1] if prefill else [1] * 5)
    indices = torch.tensor(INDICES)
    rows = indices.repeat_interleave(lengths)
    x, y = torch.randn(len(rows), NUM_IN), torch.randn(len(rows), NUM_OUT)
    middle = torch.full((len(rows), RANK), torch.nan)
    expected = y.clone()
    for i, adapter in enumerate(rows.tolist()):
        if adapter >= 0:
            expected[i] += up[adapter, 0] @ (0.5 * down[adapter, 0] @ x[i])
    if prefill:
        start = torch.cumsum(lengths, 0) - lengths
        meta: Any = (start, lengths, indices, len(lengths), int(lengths.max()), len(rows))
        lora_ops.sgmv_shrink(x, down, middle, *meta, 0.5)
        lora_ops.sgmv_expand_slice(middle, up, y, *meta, 0, NUM_OUT, True)
    else:
        lora_ops.bgmv_shrink(x, down, middle, rows, 0.5)
        lora_ops.bgmv_expand(middle, up, y, rows, True)
    return y, expected


@pytest.mark.parametrize("prefill", [True, False])
def test_patched_operations_leave_base_rows_alone(lora_ops: ModuleType, prefill: bool) -> None:
    patches.skip_lora_on_base_rows()
    patches.skip_lora_on_base_rows()
    y, expected = run(lora_ops, prefill)
    # Sums of at most 24 terms of size 1, twice.
    assert_close(y, expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("prefill", [True, False])
def test_the_patch_is_still_needed(lora_ops: ModuleType, prefill: bool) -> None:
    """Fails once vLLM leaves base rows alone by itself: then the patch can go."""
    y, expected = run(lora_ops, prefill)
    with pytest.raises(AssertionError):
        assert_close(y, expected, atol=1e-4, rtol=1e-5)


def test_missing_operation_is_reported(
    lora_ops: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(importlib.import_module(patches._LORA_MODULES[0]), "bgmv_expand")
    with pytest.raises(patches.PatchError, match="bgmv_expand"):
        patches.skip_lora_on_base_rows()
