"""From a step of a trace to a launch: which tiles each core gets, and what stands beside them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.plan_traces import Step
from vllm_xyserve.plan import Geometry, Planner, Policy, view
from vllm_xyserve.plan.ascend import predict
from vllm_xyserve.plan.ascend.chip import Chip, Memory
from vllm_xyserve.plan.ascend.counts import Form, Heads
from vllm_xyserve.plan.ascend.predict import Merging, Tiles
from vllm_xyserve.plan.layout import Sections
from vllm_xyserve.plan.spec import NPU

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Launch:
    """One attention kernel: its form, tiles and merges."""

    form: Form
    heads: Heads
    tiles: Tiles
    merging: Merging

    def seconds(self, device: Chip, memory: Memory) -> float:
        return predict.attention_seconds(
            device, memory, self.form, self.heads, self.tiles, self.merging
        )

    def core_seconds(self, device: Chip, memory: Memory) -> npt.NDArray[np.float64]:
        """Work of each core if it had the chip for itself. [num_cores]."""
        work = predict.attention_work(device, memory, self.form, self.heads, self.tiles)
        seconds: npt.NDArray[np.float64] = np.bincount(
            work.core, work.seconds, device.num_cores
        ).astype(np.float64)
        return seconds


def plan(device: Chip, geometry: Geometry, policy: Policy, step: Step) -> Launch:
    """The step's task table as a launch."""
    planner = Planner(NPU.with_cores(device.num_cores), geometry, policy)
    lens = np.asarray(step.query_lens, np.int32), np.asarray(step.key_lens, np.int32)
    table = view(planner.plan(*lens))
    tiles = tiles_of(table, geometry)
    form = predict.select_form(
        device.num_cores,
        geometry.group_size,
        NPU.tile_rows[-1],
        max(step.key_lens),
        decode_only=max(step.query_lens) == 1,
        splits=bool((table.tasks["num_splits"] > 1).any()),
    )
    heads = Heads(geometry.head_dim, geometry.element_bytes)
    return Launch(form, heads, tiles, merging_of(table, geometry))


def _owners(begin: npt.NDArray[np.int32], real: npt.NDArray[np.bool_]) -> Ints:
    """Core of each real entry of sliced lists."""
    owner = np.repeat(np.arange(len(begin) - 1, dtype=np.int64), np.diff(begin))
    return owner[real]


def tiles_of(table: Sections, geometry: Geometry) -> Tiles:
    """Tasks of a table in the order of the cores' lists."""
    real = table.tasks["num_queries"] > 0
    tasks = table.tasks[real]
    rows = tasks["num_queries"].astype(np.float64) * geometry.group_size
    keys = (tasks["key_end"] - tasks["key_begin"]).astype(np.float64)
    num_heads = tasks["num_heads"].astype(np.float64)
    # Tiles of one request share its keys: HBM gives each of them once per KV head.
    segment = tasks["segment"].astype(np.int64)
    num_segments = len(table.segments)
    read = np.bincount(segment, keys * num_heads, num_segments)
    once = np.zeros(num_segments)
    np.maximum.at(once, segment, tasks["key_end"].astype(np.float64))
    share = once * geometry.num_kv_heads / np.maximum(read, 1)
    return Tiles(
        core=_owners(table.core_begin, real),
        rows=rows,
        keys=keys,
        num_heads=num_heads,
        cold=np.minimum(share, 1)[segment],
        is_split=tasks["num_splits"] > 1,
    )


def merging_of(table: Sections, geometry: Geometry) -> Merging:
    """Merges of a table in the order of the cores' lists."""
    real = table.merges["num_queries"] > 0
    merges = table.merges[real]
    rows = merges["num_queries"].astype(np.float64) * geometry.group_size * merges["num_heads"]
    return Merging(_owners(table.merge_begin, real), rows, merges["num_splits"].astype(np.float64))


def stages(step: Step, verify_len: int = 0) -> list[Step]:
    """The step as stage by stage kernels take it: prefill, verify and decode rows apart.

    verify_len: query length of verify rows, 0 if there are none.
    """
    parts: dict[str, list[tuple[int, int]]] = {"prefill": [], "verify": [], "decode": []}
    for query_len, key_len in zip(step.query_lens, step.key_lens, strict=True):
        kind = {1: "decode", verify_len: "verify"}.get(query_len, "prefill")
        parts[kind].append((query_len, key_len))
    return [
        Step(tuple(q for q, _ in rows), tuple(k for _, k in rows))
        for rows in parts.values()
        if rows
    ]


def with_verify(step: Step, verify_len: int) -> Step:
    """Every second decode row verifies verify_len tokens."""
    query_lens, key_lens = list(step.query_lens), list(step.key_lens)
    decodes = [i for i, q in enumerate(query_lens) if q == 1]
    for i in decodes[::2]:
        query_lens[i] = verify_len
        key_lens[i] += verify_len - 1
    return Step(tuple(query_lens), tuple(key_lens))
