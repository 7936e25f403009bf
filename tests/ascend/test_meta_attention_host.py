"""The host side of Meta-Attention: what can run, which form it takes, how large things are."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tests.ascend.attention_cases import FOUR_STAGE, PAGE, THREE_STAGE, TWO_STAGE
from tests.ascend.attention_launch import (
    Args,
    Problem,
    Selection,
    can_run,
    default_selection,
    host,
    select_form,
)


def problem(**changes: Any) -> Problem:
    """Llama-3-8B on one 910B, 24 cores, prefill among decodes."""
    values: dict[str, Any] = {
        "dtype": 1,
        "num_cores": 24,
        "num_kv_heads": 8,
        "group_size": 4,
        "head_dim": 128,
        "block_size": PAGE,
        "max_keys": 2048,
        "tile_rows": 128,
        "decode_only": False,
        "splits": False,
        "scale": 0.088,
        "softcap": 0.0,
        "num_blocks": 1000,
        "block_table_stride": 64,
        "max_partial_rows": 0,
    }
    values.update(changes)
    width = values["num_kv_heads"] * values["group_size"] * values["head_dim"]
    page = PAGE * values["num_kv_heads"] * values["head_dim"]
    for name, stride in (
        ("out_token_stride", width),
        ("query_token_stride", width),
        ("key_block_stride", page),
        ("value_block_stride", page),
    ):
        values.setdefault(name, stride)
    return Problem(**values)


def test_structures_are_those_of_the_headers() -> None:
    sizes = [ctypes.sizeof(kind) for kind in (Args, Problem, Selection)]
    assert [host("meta_attention_sizes")(which) for which in range(3)] == sizes


def test_scores_of_whole_rows_in_bytes() -> None:
    """The figures of the paper's configuration: 201 MB at 8,192 keys, 3.2 GB at 131,072."""
    score_bytes = host("meta_attention_score_bytes")
    assert score_bytes(24, 128, 8192) == 201_326_592
    assert score_bytes(24, 128, 131_072) == 3_221_225_472


@pytest.mark.parametrize(
    ("changes", "form"),
    [
        ({}, THREE_STAGE),
        ({"max_keys": 3968}, THREE_STAGE),
        ({"max_keys": 4096}, FOUR_STAGE),
        ({"max_keys": 8192}, FOUR_STAGE),
        ({"max_keys": 131_072}, FOUR_STAGE),
        ({"max_keys": 8192, "tile_rows": 16}, THREE_STAGE),
        ({"splits": True}, FOUR_STAGE),
        ({"decode_only": True, "group_size": 1, "max_keys": 131_072}, TWO_STAGE),
        ({"decode_only": True, "group_size": 2, "splits": True}, TWO_STAGE),
        ({"decode_only": True, "group_size": 8, "splits": True}, FOUR_STAGE),
        ({"decode_only": False, "group_size": 1}, THREE_STAGE),
    ],
)
def test_selection(changes: dict[str, Any], form: int) -> None:
    chosen = select_form(problem(**changes))
    assert chosen == form
    assert can_run(problem(**changes), chosen) == ""


def test_the_cache_rule_is_strict_and_in_bytes() -> None:
    whole = Selection(201_326_592, 1.0, 2)
    assert select_form(problem(max_keys=8192), whole) == FOUR_STAGE
    whole.cache_bytes += 1
    assert select_form(problem(max_keys=8192), whole) == THREE_STAGE
    whole.alpha = 2.0
    assert select_form(problem(max_keys=8192), whole) == FOUR_STAGE


def test_a_lower_threshold_moves_short_contexts_to_four_stages() -> None:
    tight = default_selection()
    tight.cache_bytes = 1 << 20
    assert select_form(problem(max_keys=512), tight) == FOUR_STAGE
    assert "below the cache's 1048576 bytes, got 12582912" in can_run(
        problem(max_keys=512), THREE_STAGE, tight
    )


@pytest.mark.parametrize(
    ("changes", "form", "words"),
    [
        ({"block_size": 64}, FOUR_STAGE, "block_size in 128..128, got 64"),
        ({"head_dim": 80}, FOUR_STAGE, "head_dim 64, 96, 128, 192 or 256, got 80"),
        ({"num_cores": 25}, FOUR_STAGE, "num_cores in 1..24, got 25"),
        ({"group_size": 129}, FOUR_STAGE, "group_size in 1..128, got 129"),
        ({"out_token_stride": 4104}, FOUR_STAGE, "out_token_stride in 4096.."),
        ({"query_token_stride": 70_000}, FOUR_STAGE, "query_token_stride in 4096..65535"),
        ({"num_kv_heads": 600}, FOUR_STAGE, "kv_heads * head_dim in 1..65535, got 76800"),
        ({"key_block_stride": 1}, FOUR_STAGE, "key_block_stride in 131072.."),
        ({"scale": 0.0}, FOUR_STAGE, "scale > 0"),
        ({"scale": float("nan")}, FOUR_STAGE, "scale > 0"),
        ({"softcap": -1.0}, FOUR_STAGE, "softcap >= 0"),
        ({"splits": True}, THREE_STAGE, "plan without key splits"),
        ({"max_keys": 12_225, "tile_rows": 16}, THREE_STAGE, "at most 12224"),
        ({"max_keys": 8192}, THREE_STAGE, "times alpha below the cache's"),
        ({}, TWO_STAGE, "rows of several queries"),
        ({"decode_only": True, "group_size": 5}, TWO_STAGE, "at most 4 query heads"),
    ],
)
def test_refusals_name_what_is_required_and_what_came(
    changes: dict[str, Any], form: int, words: str
) -> None:
    assert words in can_run(problem(**changes), form)


def test_workspace_of_four_stages_does_not_grow_with_the_context() -> None:
    workspace = host("meta_attention_workspace")
    sizes = {
        workspace(ctypes.byref(problem(max_keys=keys)), FOUR_STAGE) for keys in (128, 1_048_576)
    }
    assert sizes == {24 * 192 + 24 * 2 * (128 * 512 * 4 + 128 * 128 * 4)}
    small, large = (
        workspace(ctypes.byref(problem(max_keys=keys)), THREE_STAGE) for keys in (1024, 2048)
    )
    assert large - small == 24 * 2 * 128 * 1024 * 4
