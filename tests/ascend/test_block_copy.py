"""Block copy on the emulation: whole blocks of both tensors, beyond 2 GiB as well."""

from __future__ import annotations

import pytest
import torch

from tests.ascend import emulator
from tests.ascend.caches import CopyProblem, make_copy
from tests.ascend.emulator import EAGER, Schedule, directed, random_order
from tests.ascend.running import can_run, library, run_copy


def check(problem: CopyProblem, schedule: Schedule = EAGER) -> int:
    """Runs a copy that must be right; returns the bytes that it moved."""
    report, wrong = run_copy(problem, schedule)
    assert report.ok, report.message
    assert wrong == ""
    return report.count("mte2.bytes") + report.count("mte3.bytes")


CASES = {
    "one block": CopyProblem(((3, 5),)),
    "one source, two targets": CopyProblem(((1, 0), (1, 7), (2, 6))),
    "several chunks": CopyProblem(((0, 1), (2, 3)), key_row=1024, value_row=600, blocks=5),
    "ragged bytes": CopyProblem(((0, 2), (1, 3)), key_row=27, value_row=1, block_size=15),
    "nothing": CopyProblem(()),
    "outside of the cache": CopyProblem(((0, 8), (-1, 2), (3, -1), (9, 1), (4, 5))),
}


@pytest.mark.parametrize("problem", CASES.values(), ids=CASES.keys())
def test_blocks_arrive(problem: CopyProblem) -> None:
    check(problem)


@pytest.mark.parametrize("cores", [40, 48])
def test_one_block_uses_a_whole_chip(cores: int) -> None:
    problem = CopyProblem(((0, 1),), blocks=2, key_row=8192, value_row=8192, cores=cores)
    report, wrong = run_copy(problem)
    assert report.ok, report.message
    assert wrong == ""
    assert all(core.get("mte3.bytes", 0) > 0 for core in report.per_core)


def test_any_order() -> None:
    problem = CASES["several chunks"]
    for schedule in [*directed(problem.cores, cube=False), *map(random_order, range(5))]:
        check(problem, schedule)


def test_bytes_are_those_of_the_blocks() -> None:
    problem = CASES["several chunks"]
    assert check(problem) == 2 * len(problem.pairs) * 128 * (1024 + 600)


def test_offsets_beyond_two_gigabytes() -> None:
    """The last block of a sparse cache of 5 GiB, to the first and back."""
    block, blocks = 1 << 20, 5 << 10
    source = torch.arange(block, dtype=torch.int32).to(torch.uint8)
    caches = [emulator.sparse(block * blocks, torch.uint8, written=False) for _ in range(2)]
    for cache in caches:
        cache.data[-block:] = source
        cache.mark(block * (blocks - 1), block * blocks, True)
    pairs = torch.tensor([[blocks - 1, 0], [blocks - 1, blocks // 2]])
    numbers = [4, 2, blocks, 128, *(block // 128, 0, block) * 2]
    report = library().launch("block_copy", [*caches, emulator.constant(pairs)], numbers, blocks=4)
    assert report.ok, report.message
    for cache in caches:
        for target in (0, blocks // 2):
            assert torch.equal(cache.data[target * block : (target + 1) * block], source)


def test_can_run() -> None:
    t = make_copy(CopyProblem(((0, 1),)))
    memory: list[torch.Tensor | None] = [t.key_cache, t.value_cache, t.pairs]
    assert can_run("block_copy", memory, t.numbers) == ""
    for index, value, words in [(0, 0, "vector cores"), (1, -1, "pairs"), (6, 5, "5 bytes apart")]:
        numbers = list(t.numbers)
        numbers[index] = value
        assert words in can_run("block_copy", memory, numbers), (index, value)
    assert "with a list" in can_run("block_copy", [t.key_cache, t.value_cache, None], t.numbers)
