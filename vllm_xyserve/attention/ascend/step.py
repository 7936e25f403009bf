"""What a step's metadata holds for layers of ours, beside the parent's own fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vllm_xyserve.attention.ascend.buffers import Tables
from vllm_xyserve.ops.ascend import BLOCK_SIZE
from vllm_xyserve.plan.spec import PlanSpec

ATTRIBUTE = "xy_step"
"""Of the parent's metadata object, which its own builder constructs."""


@dataclass(frozen=True, slots=True)
class AscendStep:
    """One step of a KV cache group.

    Attributes:
        layers: names of the group's native layers.
        tables: by what a layer needs.
        seq_lens: ``[capacity]`` int32 on the device.
        block_table: ``[capacity, max_blocks]`` int32 on the device.
        max_query_len, max_key_len: longest row and context of this step.
    """

    layers: frozenset[str]
    tables: Mapping[PlanSpec, Tables]
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    max_query_len: int
    max_key_len: int

    @property
    def capacity_keys(self) -> int:
        """Longest context of any step."""
        return self.block_table.shape[1] * BLOCK_SIZE


def step_of(metadata: Any) -> AscendStep | None:
    """The step, or None where the parent's kernels answer."""
    return getattr(metadata, ATTRIBUTE, None)


def parents_layers(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Of a model's metadata by layer, those that the parent's kernels answer."""
    return {name: one for name, one in metadata.items() if not _is_ours(name, one)}


def _is_ours(name: str, metadata: Any) -> bool:
    step = step_of(metadata)
    return step is not None and name in step.layers
