"""The fp32 twin of Meta-Attention against dense fp64 attention, token by token."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from tests.helpers.compare import assert_close
from vllm_xyserve.ops.reference.attention import AttentionParams, paged_attention, write_kv

BLOCK = 32


@dataclass
class Case:
    """Rows of (query_len, seq_len) over a paged cache whose unused places hold NaN."""

    query: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor


def make_case(
    rows: list[tuple[int, int]],
    heads: tuple[int, int] = (9, 3),
    dim: int = 64,
    dtype: torch.dtype = torch.float32,
) -> Case:
    num_heads, num_kv_heads = heads
    num_blocks = [-(-seq_len // BLOCK) for _, seq_len in rows]
    order = torch.randperm(sum(num_blocks) + 3).tolist()
    shape = (len(order), num_kv_heads, BLOCK, dim)
    key_cache = torch.full(shape, math.nan, dtype=dtype)
    value_cache = torch.full(shape, math.nan, dtype=dtype)
    table = torch.full((len(rows), max(num_blocks, default=0) + 1), -1, dtype=torch.int32)
    keys, values, next_block = [], [], 0
    for row, (_, seq_len) in enumerate(rows):
        keys.append(torch.randn(seq_len, num_kv_heads, dim).to(dtype))
        values.append(torch.randn(seq_len, num_kv_heads, dim).to(dtype))
        blocks = order[next_block : next_block + num_blocks[row]]
        next_block += num_blocks[row]
        table[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        slots = [blocks[i // BLOCK] * BLOCK + i % BLOCK for i in range(seq_len)]
        slot_mapping = torch.tensor(slots, dtype=torch.int64)
        write_kv(key_cache, value_cache, keys[row], values[row], slot_mapping)
    query_lens = torch.tensor([0] + [query_len for query_len, _ in rows])
    return Case(
        query=torch.randn(int(query_lens.sum()), num_heads, dim).to(dtype),
        keys=keys,
        values=values,
        key_cache=key_cache,
        value_cache=value_cache,
        query_start_loc=query_lens.cumsum(0).to(torch.int32),
        seq_lens=torch.tensor([seq_len for _, seq_len in rows], dtype=torch.int32),
        block_table=table,
    )


def run(case: Case, params: AttentionParams, causal: bool | torch.Tensor = True) -> torch.Tensor:
    out = torch.full_like(case.query, math.nan)
    paged_attention(
        out,
        case.query,
        case.key_cache,
        case.value_cache,
        case.query_start_loc,
        case.seq_lens,
        case.block_table,
        causal,
        params,
    )
    return out


def dense(case: Case, params: AttentionParams, causal: list[bool]) -> torch.Tensor:
    """One token and head at a time in fp64: slow, and another way of writing it down."""
    out = torch.zeros_like(case.query, dtype=torch.float64)
    num_heads = case.query.shape[1]
    starts = case.query_start_loc.tolist()
    for row, (key, value) in enumerate(zip(case.keys, case.values, strict=True)):
        seq_len, group = len(key), num_heads // key.shape[1]
        query_len = starts[row + 1] - starts[row]
        for i in range(query_len):
            pos = seq_len - query_len + i
            seen = [
                j
                for j in range(seq_len)
                if (j <= pos or not causal[row])
                and (params.window is None or abs(pos - j) < params.window)
            ]
            for h in range(num_heads):
                q = case.query[starts[row] + i, h].double()
                s = key[seen, h // group].double() @ q * params.scale
                if params.softcap:
                    s = params.softcap * torch.tanh(s / params.softcap)
                if params.alibi_slopes is not None:
                    s = s + params.alibi_slopes[h].double() * (torch.tensor(seen) - pos)
                logits = s if params.sinks is None else torch.cat([s, params.sinks[h : h + 1]])
                weights = torch.softmax(logits, 0)[: len(seen)]
                out[starts[row] + i, h] = weights @ value[seen, h // group].double()
    return out


MIX = [(5, 5), (1, 1), (1, 31), (1, 32), (1, 33), (0, 0), (5, 100), (17, 70), (0, 50), (1, 129)]


@pytest.fixture(autouse=True)
def fresh_seed(request: pytest.FixtureRequest) -> None:
    seed = torch.seed()
    request.node.user_properties.append(("seed", seed))
    print(f"{seed=}")


@pytest.mark.parametrize(
    "name", ["plain", "window", "softcap", "alibi", "sinks", "all", "window_one"]
)
def test_every_mix_of_rows(name: str) -> None:
    params = {
        "plain": AttentionParams(0.125),
        "window": AttentionParams(0.125, window=32),
        "window_one": AttentionParams(0.125, window=1),
        "softcap": AttentionParams(3.0, softcap=5.0),
        "alibi": AttentionParams(0.125, alibi_slopes=torch.rand(9)),
        "sinks": AttentionParams(0.125, sinks=torch.randn(9)),
        "all": AttentionParams(0.3, 33, 20.0, torch.rand(9), torch.randn(9)),
    }[name]
    case = make_case(MIX)
    expected = dense(case, params, [True] * len(MIX))
    assert_close(run(case, params), expected.float(), atol=2e-5, rtol=1e-5, name=name)


@pytest.mark.parametrize("heads", [(1, 1), (4, 1), (8, 8), (6, 2)])
def test_head_groups_and_sizes(heads: tuple[int, int]) -> None:
    case = make_case([(3, 40), (1, 7)], heads=heads, dim=80)
    expected = dense(case, AttentionParams(0.1), [True, True])
    assert_close(
        run(case, AttentionParams(0.1)), expected.float(), atol=2e-5, rtol=1e-5, name=str(heads)
    )


def test_causality_is_a_property_of_the_row() -> None:
    case = make_case([(5, 5), (5, 5), (3, 40)])
    causal = torch.tensor([False, True, False])
    expected = dense(case, AttentionParams(0.125), causal.tolist())
    out = run(case, AttentionParams(0.125), causal)
    assert_close(out, expected.float(), atol=2e-5, rtol=1e-5, name="row-wise")
    assert not torch.allclose(out, run(case, AttentionParams(0.125), True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_rounded_once(dtype: torch.dtype) -> None:
    case = make_case(MIX, dtype=dtype)
    expected = dense(case, AttentionParams(0.125), [True] * len(MIX))
    eps = torch.finfo(dtype).eps
    assert_close(
        run(case, AttentionParams(0.125)).float(),
        expected.float(),
        atol=1e-4,
        rtol=eps,
        name=str(dtype),
    )


def test_permuting_rows_permutes_the_output_bit_for_bit() -> None:
    case = make_case(MIX)
    out = run(case, AttentionParams(0.125))
    order = torch.randperm(len(MIX)).tolist()
    starts = case.query_start_loc.tolist()
    tokens = [t for row in order for t in range(starts[row], starts[row + 1])]
    query_lens = torch.tensor([0] + [MIX[row][0] for row in order])
    case.query = case.query[tokens]
    case.query_start_loc = query_lens.cumsum(0)
    case.seq_lens, case.block_table = case.seq_lens[order], case.block_table[order]
    assert torch.equal(run(case, AttentionParams(0.125)), out[tokens])


def test_rows_beyond_the_batch_are_left_alone() -> None:
    case = make_case([(2, 2)])
    case.query = torch.cat([case.query, torch.full((3, 9, 64), math.nan)])
    out = run(case, AttentionParams(0.125))
    assert out[:2].isfinite().all()
    assert out[2:].isnan().all()


def test_an_empty_batch_is_legal() -> None:
    case = make_case([])
    assert run(case, AttentionParams(0.125)).shape == (0, 9, 64)


def test_negative_slots_are_skipped() -> None:
    cache = torch.zeros(2, 1, BLOCK, 4)
    other = cache.clone()
    key = torch.ones(3, 1, 4)
    write_kv(cache, other, key, 2 * key, torch.tensor([33, -1, 0]))
    assert cache[1, 0, 1].tolist() == [1.0] * 4
    assert other[0, 0, 0].tolist() == [2.0] * 4
    assert cache.sum() == 8
    assert other.sum() == 16


def test_softcap_holds_at_large_scores() -> None:
    case = make_case([(4, 40)])
    case.query *= 1e4
    out = run(case, AttentionParams(1.0, softcap=50.0))
    assert out.isfinite().all()
