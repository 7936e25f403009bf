"""The search over choices, with times that are made up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from vllm_xyserve.plan.tuning import BUCKETS, RULE, Tiling
from vllm_xyserve.tune import search
from vllm_xyserve.tune.search import Found, Task

TASK = Task(n=576, k=1536, m_first=257, m_last=512, threads=2)


def test_finds_choices_that_win_together() -> None:
    tried = []

    def measure(tiling: Tiling) -> list[float]:
        tried.append(tiling)
        ratio = 0.9 if tiling.tile_rows == 4 else 1.0
        ratio *= 0.95 if tiling.pass_rows == 48 else 1.01
        ratio *= 0.97 if tiling.pass_rows == 48 and tiling.pass_panels == 8 else 1.0
        return [1.0, 1.0] if tiling == RULE else [ratio, ratio]

    found = search.search(TASK, measure)
    assert found.tiling == Tiling(tile_rows=4, pass_rows=48, pass_panels=8)
    assert found.ratio == pytest.approx(0.9 * 0.95 * 0.97)
    assert len(tried) == len(set(tried))


def test_noise_is_no_gain() -> None:
    """A gain below twice what the rule differs from itself is none."""

    def measure(tiling: Tiling) -> list[float]:
        return [1.04, 1.0] if tiling == RULE else [0.93, 0.93]

    found = search.search(TASK, measure)
    assert found.tiling == RULE
    assert found.noise == pytest.approx(0.08)


def test_a_gain_at_one_m_is_no_excuse_for_a_loss_at_another() -> None:
    found = search.search(TASK, lambda tiling: [1.0, 1.0] if tiling == RULE else [0.5, 1.1])
    assert found.tiling == RULE


@pytest.mark.parametrize(
    ("again", "noise", "expected"),
    [
        ([0.9, 0.92], 0.02, True),
        ([0.9, 0.92], 0.2, False),  # the second run is too noisy to confirm
        ([0.99, 0.99], 0.02, False),  # gone
        ([0.6, 0.6], 0.02, False),  # another gain altogether: what was measured is not known
        ([0.75, 1.05], 0.02, False),
    ],
)
def test_what_counts_as_reproduced(again: Sequence[float], noise: float, expected: bool) -> None:
    found = Found(Tiling(tile_rows=4), 0.9, 0.02)
    assert search.reproduces(found, again, noise) is expected


@pytest.mark.parametrize(("first", "last"), BUCKETS)
@pytest.mark.parametrize("threads", [1, 2, 8])
def test_options_fit_the_task(first: int, last: int, threads: int) -> None:
    task = Task(3072, 576, first, last, threads)
    counts = task.row_counts()
    assert counts == sorted(set(counts))
    assert all(first <= m <= last for m in counts)
    for name, values in search.options(task):
        assert values, name
        assert all(v > 0 for v in values)
        assert hasattr(RULE, name)
        if name == "threads":
            assert max(values) == threads
