"""KV write on the emulation: bytes of the slots that were named, and of no others."""

from __future__ import annotations

import random

import pytest
import torch

from tests.ascend import emulator
from tests.ascend.caches import UNUSED, WriteProblem, make_write
from tests.ascend.emulator import EAGER, Schedule, directed, random_order
from tests.ascend.running import can_run, library, run_write


def check(problem: WriteProblem, schedule: Schedule = EAGER) -> int:
    """Runs a write that must be right; returns the bytes that it moved."""
    report, wrong = run_write(problem, schedule)
    assert report.ok, report.message
    assert wrong == ""
    return report.count("mte2.bytes") + report.count("mte3.bytes")


def shuffled(tokens: int, slots: int, seed: int, skipped: float = 0.2) -> tuple[int, ...]:
    """Distinct slots in random order, with some tokens that have none."""
    rng = random.Random(seed)
    drawn = rng.sample(range(slots), tokens)
    return tuple(UNUSED if rng.random() < skipped else slot for slot in drawn)


CASES = {
    "one token": WriteProblem((130,)),
    "a run over a block's end": WriteProblem(tuple(range(100, 300))),
    "no slots": WriteProblem((UNUSED,) * 9),
    "decode": WriteProblem(shuffled(33, 6 * 128, 1)),
    "prefill behind skipped tokens": WriteProblem((*(UNUSED,) * 3, *range(128, 260), UNUSED)),
    "beyond the cache": WriteProblem((5, 6 * 128, 6 * 128 + 1, 7)),
    "int64 slots": WriteProblem(shuffled(21, 6 * 128, 2), slot_dtype=torch.int64),
    "fused QKV rows": WriteProblem(shuffled(40, 6 * 128, 3), gap=96, dtype=torch.bfloat16),
    "blocks apart": WriteProblem(tuple(range(120, 140)), block_gap=3),
    "rows that end inside a block": WriteProblem(
        shuffled(19, 90, 4), blocks=6, block_size=15, kv_heads=1, head_size=13
    ),
    "values of another size": WriteProblem(shuffled(25, 6 * 128, 5), head_size=192, value_size=128),
    "several batches": WriteProblem(
        shuffled(70, 6 * 128, 6, 0.1), kv_heads=8, head_size=256, cores=1
    ),
}


@pytest.mark.parametrize("problem", CASES.values(), ids=CASES.keys())
def test_bytes_go_to_their_slots(problem: WriteProblem) -> None:
    check(problem)


@pytest.mark.parametrize("cores", [40, 48])
def test_on_a_whole_chip(cores: int) -> None:
    check(WriteProblem(shuffled(200, 6 * 128, 7), cores=cores))


@pytest.mark.parametrize("name", ["several batches", "rows that end inside a block"])
def test_any_order(name: str) -> None:
    problem = CASES[name]
    for schedule in [*directed(problem.cores, cube=False), *map(random_order, range(5))]:
        check(problem, schedule)


def test_skipped_tokens_cost_nothing() -> None:
    problem = WriteProblem(shuffled(64, 6 * 128, 8, 0.5))
    real = sum(slot >= 0 for slot in problem.slots)
    assert 0 < real < 64
    row = problem.kv_heads * problem.head_size * 2
    assert check(problem) == real * 2 * row * 2  # key and value, read and written


def test_offsets_beyond_two_gigabytes() -> None:
    """Slots at both ends of sparse caches of 5 GiB."""
    row, block_size, blocks = 8192, 128, 5 << 10
    rows = torch.arange(2 * row, dtype=torch.int32).to(torch.uint8).reshape(2, row)
    caches = [
        emulator.sparse(row * block_size * blocks, torch.uint8, written=False) for _ in range(2)
    ]
    slots = torch.tensor([block_size * blocks - 1, 0], dtype=torch.int64)
    numbers = [4, 2, blocks, block_size, 8, *(row, row, row * block_size) * 2]
    data = emulator.constant(rows)
    report = library().launch(
        "kv_write", [data, data, *caches, emulator.constant(slots)], numbers, blocks=4
    )
    assert report.ok, report.message
    for cache in caches:
        assert torch.equal(cache.data[-row:], rows[0])
        assert torch.equal(cache.data[:row], rows[1])


@pytest.mark.ascend_full
@pytest.mark.parametrize("seed", range(40))
def test_random_problems(seed: int) -> None:
    rng = random.Random(seed)
    block_size = rng.choice([16, 128])
    blocks = rng.randint(1, 9)
    tokens = rng.randint(1, min(150, blocks * block_size))
    problem = WriteProblem(
        shuffled(tokens, blocks * block_size, seed, rng.random()),
        blocks=blocks,
        block_size=block_size,
        kv_heads=rng.randint(1, 4),
        head_size=rng.choice([1, 7, 64, 96, 128, 256]),
        gap=rng.choice([0, 1, 48]),
        dtype=rng.choice([torch.float16, torch.bfloat16, torch.float32]),
        cores=rng.randint(1, 6),
        seed=seed,
    )
    check(problem, random_order(seed))


def test_can_run() -> None:
    t = make_write(WriteProblem((1,)))
    memory: list[torch.Tensor | None] = [t.key, t.value, t.key_cache, t.value_cache, t.slots]
    assert can_run("kv_write", memory, t.numbers) == ""
    for index, value, words in [
        (0, 49, "1 to 48"),
        (3, 0, "block_size"),
        (4, 2, "int32 or int64"),
        (5, 0, "at least one byte"),
        (6, 8, "at least a row"),
        (7, 64, "blocks are 64 bytes apart"),
        (5, 90000, "blocks are"),
    ]:
        numbers = list(t.numbers)
        numbers[index] = value
        assert words in can_run("kv_write", memory, numbers), (index, value)
    big = make_write(WriteProblem((1,), kv_heads=200, head_size=128))
    memory = [big.key, big.value, big.key_cache, big.value_cache, big.slots]
    assert "UB holds" in can_run("kv_write", memory, big.numbers)
