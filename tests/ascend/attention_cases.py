"""Batches for the Meta-Attention kernels: tables by the project's planner, data, fp64 reference."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch

from vllm_xyserve import plan
from vllm_xyserve.plan import layout
from vllm_xyserve.plan.spec import MAX_INT32, NPU, Geometry, Policy

PAGE: Final = 128
THREE_STAGE, FOUR_STAGE, TWO_STAGE = 0, 1, 2
FORMS: Final = {"three": THREE_STAGE, "four": FOUR_STAGE, "two": TWO_STAGE}
NAN: Final = float("nan")


@dataclass(frozen=True, slots=True)
class Case:
    """One launch.

    late: tokens by which the lengths on the device fall short of those planned. pages: physical
    pages that the full pages of all rows share, None for one each. first_block: what lies in front
    of them, never touched. trees: rows with a tree mask.
    """

    query_lens: tuple[int, ...]
    key_lens: tuple[int, ...]
    form: int = FOUR_STAGE
    num_kv_heads: int = 2
    group_size: int = 4
    head_dim: int = 128
    dtype: torch.dtype = torch.bfloat16
    cores: int = 2
    window: int = 0
    causal: bool = True
    softcap: float = 0.0
    lse: bool = False
    trees: tuple[int, ...] = ()
    late: int = 0
    splits: bool = True
    invariant: bool = False
    dealing: str = "fit"
    min_split_keys: int = 128
    tile_rows: tuple[int, ...] = (16, 32, 64, 128)
    pages: int | None = None
    first_block: int = 0
    seed: int = 0

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.group_size


@dataclass(slots=True)
class Batch:
    """Everything that a launch reads and writes, and what it should have written."""

    case: Case
    table: np.ndarray
    tensors: dict[str, torch.Tensor]
    maps: list[mmap.mmap] = field(default_factory=list)
    masks: list[np.ndarray | None] = field(default_factory=list)
    block_lists: list[list[int]] = field(default_factory=list)
    expected: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    @property
    def lengths(self) -> list[int]:
        """Key lengths on the device."""
        return [
            max(length - self.case.late, query)
            for query, length in zip(self.case.query_lens, self.case.key_lens, strict=True)
        ]


def make_table(case: Case, mask_offsets: list[int]) -> np.ndarray:
    """The completed task table; rows keep their order."""
    splitting = case.form != THREE_STAGE and case.splits
    device = replace(
        NPU,
        num_cores=case.cores,
        # Nearly free cuts: small batches are split as large ones would be.
        cost=replace(NPU.cost, task_ns=1.0, partial_ns=0.01),
        tile_rows=case.tile_rows,
        min_split_keys=case.min_split_keys if splitting else MAX_INT32,
    )
    geometry = Geometry(
        case.num_kv_heads, case.group_size, case.head_dim, window=case.window, causal=case.causal
    )
    policy = Policy(dealing=case.dealing, invariant=case.invariant and splitting)
    planner = plan.Planner(device, geometry, policy)
    table = planner.plan(case.query_lens, case.key_lens, mask_offsets=mask_offsets)
    starts = np.concatenate([[0], np.cumsum(case.query_lens)])
    plan.complete(table, np.arange(len(case.query_lens)), starts)
    return table


def make_batch(case: Case) -> Batch:
    """Fresh random data. Unused slots of pages, outputs and workspaces hold NaN."""
    generator = torch.Generator().manual_seed(case.seed)
    masks, words, offsets = _tree_masks(case)
    table = make_table(case, offsets)
    batch = Batch(case, table, {}, masks=masks)
    _place_pages(batch, generator)
    tokens = sum(case.query_lens)
    shape = (tokens, case.num_heads, case.head_dim)
    # One row more on both sides: nothing outside may be written.
    batch.tensors["query"] = torch.randn(shape, generator=generator).to(case.dtype)
    batch.tensors["out"] = torch.full((tokens + 2, *shape[1:]), NAN).to(case.dtype)
    batch.tensors["seq_lens"] = torch.tensor(batch.lengths, dtype=torch.int32)
    batch.tensors["table"] = torch.from_numpy(table)
    partial_rows = int(plan.view(table).header["num_partial_rows"])
    batch.tensors["partials"] = torch.full((max(partial_rows, 1), case.head_dim + 16), NAN)
    if words.size:
        batch.tensors["tree_mask"] = torch.from_numpy(words.view(np.int64))
    if case.lse:
        batch.tensors["lse"] = torch.full((tokens + 2, case.num_heads), NAN)
    return batch


def _tree_masks(case: Case) -> tuple[list[np.ndarray | None], np.ndarray, list[int]]:
    """Per row a bool [q, q] mask or None, their bits as 64-bit words, and each row's offset."""
    rng = np.random.default_rng(case.seed)
    masks: list[np.ndarray | None] = []
    words: list[np.ndarray] = []
    offsets: list[int] = []
    used = 0
    for row, length in enumerate(case.query_lens):
        if row not in case.trees:
            masks.append(None)
            offsets.append(-1)
            continue
        parent = [int(rng.integers(-1, token)) for token in range(length)]
        mask = np.eye(length, dtype=bool)
        for token in range(length):
            if parent[token] >= 0:
                mask[token] |= mask[parent[token]]
        bits = np.zeros((length, -(-length // 64) * 64), dtype=np.uint8)
        bits[:, :length] = mask
        packed = np.packbits(bits, axis=1, bitorder="little").view("<u8").reshape(-1)
        masks.append(mask)
        offsets.append(used)
        words.append(packed)
        used += packed.size
    return masks, np.concatenate(words) if words else np.zeros(0, "<u8"), offsets


def _place_pages(batch: Batch, generator: torch.Generator) -> None:
    """Shuffled pages: full ones, shared if the case says so, and a last one of each row's own."""
    case = batch.case
    counts = [-(-length // PAGE) for length in case.key_lens]
    full = sum(max(count - 1, 0) for count in counts)
    shared = full if case.pages is None else min(full, case.pages)
    num_blocks = case.first_block + shared + len(counts) + 1
    order = (torch.randperm(num_blocks - case.first_block, generator=generator)).tolist()
    order = [case.first_block + block for block in order]
    shape = (num_blocks, PAGE, case.num_kv_heads, case.head_dim)
    caches = [_cache(batch, shape) for _ in range(2)]
    for cache in caches:
        cache[case.first_block :] = NAN
    block_table = torch.full((len(counts), max(*counts, 1)), -1, dtype=torch.int32)
    next_full = 0
    for row, count in enumerate(counts):
        blocks = []
        for _ in range(count - 1):
            blocks.append(order[len(counts) + next_full % max(shared, 1)])
            next_full += 1
        if count:
            blocks.append(order[row])
        batch.block_lists.append(blocks)
        block_table[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        length = batch.lengths[row]
        for cache in caches:
            for index, block in enumerate(blocks):
                used = min(max(length - index * PAGE, 0), PAGE)
                filled = not torch.isnan(cache[block, 0, 0, 0].float())
                if used and not filled:
                    cache[block, :used] = torch.randn((used, *shape[2:]), generator=generator).to(
                        case.dtype
                    )
    batch.tensors["key_cache"], batch.tensors["value_cache"] = caches
    batch.tensors["block_table"] = block_table


def _cache(batch: Batch, shape: tuple[int, ...]) -> torch.Tensor:
    """A cache in anonymous memory: what is never touched takes no room."""
    size = int(np.prod(shape, dtype=np.int64)) * 2
    memory = mmap.mmap(-1, size)
    batch.maps.append(memory)
    return torch.frombuffer(memory, dtype=torch.int16).view(batch.case.dtype).view(shape)


def reset(batch: Batch) -> None:
    """Takes back what a launch wrote."""
    for name in ("out", "lse", "partials"):
        if name in batch.tensors:
            batch.tensors[name].fill_(NAN)


def reference(batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """fp64 output [tokens, heads, dim], LSE [tokens, heads], and the bound on the output's error.

    The bound: half a unit of the last place for each probability and for the result, and 1e-4 for
    all that is done in fp32.
    """
    case = batch.case
    tokens = sum(case.query_lens)
    out = torch.zeros((tokens, case.num_heads, case.head_dim), dtype=torch.float64)
    lse = torch.full((tokens, case.num_heads), float("-inf"), dtype=torch.float64)
    bound = torch.zeros_like(out)
    unit = 2.0**-8 if case.dtype == torch.bfloat16 else 2.0**-11
    start = 0
    for row, (count, length) in enumerate(zip(case.query_lens, batch.lengths, strict=True)):
        rows = slice(start, start + count)
        start += count
        if count == 0 or length == 0:
            continue
        keys, values = (_gather(batch, name, row, length) for name in ("key_cache", "value_cache"))
        hidden = hidden_keys(case, count, length, batch.masks[row])
        for head in range(case.num_kv_heads):
            group = slice(head * case.group_size, (head + 1) * case.group_size)
            query = batch.tensors["query"][rows, group].to(torch.float64).transpose(0, 1)
            scores = query @ keys[:, head].T * case.head_dim**-0.5
            if case.softcap:
                scores = case.softcap * torch.tanh(scores / case.softcap)
            scores = scores.masked_fill(hidden, float("-inf"))
            lse[rows, group] = torch.logsumexp(scores, dim=-1).transpose(0, 1)
            weights = torch.nan_to_num(torch.softmax(scores, dim=-1), nan=0.0)
            out[rows, group] = (weights @ values[:, head]).transpose(0, 1)
            spread = (weights @ values[:, head].abs()).transpose(0, 1)
            tiny = 3e-8 * float(values[:, head].abs().sum(0).max()) if unit < 2**-8 else 0.0
            bound[rows, group] = (unit + 1e-4) * spread + tiny + 1e-6
    return out, lse, bound + unit * out.abs()


def hidden_keys(case: Case, count: int, length: int, mask: np.ndarray | None) -> torch.Tensor:
    """Bool [count, length]: what each query must not see."""
    position = torch.arange(length - count, length).unsqueeze(1)
    key = torch.arange(length).unsqueeze(0)
    hidden = torch.zeros((count, length), dtype=torch.bool)
    if case.causal:
        hidden |= key > position
    if case.window:
        hidden |= (position - key).abs() >= case.window
    if mask is not None:
        hidden[:, length - count :] |= ~torch.from_numpy(mask)
    return hidden


def _gather(batch: Batch, name: str, row: int, length: int) -> torch.Tensor:
    blocks = batch.block_lists[row][: -(-length // PAGE)]
    pages = batch.tensors[name][blocks].to(torch.float64)
    return pages.flatten(0, 1)[:length]


def split_tasks(batch: Batch) -> int:
    """Tasks of the table that write partial results."""
    tasks = plan.view(batch.table).tasks
    return int(((tasks["partial"] >= 0) & (tasks["num_queries"] > 0)).sum())


def header(batch: Batch) -> Any:
    return layout.sections(batch.table).header
