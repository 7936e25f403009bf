"""Meta-Attention on the emulated chip against fp64: every form and option on small batches.

test_meta_attention_full.py has the whole table of shapes.
"""

from __future__ import annotations

from dataclasses import replace

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
from tests.ascend.attention_launch import check, check_run, run, statuses
from vllm_xyserve import plan

HALF, BF16 = torch.float16, torch.bfloat16

# Prefill, decode and verify rows, odd lengths, contexts that end within, at and after a page, rows
# without queries.
MIX = Case(query_lens=(1, 37, 5, 1, 0, 2), key_lens=(130, 165, 128, 1, 0, 257))
SPLIT = Case(
    query_lens=(1, 37, 5, 1, 0, 2),
    key_lens=(130, 165, 528, 1, 0, 1257),
    num_kv_heads=1,
    cores=4,
)
DECODES = Case(query_lens=(1, 1, 1, 1), key_lens=(1, 128, 300, 129), group_size=1, form=TWO_STAGE)

CASES = {
    "three": replace(MIX, form=THREE_STAGE),
    "three-window": replace(MIX, form=THREE_STAGE, window=70, head_dim=64, dtype=HALF),
    "three-softcap": replace(MIX, form=THREE_STAGE, softcap=4.0, head_dim=192),
    "three-tree": replace(MIX, form=THREE_STAGE, trees=(1, 2), group_size=2),
    "three-not-causal": replace(MIX, form=THREE_STAGE, causal=False, window=90, dtype=HALF),
    "four": SPLIT,
    "four-window": replace(SPLIT, window=300, head_dim=256, dtype=HALF),
    "four-softcap": replace(SPLIT, softcap=4.0, head_dim=96),
    "four-tree": replace(SPLIT, trees=(1, 2)),
    "four-chunks": Case((1,), (4500,), num_kv_heads=1, cores=1),
    "four-late": replace(SPLIT, late=9, dtype=HALF),
    "two": DECODES,
    "two-group": replace(DECODES, group_size=3, head_dim=96, dtype=HALF, cores=3),
    "two-split": replace(DECODES, key_lens=(700, 2300, 5, 64), num_kv_heads=1, cores=4),
    "two-window": replace(DECODES, key_lens=(700, 300, 5, 64), window=200, softcap=9.0),
}


@pytest.mark.parametrize("name", CASES)
def test_small_batches(name: str) -> None:
    batch = make_batch(replace(CASES[name], lse=True))
    check_run(batch)


def test_the_split_cases_are_split() -> None:
    """Merges are part of what the cases above run."""
    for name in ("four", "four-window", "two-split"):
        assert split_tasks(make_batch(CASES[name])) > 0, name
    assert split_tasks(make_batch(CASES["three"])) == 0


@pytest.mark.parametrize("form", FORMS)
def test_one_token(form: str) -> None:
    check_run(make_batch(Case((1,), (1,), form=FORMS[form], group_size=1, num_kv_heads=1)))


@pytest.mark.parametrize("name", ["three", "four", "two-split"])
def test_results_do_not_depend_on_the_launch(name: str) -> None:
    """The same bits again, under another order of execution."""
    first, second = make_batch(CASES[name]), make_batch(CASES[name])
    check_run(first)
    check_run(second, schedule=emulator.random_order(1))
    assert torch.equal(first.tensors["out"][1:-1], second.tensors["out"][1:-1])


@pytest.mark.parametrize("form", [THREE_STAGE, FOUR_STAGE])
def test_invariant_tables_make_rows_independent_of_their_neighbours(form: int) -> None:
    alone = replace(MIX, query_lens=(9,), key_lens=(300,), form=form, invariant=True)
    batch = make_batch(alone)
    check_run(batch)
    crowd = replace(alone, query_lens=(9, 30, 1), key_lens=(300, 31, 90), cores=4)
    other = make_batch(crowd)
    for name in ("query", "key_cache", "value_cache"):
        assert other.tensors[name].dtype == batch.tensors[name].dtype
    # The same row in other pages.
    other.tensors["query"][:9] = batch.tensors["query"]
    for name in ("key_cache", "value_cache"):
        for to, source in zip(other.block_lists[0], batch.block_lists[0], strict=True):
            other.tensors[name][to] = batch.tensors[name][source]
    check_run(other)
    assert torch.equal(other.tensors["out"][1:10], batch.tensors["out"][1:10])


@pytest.mark.parametrize("name", ["three", "four", "two"])
def test_a_replay_with_other_contents(name: str) -> None:
    """The arguments of a captured graph stay; table, lengths and data change in place."""
    case = CASES[name]
    first = make_batch(case)
    check_run(first)
    shorter = replace(
        case,
        key_lens=tuple(
            max(keys - 3, queries)
            for queries, keys in zip(case.query_lens, case.key_lens, strict=True)
        ),
        seed=5,
    )
    second = make_batch(shorter)
    room = torch.zeros(1 << 16, dtype=torch.uint8)
    for batch in (first, second):
        table = torch.from_numpy(batch.table)
        room[: table.numel()] = table
        batch.tensors["table"] = room
    check_run(second, problem_case=case)


