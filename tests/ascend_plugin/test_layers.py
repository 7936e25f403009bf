"""The layers of a small Llama through the NPU classes: prompts in chunks, decodes, a mixed step.

What they give is compared with the same layers in plain fp32 over whole sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.ascend_plugin import world
from tests.ascend_plugin.test_attention import (
    BLOCK,
    BLOCKS,
    DIM,
    HEADS,
    KV_HEADS,
    Layer,
    context,
    make_builder,
    ours,
)
from vllm_xyserve.compat import ascend_patches
from vllm_xyserve.ops import ascend as ops

pytestmark = pytest.mark.usefixtures("npu")

HIDDEN, INTER, LAYERS = HEADS * DIM, 384, 2
QKV = (HEADS + 2 * KV_HEADS) * DIM
__all__ = ["context"]


@pytest.fixture(scope="module")
def config() -> Iterator[Any]:
    from vllm_xyserve.linear import ascend

    with world.using(world.make_config(world.NATIVE)) as found:
        ascend.install(found)
        yield found
        ascend_patches.wrap_unquantized(lambda layer: False, ops.linear)
        ascend_patches.replace_schemes({})


def norm(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype)


def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """``[tokens, heads, DIM]``."""
    angles = positions[:, None].float() * 10000 ** (-torch.arange(0, DIM, 2) / DIM)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.to(x.dtype)


class Linear(torch.nn.Module):
    """A layer of vllm-ascend's method, which is ours here."""

    def __init__(self, weight: torch.Tensor, name: str) -> None:
        super().__init__()
        from vllm_ascend.ops.linear import AscendUnquantizedLinearMethod

        self.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
        self.prefix, self.method = name, AscendUnquantizedLinearMethod()
        self.method.process_weights_after_loading(self)
        assert self.xy_is_ours

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.method.apply(self, x)
        return out


class Block:
    """One decoder layer; `plain` is the same in fp32 over a whole sequence."""

    def __init__(self, index: int) -> None:
        self.weights = {
            name: (torch.randn(shape) / shape[1] ** 0.5).bfloat16()
            for name, shape in {
                "qkv": (QKV, HIDDEN),
                "o": (HIDDEN, HIDDEN),
                "gate_up": (2 * INTER, HIDDEN),
                "down": (HIDDEN, INTER),
            }.items()
        }
        self.name = f"model.layers.{index}.self_attn.attn"
        self.linears = {n: Linear(w, f"layers.{index}.{n}") for n, w in self.weights.items()}
        self.impl = ours()
        shape = (BLOCKS, BLOCK, KV_HEADS, DIM)
        self.cache = tuple(torch.full(shape, float("nan")).bfloat16() for _ in range(2))

    def __call__(self, x: torch.Tensor, positions: torch.Tensor, metadata: Any) -> torch.Tensor:
        q, k, v = self._split(self.linears["qkv"](norm(x)), positions)
        out = torch.full_like(q, float("nan"))
        self.impl.forward(Layer(self.name, self.impl), q, k, v, self.cache, metadata, out)
        x = x + self.linears["o"](out.flatten(1))
        gate, up = self.linears["gate_up"](norm(x)).chunk(2, dim=-1)
        return x + self.linears["down"](torch.nn.functional.silu(gate) * up)

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        w = {name: weight.float() for name, weight in self.weights.items()}
        positions = torch.arange(len(x))
        q, k, v = self._split(norm(x) @ w["qkv"].T, positions)
        k, v = (side.repeat_interleave(HEADS // KV_HEADS, 1) for side in (k, v))
        out = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), is_causal=True
        )
        x = x + out.transpose(0, 1).flatten(1) @ w["o"].T
        gate, up = (norm(x) @ w["gate_up"].T).chunk(2, dim=-1)
        return x + (torch.nn.functional.silu(gate) * up) @ w["down"].T

    @staticmethod
    def _split(qkv: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = qkv.view(len(qkv), -1, DIM).split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        return rotate(q, positions), rotate(k, positions), v.contiguous()


def step_metadata(rows: list[tuple[int, int, int]], tables: torch.Tensor) -> tuple[Any, Any]:
    """What the runner would hand over for ``(request, first token, end)`` rows."""
    from vllm_ascend.attention.attention_v1 import AscendAttentionState
    from vllm_ascend.attention.utils import AscendCommonAttentionMetadata

    starts = torch.tensor([0, *np.cumsum([end - first for _, first, end in rows])]).int()
    lens = torch.tensor([end for *_, end in rows], dtype=torch.int32)
    block_table = tables[[request for request, *_ in rows]]
    positions = torch.cat([torch.arange(first, end) for _, first, end in rows])
    owner = torch.cat([torch.full((end - first,), row) for row, (_, first, end) in enumerate(rows)])
    slots = block_table[owner, positions // BLOCK] * BLOCK + positions % BLOCK
    common = AscendCommonAttentionMetadata(
        query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=lens, seq_lens_cpu=lens,
        _seq_lens_cpu=lens, num_reqs=len(rows), num_actual_tokens=int(starts[-1]),
        max_query_len=int(starts.diff().max()), max_seq_len=int(lens.max()),
        block_table_tensor=block_table, slot_mapping=slots.int(), causal=True,
        attn_state=AscendAttentionState.ChunkedPrefill,
    )  # fmt: skip
    return common, positions


STEPS = [
    [(0, 0, 200)],  # a prompt's first chunk
    [(1, 0, 131), (0, 200, 330)],  # another prompt, and the rest of the first
    [(0, 330, 331), (1, 131, 132)],  # decodes
    [(1, 132, 137), (0, 331, 332), (2, 0, 90)],  # verify, decode and prefill in one step
]


def test_steps_match_whole_sequences(
    config: Any, context: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(11)
    blocks = [Block(index) for index in range(LAYERS)]
    layers = {block.name: Layer(block.name, block.impl) for block in blocks}
    builder = make_builder(config, layers, monkeypatch)
    tables = torch.randperm(BLOCKS - 1)[:9].view(3, 3).int() + 1
    inputs = [torch.randn(count, HIDDEN).bfloat16() for count in (332, 137, 90)]
    expected = [x.float() for x in inputs]
    for block in blocks:
        expected = [block.plain(x) for x in expected]
    before = ops.calls["linear"]
    for rows in STEPS:
        common, positions = step_metadata(rows, tables)
        metadata = builder.build(0, common)
        hidden = torch.cat([inputs[request][first:end] for request, first, end in rows])
        for block in blocks:
            hidden = block(hidden, positions, metadata)
        want = torch.cat([expected[request][first:end] for request, first, end in rows])
        world.close(hidden, want, 0.12)
        error = (hidden.float() - want).norm() / want.norm()
        assert error < 0.01
    assert [block.impl.num_calls for block in blocks] == [len(STEPS)] * LAYERS
    assert ops.calls["linear"] == before + 4 * LAYERS * len(STEPS)
