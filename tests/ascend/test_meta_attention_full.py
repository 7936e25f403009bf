"""The whole table of shapes for Meta-Attention on the emulated chip: `make test-ascend`."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from tests.ascend import emulator
from tests.ascend.attention_cases import (
    FORMS,
    FOUR_STAGE,
    THREE_STAGE,
    TWO_STAGE,
    Case,
    make_batch,
    split_tasks,
)
from tests.ascend.attention_launch import check_run
from vllm_xyserve import plan

pytestmark = pytest.mark.ascend_full

HALF, BF16 = torch.float16, torch.bfloat16
HEAD_DIMS = (64, 96, 128, 192, 256)
LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 257, 511, 513, 1025, 2047, 2049, 4096)


def decode(form: int, **changes: object) -> Case:
    group = 2 if form == TWO_STAGE else 4
    base = Case((1, 1, 1), (700, 1, 131), form=form, group_size=group, lse=True)
    return replace(base, **changes)


def mixed(form: int, **changes: object) -> Case:
    """As `decode` where the form takes nothing else."""
    if form == TWO_STAGE:
        return decode(form, **changes)
    base = Case((1, 70, 6, 0, 1), (400, 333, 130, 0, 1), form=form, lse=True)
    return replace(base, **changes)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("dtype", [HALF, BF16])
@pytest.mark.parametrize("form", FORMS)
def test_head_sizes_and_dtypes(form: str, dtype: torch.dtype, head_dim: int) -> None:
    check_run(make_batch(mixed(FORMS[form], head_dim=head_dim, dtype=dtype)))


@pytest.mark.parametrize("group_size", [1, 2, 3, 4, 5, 7, 8, 16, 32, 71, 128])
@pytest.mark.parametrize("form", FORMS)
def test_groups_of_query_heads(form: str, group_size: int) -> None:
    if form == "two" and group_size > 4:
        pytest.skip("the two-stage form takes at most 4")
    check_run(make_batch(mixed(FORMS[form], group_size=group_size, num_kv_heads=1, head_dim=64)))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("form", FORMS)
def test_contexts_of_decodes(form: str, length: int) -> None:
    lengths = (length, max(length - 1, 1), length + 1)
    check_run(make_batch(decode(FORMS[form], key_lens=lengths, cores=3, num_kv_heads=1)))


@pytest.mark.parametrize("queries", [1, 2, 3, 15, 16, 17, 31, 33, 64, 65, 127, 128, 129, 200])
@pytest.mark.parametrize("history", [0, 1, 127, 128, 300])
def test_query_lengths(queries: int, history: int) -> None:
    for form, group in product((THREE_STAGE, FOUR_STAGE), (1, 4)):
        case = Case((queries,), (queries + history,), form=form, group_size=group, head_dim=64)
        check_run(make_batch(case))


@pytest.mark.parametrize("tile", [16, 32, 64, 128])
@pytest.mark.parametrize("form", ["three", "four"])
def test_tile_sizes(form: str, tile: int) -> None:
    case = mixed(FORMS[form], tile_rows=(tile,), key_lens=(1400, 700, 130, 0, 1))
    check_run(make_batch(case))


@pytest.mark.parametrize("window", [1, 2, 16, 100, 127, 128, 129, 300, 1000])
@pytest.mark.parametrize("form", FORMS)
def test_windows(form: str, window: int) -> None:
    for causal in (True, False):
        check_run(make_batch(mixed(FORMS[form], window=window, causal=causal, head_dim=64)))


@pytest.mark.parametrize("softcap", [0.5, 4.0, 30.0, 50.0])
@pytest.mark.parametrize("form", FORMS)
def test_softcaps(form: str, softcap: float) -> None:
    check_run(make_batch(mixed(FORMS[form], softcap=softcap)))


@pytest.mark.parametrize("tokens", [1, 2, 5, 31, 63, 64, 65, 90])
@pytest.mark.parametrize("form", ["three", "four"])
def test_trees(form: str, tokens: int) -> None:
    for history in (0, 60, 128, 700):
        case = Case(
            (tokens, 3), (tokens + history, 50), form=FORMS[form], head_dim=64, trees=(0,), cores=3
        )
        check_run(make_batch(case))


@pytest.mark.parametrize("late", [1, 5, 40])
@pytest.mark.parametrize("form", FORMS)
def test_contexts_shorter_than_planned(form: str, late: int) -> None:
    for window in (0, 100):
        case = mixed(FORMS[form], late=late, window=window, cores=4, num_kv_heads=1)
        check_run(make_batch(case))


@pytest.mark.parametrize("cores", [2, 4, 20, 24])
@pytest.mark.parametrize("form", FORMS)
def test_cores(form: str, cores: int) -> None:
    batch = make_batch(mixed(FORMS[form], cores=cores, head_dim=64))
    check_run(batch)


@pytest.mark.parametrize("dealing", ["plain", "snake", "rounds", "lpt", "fit"])
@pytest.mark.parametrize("invariant", [False, True])
def test_dealings(dealing: str, invariant: bool) -> None:
    case = mixed(FOUR_STAGE, dealing=dealing, invariant=invariant, cores=4, head_dim=64)
    check_run(make_batch(replace(case, key_lens=(4300, 333, 130, 0, 1))))


@pytest.mark.parametrize("form", FORMS)
def test_many_decodes_on_24_cores(form: str) -> None:
    lengths = tuple(37 * row % 900 + 1 for row in range(40))
    case = decode(FORMS[form], query_lens=(1,) * 40, key_lens=lengths, cores=24, head_dim=64)
    check_run(make_batch(replace(case, num_kv_heads=4)))


@pytest.mark.parametrize("form", ["four", "two"])
def test_one_decode_fills_all_cores(form: str) -> None:
    """One row, one KV head: only a split of the keys gives 20 cores something to do."""
    case = decode(FORMS[form], query_lens=(1,), key_lens=(5000,), cores=20, num_kv_heads=1)
    batch = make_batch(case)
    table = plan.view(batch.table)
    assert split_tasks(batch) >= 20
    assert (np.diff(table.core_begin) > 0).all(), table.core_begin
    check_run(batch)


@pytest.mark.parametrize("form", ["four", "two"])
@pytest.mark.parametrize("length", [131_072, 1_048_576])
def test_long_contexts(form: str, length: int) -> None:
    """Full pages are shared by way of the block table, so that memory stays small."""
    case = decode(FORMS[form], query_lens=(1,), key_lens=(length,), num_kv_heads=1, head_dim=64)
    check_run(make_batch(replace(case, cores=4, pages=40, group_size=1)), happens_before=False)


def test_long_prefill_chunk_behind_a_long_history() -> None:
    case = Case((40,), (131_072,), num_kv_heads=1, head_dim=64, cores=4, pages=40)
    check_run(make_batch(case), happens_before=False)


@pytest.mark.parametrize("form", FORMS)
def test_blocks_beyond_2_gib(form: str) -> None:
    """Elements in front of the first used block: more than 2^31."""
    case = mixed(FORMS[form], num_kv_heads=8, first_block=17_000)
    assert case.first_block * 128 * case.num_kv_heads * case.head_dim > 2**31
    check_run(make_batch(case))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(8))
def test_random_orders(form: str, seed: int) -> None:
    case = mixed(FORMS[form], seed=seed, cores=3, head_dim=64)
    check_run(make_batch(case), schedule=emulator.random_order(seed))