@pytest.mark.parametrize("name", ["three", "four", "four-window"])
def test_the_cube_reads_real_rows_and_keys_alone(name: str) -> None:
    """Virtual padding in bytes: queries, keys, values and probabilities of each task, once."""
    batch = make_batch(CASES[name])
    report = check_run(batch)
    table = plan.view(batch.table)
    expected = 0
    for task in table.tasks[table.tasks["num_queries"] > 0]:
        rows = int(task["num_queries"]) * batch.case.group_size
        # Keys are counted from the multiple of 16 at or before the first; P has whole blocks of 16.
        keys = int(task["key_end"]) - int(task["key_begin"]) // 16 * 16
        if int(task["key_end"]) > int(task["key_begin"]):
            width = batch.case.head_dim
            elements = rows * width + 2 * keys * width + rows * -(-keys // 16) * 16
            expected += int(task["num_heads"]) * 2 * elements
    assert sum(core["mte2.bytes"] for core in report.per_core[::3]) == expected


@pytest.mark.parametrize("form", FORMS)
def test_a_row_without_keys_is_zero(form: str) -> None:
    """As rows are that only fill up a captured graph."""
    case = Case((1, 1), (140, 200), FORMS[form], 1, 2, 64, lse=True)
    batch = make_batch(case)
    batch.tensors["seq_lens"][1] = 0
    report = run(batch)
    assert report.ok, report.message
    assert set(statuses(batch)) == {0}
    assert torch.equal(batch.tensors["out"][2], torch.zeros_like(batch.tensors["out"][2]))
    assert torch.isneginf(batch.tensors["lse"][2]).all()
    assert torch.isfinite(batch.tensors["out"][1]).all()


def test_a_table_for_other_cores_or_heads_is_refused() -> None:
    batch = make_batch(MIX)
    for field, value in (("num_cores", 3), ("head_dim", 64), ("version", 2)):
        other = make_batch(MIX)
        plan.layout.sections(other.table).header[field] = value
        report = run(other)
        assert report.ok, report.message
        assert set(statuses(other)) == {1}
        assert torch.isnan(other.tensors["out"]).all()
    check_run(batch)


def test_a_split_table_is_refused_by_three_stages() -> None:
    batch = make_batch(SPLIT)
    batch.case = replace(SPLIT, form=THREE_STAGE)
    assert run(batch).ok
    assert set(statuses(batch)) == {1}


def test_pages_outside_of_the_cache_are_reported_and_not_read() -> None:
    batch = make_batch(replace(MIX, form=THREE_STAGE))
    batch.tensors["block_table"][1, 0] = batch.tensors["key_cache"].shape[0]
    batch.tensors["key_cache"][0] = 0
    batch.tensors["value_cache"][0] = 0
    report = run(batch)
    assert report.ok, report.message
    assert set(statuses(batch)) == {0, 4}


def test_a_context_beyond_the_capacity_is_reported_and_left_out() -> None:
    batch = make_batch(replace(MIX, form=THREE_STAGE))
    report = run(batch, problem_case=replace(MIX, form=THREE_STAGE, key_lens=(200,) * 6))
    assert report.ok, report.message
    assert 2 in statuses(batch)


@pytest.mark.parametrize("name", ["three", "four", "two-split"])
@pytest.mark.parametrize("seed", range(5))
def test_random_orders(name: str, seed: int) -> None:
    check_run(make_batch(replace(SEEDED[name], seed=seed)), schedule=emulator.random_order(seed))


SEEDED = {
    "three": Case((3, 1, 20), (140, 129, 20), form=THREE_STAGE, head_dim=64, num_kv_heads=1),
    "four": Case((3, 1, 20), (640, 700, 20), head_dim=64, num_kv_heads=1, cores=3, lse=True),
    "two-split": Case((1, 1), (640, 200), TWO_STAGE, 1, 2, 64, cores=3, lse=True),
}


@pytest.mark.parametrize("name", SEEDED)
@pytest.mark.parametrize("pipe", ["S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX"])
def test_starved_pipes(name: str, pipe: str) -> None:
    check_run(make_batch(SEEDED[name]), schedule=emulator.starve_pipe(emulator.Pipe[pipe]))


@pytest.mark.parametrize("name", SEEDED)
def test_starved_cores(name: str) -> None:
    batch = make_batch(SEEDED[name])
    for core in range(3 * batch.case.cores):
        again = make_batch(SEEDED[name])
        check_run(again, schedule=emulator.starve_core(core))
        check(again)
