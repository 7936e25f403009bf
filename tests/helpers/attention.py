"""A paged batch for Meta-Attention: random rows, shuffled pages, NaN where nothing was written."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch

from vllm_xyserve.ops import attention
from vllm_xyserve.ops.reference import pages
from vllm_xyserve.ops.reference.attention import AttentionParams, paged_attention
from vllm_xyserve.plan import CPU, Geometry, Planner, Policy, complete


@dataclass(frozen=True, slots=True)
class Layer:
    """What a layer fixes: heads, sizes, dtype, and the options of the scores."""

    num_heads: int = 9
    num_kv_heads: int = 3
    head_size: int = 64
    block_size: int = 32
    dtype: torch.dtype = torch.float32
    window: int = 0
    causal: bool = True
    softcap: float = 0.0
    scale: float = 0.125
    alibi_slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None


@dataclass(slots=True)
class Batch:
    """rows: (query length, context length) each. tree_mask: bool per row or None."""

    layer: Layer
    rows: list[tuple[int, int]]
    query: torch.Tensor
    kv_cache: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    tree_masks: list[torch.Tensor | None] = field(default_factory=list)


def make_batch(layer: Layer, rows: list[tuple[int, int]], rng: torch.Generator) -> Batch:
    """Random queries, keys and values; unwritten slots and unused blocks hold NaN."""
    size = layer.block_size
    num_blocks = [-(-length // size) for _, length in rows]
    total = sum(num_blocks) + 2
    order = torch.randperm(total, generator=rng)[: sum(num_blocks)]
    shape = (total, layer.num_kv_heads, size, 2 * layer.head_size)
    kv_cache = torch.full(shape, math.nan, dtype=layer.dtype)
    table = torch.full((len(rows), max(num_blocks, default=0) + 1), -1, dtype=torch.int32)
    at = 0
    for row, (_, length) in enumerate(rows):
        blocks = order[at : at + num_blocks[row]]
        at += num_blocks[row]
        table[row, : len(blocks)] = blocks.int()
        slots = (blocks.unsqueeze(1) * size + torch.arange(size)).flatten()[:length]
        kv = torch.randn(2, length, layer.num_kv_heads, layer.head_size, generator=rng)
        pages.write(kv_cache, kv[0].to(layer.dtype), kv[1].to(layer.dtype), slots)
    starts = torch.tensor([0] + [length for length, _ in rows]).cumsum(0).int()
    query = torch.randn(int(starts[-1]), layer.num_heads, layer.head_size, generator=rng)
    return Batch(
        layer=layer,
        rows=rows,
        query=query.to(layer.dtype),
        kv_cache=kv_cache,
        block_table=table,
        seq_lens=torch.tensor([length for _, length in rows], dtype=torch.int32),
        query_start_loc=starts,
    )


def plan(
    batch: Batch,
    num_cores: int = 2,
    invariant: bool = False,
    levels: int = 5,
    tile_rows: tuple[int, ...] = CPU.tile_rows,
) -> torch.Tensor:
    """The completed task table of the batch."""
    layer = batch.layer
    geometry = Geometry(
        layer.num_kv_heads,
        layer.num_heads // layer.num_kv_heads,
        layer.head_size,
        layer.dtype.itemsize,
        layer.window,
        layer.causal,
    )
    policy = Policy(invariant=invariant, levels=levels)
    offsets, at = [], 0
    for mask in batch.tree_masks:
        offsets.append(-1 if mask is None else at)
        at += 0 if mask is None else len(mask) * -(-len(mask) // 64)
    table = Planner(replace(CPU, num_cores=num_cores, tile_rows=tile_rows), geometry, policy).plan(
        [query for query, _ in batch.rows],
        [length for _, length in batch.rows],
        mask_offsets=offsets or None,
    )
    complete(table, list(range(len(batch.rows))), batch.query_start_loc.numpy())
    return torch.from_numpy(table)


def pack_tree(masks: list[torch.Tensor | None]) -> torch.Tensor | None:
    """Bit rows of 64-bit words, one mask after the other."""
    words: list[int] = []
    for mask in masks:
        for row in [] if mask is None else mask.tolist():
            for begin in range(0, len(row), 64):
                bits = sum(1 << i for i, seen in enumerate(row[begin : begin + 64]) if seen)
                words.append(bits - (1 << 64) if bits >> 63 else bits)
    return torch.tensor(words, dtype=torch.int64) if words else None


def run(batch: Batch, table: torch.Tensor | None = None) -> torch.Tensor:
    """The operation's answer; out starts as NaN."""
    layer = batch.layer
    out = torch.full_like(batch.query, math.nan)
    attention.meta_attention(
        out,
        batch.query,
        batch.kv_cache,
        batch.block_table,
        batch.seq_lens,
        batch.query_start_loc,
        plan(batch) if table is None else table,
        layer.scale,
        layer.softcap,
        layer.alibi_slopes,
        layer.sinks,
        pack_tree(batch.tree_masks),
    )
    return out


def expected(batch: Batch, magnitude: bool = False) -> torch.Tensor:
    """The fp32 twin, rounded nowhere. magnitude: of |values| instead, to scale error bounds."""
    layer = batch.layer
    keys, values = pages.unpack(batch.kv_cache)
    out = torch.full(batch.query.shape, math.nan)
    params = AttentionParams(
        layer.scale, layer.window or None, layer.softcap, layer.alibi_slopes, layer.sinks
    )
    paged_attention(
        out,
        batch.query,
        keys,
        values.abs() if magnitude else values,
        batch.query_start_loc,
        batch.seq_lens,
        batch.block_table,
        layer.causal,
        params,
        batch.tree_masks or None,
    )
    return out


# What one weight may be off, relative: fp32 exponential and products (scores up to 30, so a score
# off by 2e-6), and for the bf16 dot product the fit of 2^x and the weight's rounding.
WEIGHT_ERROR = {torch.float32: 1e-5, torch.float16: 1e-5, torch.bfloat16: 1e-5}
DOT_WEIGHT_ERROR = 2.0**-9 + 8e-5 + 1e-5
ROUNDING = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


Twin = tuple[torch.Tensor, torch.Tensor]
"""The twin's answer, and that of |values|."""


def twin(batch: Batch) -> Twin:
    return expected(batch), expected(batch, magnitude=True)


def assert_matches(
    batch: Batch, out: torch.Tensor, bf16_dot: bool = False, known: Twin | None = None
) -> None:
    """Out is the twin within the derived bound: weights off by w move the answer at most by
    2 w * attention(|values|) (numerator and sum), then it is rounded once."""
    want, scale = known or twin(batch)
    weight = DOT_WEIGHT_ERROR if bf16_dot else WEIGHT_ERROR[batch.layer.dtype]
    bound = 2 * weight * scale + ROUNDING[batch.layer.dtype] * want.abs() + 1e-6
    error = (out.float() - want).abs()
    worst = (error / bound).max().item() if error.numel() else 0.0
    assert bool((error <= bound).all()), f"error is {worst:.3g} times the bound"
