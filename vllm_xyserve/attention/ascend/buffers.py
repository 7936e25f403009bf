"""Device buffers of fixed size: a captured graph reads from the same addresses at each replay.

A step writes its task table, lengths and block table into them, in stream order, so that the
kernels of the step before have read theirs. No vLLM here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from vllm_xyserve.ops.ascend import PARTIAL_TAIL
from vllm_xyserve.plan import layout
from vllm_xyserve.plan.spec import PlanSpec
from vllm_xyserve.plan.step import Table


@dataclass(frozen=True, slots=True)
class Limits:
    """What a step may hold at most: rows, tokens of all rows together, keys of a row."""

    max_rows: int
    max_tokens: int
    max_keys: int


def max_tiles(spec: PlanSpec, limits: Limits) -> int:
    """Query tiles of a step at most: each row begins one, and full ones hold so many queries."""
    queries = max(1, spec.device.tile_rows[-1] // spec.geometry.group_size)
    return limits.max_rows + -(-limits.max_tokens // queries)


def max_split_tasks(spec: PlanSpec, limits: Limits) -> int:
    """Tasks that write partial results, at most.

    Cutting to a core's mean load gives a head of a tile no more splits than its share of all cores,
    and one in part; cutting to fit, one a core. Splits of an invariant table depend on the keys.
    """
    if spec.policy.invariant:
        splits = -(-limits.max_keys // spec.device.split_span)
        return max_tiles(spec, limits) * spec.geometry.num_kv_heads * splits
    return 8 * spec.device.num_cores


def table_bytes(spec: PlanSpec, limits: Limits) -> int:
    """Bytes of a step's task table at most."""
    tasks = max_tiles(spec, limits) * spec.geometry.num_kv_heads + max_split_tasks(spec, limits)
    merges = max_split_tasks(spec, limits)
    per_line = layout.ALIGN // layout.TASK.itemsize
    fill = spec.device.num_cores * (per_line - 1)  # slices begin on whole lines
    return layout.section_offsets(
        spec.device.num_cores, limits.max_rows, tasks + fill, merges + fill
    )[-1]


def partial_rows(spec: PlanSpec, limits: Limits) -> int:
    """Rows of partial results of a step at most."""
    rows = max(spec.device.tile_rows[-1], spec.geometry.group_size)
    return max_split_tasks(spec, limits) * rows


@dataclass(frozen=True, slots=True)
class Tables:
    """What a launch is given of a step's plan.

    Attributes:
        table: uint8, begins with the completed task table.
        partials: fp32, room for its partial results.
        is_persistent: both are the buffers of every step.
        splits: this table has partial results.
    """

    table: torch.Tensor
    partials: torch.Tensor
    is_persistent: bool
    splits: bool


class TableBuffers:
    """Table and partial results of one plan spec.

    Args:
        spec: what tables are planned for.
        limits: of steps that a graph may replay; a longer step gets tensors of its own.
        device: of the tensors.
    """

    def __init__(self, spec: PlanSpec, limits: Limits, device: torch.device) -> None:
        self._row_floats = spec.geometry.head_dim + PARTIAL_TAIL
        self._device = device
        self.table = torch.zeros(table_bytes(spec, limits), dtype=torch.uint8, device=device)
        num_floats = partial_rows(spec, limits) * self._row_floats
        self.partials = torch.empty(num_floats, dtype=torch.float32, device=device)

    def put(self, table: Table) -> Tables:
        """Write a step's completed table; in stream order, without waiting."""
        header = layout.sections(table).header
        num_floats = int(header["num_partial_rows"]) * self._row_floats
        fits = len(table) <= self.table.numel() and num_floats <= self.partials.numel()
        source = _staged(torch.from_numpy(table), self._device)
        if fits:
            self.table[: len(table)].copy_(source, non_blocking=True)
            return Tables(self.table, self.partials, True, num_floats > 0)
        own = source.to(self._device, non_blocking=True)
        partials = torch.empty(num_floats, dtype=torch.float32, device=self._device)
        return Tables(own, partials, False, num_floats > 0)


class RowBuffers:
    """Lengths and block table of the rows of a KV cache group.

    Args:
        max_rows: rows of a step at most.
        max_blocks: blocks of a row at most.
        device: of the tensors.
    """

    def __init__(self, max_rows: int, max_blocks: int, device: torch.device) -> None:
        self.seq_lens = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self.block_table = torch.zeros(max_rows, max_blocks, dtype=torch.int32, device=device)
        self._device = device

    def put(
        self,
        seq_lens: torch.Tensor,
        query_lens: np.ndarray[tuple[int], np.dtype[np.int32]],
        block_table: torch.Tensor,
    ) -> None:
        """Write a step's rows; in stream order, without waiting.

        Args:
            seq_lens: ``[num_rows]`` on the device, exact.
            query_lens: ``[num_rows]`` int32 on the host. A row that only fills a graph's batch up
                may have more queries than tokens; its length becomes that of its queries.
            block_table: ``[>= num_rows, width]`` on the device; a wider one is cut, since what is
                beyond a row's longest context is never read.

        Raises:
            ValueError: more rows than the buffers hold.
        """
        num_rows = len(query_lens)
        if num_rows > len(self.seq_lens):
            raise ValueError(
                f"a step of {num_rows} rows exceeds the {len(self.seq_lens)} that the attention "
                f"buffers were made for"
            )
        least = _staged(torch.from_numpy(np.ascontiguousarray(query_lens)), self._device)
        lens = self.seq_lens[:num_rows]
        lens.copy_(least, non_blocking=True)
        torch.maximum(lens, seq_lens[:num_rows].to(torch.int32), out=lens)
        rows = min(num_rows, block_table.shape[0])
        width = min(block_table.shape[1], self.block_table.shape[1])
        self.block_table[:rows, :width].copy_(block_table[:rows, :width], non_blocking=True)
        if rows < num_rows:
            self.block_table[rows:num_rows].zero_()


def _staged(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """In pinned memory for a device. torch frees it when the copy that reads it has run."""
    return tensor if device.type == "cpu" else tensor.pin_memory()
