"""Batches of the attention benchmark: one set of keys and values on our and the peer's pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vllm_xyserve.attention import tables
from vllm_xyserve.ops import attention
from vllm_xyserve.ops.reference.attention import AttentionParams, paged_attention
from vllm_xyserve.plan import Geometry, Planner, complete

Rows = list[tuple[int, int]]
BLOCK_SIZE = 128  # vLLM's default on the CPU


@dataclass(frozen=True, slots=True)
class Heads:
    """Head geometry: 9/3 of 64 is SmolLM2-135M's, 32/8 of 128 that of 8B models."""

    num_heads: int
    num_kv_heads: int
    head_size: int

    def geometry(self, element_bytes: int = 2) -> Geometry:
        group_size = self.num_heads // self.num_kv_heads
        return Geometry(self.num_kv_heads, group_size, self.head_size, element_bytes)


def num_pairs(rows: Rows) -> int:
    """Query-key pairs that causal attention needs."""
    return sum(q * (k - q) + q * (q + 1) // 2 for q, k in rows)


class Batch:
    """One batch on plain, on our and on the peer's pages."""

    def __init__(
        self, heads: Heads, rows: Rows, isa: str, num_threads: int, dtype: torch.dtype
    ) -> None:
        self.heads, self.rows, self.isa = heads, rows, isa
        self.scale = heads.head_size**-0.5
        self.num_blocks = [-(-key_len // BLOCK_SIZE) for _, key_len in rows]
        total = sum(self.num_blocks)
        self.block_table = torch.zeros(len(rows), max(self.num_blocks), dtype=torch.int32)
        order = torch.randperm(total, dtype=torch.int32)
        for row, count in enumerate(self.num_blocks):
            self.block_table[row, :count], order = order[:count], order[count:]
        starts = torch.tensor([0] + [q for q, _ in rows]).cumsum(0)
        self.query_start_loc = starts.int()
        self.seq_lens = torch.tensor([k for _, k in rows], dtype=torch.int32)
        shape = (total * BLOCK_SIZE, heads.num_kv_heads, heads.head_size)
        self.key, self.value = (torch.randn(shape).to(dtype) for _ in range(2))
        self.query = torch.randn(int(starts[-1]), heads.num_heads, heads.head_size).to(dtype)
        self.out = torch.full_like(self.query, torch.nan)
        self.peer_out = torch.full_like(self.query, torch.nan)
        pages = (total, heads.num_kv_heads, BLOCK_SIZE, 2 * heads.head_size)
        self.kv_cache, self.peer_cache = (torch.zeros(pages).to(dtype) for _ in range(2))
        slots = torch.arange(total * BLOCK_SIZE)
        attention.kv_write(self.key, self.value, self.kv_cache, slots)
        self.write_peer(self.key, self.value, slots)
        geometry = heads.geometry(dtype.itemsize)
        table = Planner(tables.device().with_cores(num_threads), geometry).plan(
            [q for q, _ in rows], [k for _, k in rows]
        )
        complete(table, list(range(len(rows))), self.query_start_loc.numpy())
        self.table = torch.from_numpy(table)
        self.metadata = self._peer_metadata()

    def _halves(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The peer's pages as CPUAttentionBackendImpl.forward cuts them."""
        blocks, heads, size, _ = self.peer_cache.shape
        keys, values = self.peer_cache.view(blocks, heads, 2 * size, -1).chunk(2, dim=2)
        return keys, values

    def write_peer(self, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        from vllm import _custom_ops as ops

        ops.cpu_attn_reshape_and_cache(key, value, *self._halves(), slots, self.isa)

    def _peer_metadata(self) -> torch.Tensor:
        from vllm import _custom_ops as ops

        return ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(self.rows),
            num_heads=self.heads.num_heads,
            num_kv_heads=self.heads.num_kv_heads,
            head_dim=self.heads.head_size,
            seq_lens=self.seq_lens,
            dtype=self.query.dtype,
            query_start_loc=self.query_start_loc,
            causal=True,
            sliding_window_size=-1,
            isa=self.isa,
            enable_kv_split=True,
        )

    def ours(self) -> Callable[[], None]:
        args = (self.out, self.query, self.kv_cache, self.block_table, self.seq_lens)
        op = attention.meta_attention
        return lambda: op(*args, self.query_start_loc, self.table, self.scale)

    def peer(self) -> Callable[[], None]:
        from vllm import _custom_ops as ops

        keys, values = self._halves()
        return lambda: ops.cpu_attention_with_kv_cache(
            query=self.query,
            key_cache=keys,
            value_cache=values,
            output=self.peer_out,
            query_start_loc=self.query_start_loc,
            seq_lens=self.seq_lens,
            scale=self.scale,
            causal=True,
            alibi_slopes=None,
            sliding_window=-1,
            block_table=self.block_table,
            softcap=0.0,
            scheduler_metadata=self.metadata,
            s_aux=None,
        )

    def sdpa(self) -> Callable[[], None]:
        """torch on keys and values that are already gathered and repeated."""
        inputs: list[
            tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, bool]
        ] = []
        group = self.heads.num_heads // self.heads.num_kv_heads
        starts = self.query_start_loc.tolist()
        for row, (query_len, key_len) in enumerate(self.rows):
            blocks = self.block_table[row, : self.num_blocks[row]].long()
            slots = (blocks.unsqueeze(1) * BLOCK_SIZE + torch.arange(BLOCK_SIZE)).flatten()
            key, value = (
                tensor[slots[:key_len]].transpose(0, 1).repeat_interleave(group, 0).unsqueeze(0)
                for tensor in (self.key, self.value)
            )
            query = self.query[starts[row] : starts[row + 1]].transpose(0, 1).unsqueeze(0)
            mask = None
            if 1 < query_len < key_len:
                mask = torch.ones(query_len, key_len).bool().tril(key_len - query_len)
            inputs.append((query, key, value, mask, query_len == key_len))

        def call() -> None:
            for query, key, value, mask, causal in inputs:
                F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal)

        return call

    def check(self) -> None:
        """Both answers against the fp32 twin, before anything is timed."""
        shape = (-1, BLOCK_SIZE, self.heads.num_kv_heads, self.heads.head_size)
        keys, values = (t.view(shape).transpose(1, 2) for t in (self.key, self.value))
        want = torch.empty(self.query.shape)
        params = AttentionParams(self.scale)
        rows = (self.query_start_loc, self.seq_lens, self.block_table)
        paged_attention(want, self.query, keys, values, *rows, True, params)
        self.ours()()
        self.peer()()
        for name, out in (("ours", self.out), ("peer", self.peer_out)):
            error = (out.float() - want).abs().max().item()
            if not error < 3e-2:
                raise AssertionError(f"{name}: {self.heads} {self.rows[:3]}: off by {error}")
