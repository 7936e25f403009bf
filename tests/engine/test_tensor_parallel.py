"""Tensor parallel 2 with both parts native: one rank's answers, and the hit copied on each rank."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from tests.engine import features
from tests.helpers.engine import Run


@pytest.fixture(scope="module")
def parallel(parallel_child: Future[Run]) -> Run:
    return parallel_child.result()


def tokens(answers: list[dict[str, Any]]) -> list[list[int]]:
    return [answer["outputs"][0]["tokens"] for answer in answers]


def test_same_tokens_as_one_rank_of_stock(parallel: Run, stock: Run) -> None:
    assert tokens(parallel["tensor-parallel", "greedy"]) == tokens(stock["reload", "before"])


def test_every_rank_runs_our_kernels(parallel: Run) -> None:
    lines = parallel.log_lines("worker runs attention MetaAttentionBackend/MetaAttentionImpl[nat")
    assert {rank for rank in (0, 1) for line in lines if f"Worker_TP{rank}" in line} == {0, 1}
    assert all("SmoothGemmLinear[native]" in line for line in lines)


def test_a_hit_within_a_block(parallel: Run) -> None:
    (again,) = parallel["tensor-parallel", "again"]
    (first, *_) = parallel["tensor-parallel", "greedy"]
    assert again["num_cached_tokens"] == first["num_prompt_tokens"]
    assert first["num_prompt_tokens"] % features.BLOCK != 0
