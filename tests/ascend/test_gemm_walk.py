"""Which core computes which tile: everything once, in balance, groups one after the other."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest

from tests.ascend.gemm import Problem, make
from tests.ascend.running import fixpipe_word, gemm_memory, library

Tile = tuple[int, int, int, int, int]  # group, m_begin, m, n_begin, n
ROOM = 4000


def tiles_of(problem: Problem) -> list[list[Tile]]:
    """The tiles of each core, in order."""
    t = make(problem, fixpipe_word)
    memory = gemm_memory(t)
    pointers = (ctypes.c_void_p * 8)(*(None if x is None else x.data_ptr() for x in memory))
    numbers = (ctypes.c_int64 * len(t.numbers))(*t.numbers)
    call = library().function("gemm_tiles")
    call.restype = ctypes.c_int64
    result = []
    for core in range(problem.cores):
        out = (ctypes.c_int64 * (5 * ROOM))()
        count = call(pointers, numbers, ctypes.c_int64(core), out, ctypes.c_int64(ROOM))
        assert count < ROOM
        result.append([tuple(out[5 * i : 5 * i + 5]) for i in range(count)])
    return result


def random_problem(rng: random.Random) -> Problem:
    groups = rng.choice([1, 1, 2, 5])
    rows = tuple(rng.choice([0, 1, rng.randint(1, 200)]) for _ in range(groups))
    tuning = (
        16 * rng.randint(1, 8),
        16 * rng.randint(2, 16),
        0,
        rng.randint(0, 1),
        rng.randint(1, 6),
        rng.randint(0, 5),
    )
    n = rng.randint(16, 900)
    return Problem("f16", rows, n, 16, cores=rng.choice([1, 2, 7, 20, 24]), tuning=tuning)


@pytest.mark.parametrize("seed", range(60))
def test_every_element_once(seed: int) -> None:
    problem = random_problem(random.Random(seed))
    covered = np.zeros((problem.m, problem.n), dtype=np.int32)
    ends = np.cumsum(problem.rows)
    for core in tiles_of(problem):
        for group, m_begin, m, n_begin, n in core:
            assert 16 <= n <= problem.tuning[1]
            assert 1 <= m <= problem.tuning[0]
            assert ends[group] - problem.rows[group] <= m_begin
            assert m_begin + m <= ends[group]
            covered[m_begin : m_begin + m, n_begin : n_begin + n] += 1
    assert (covered == 1).all()


@pytest.mark.parametrize("cores", [20, 24])
@pytest.mark.parametrize("m", [1, 16, 100, 333, 2048])
def test_the_last_wave_uses_idle_cores(cores: int, m: int) -> None:
    """No core has more than one whole tile above the mean, and the rule leaves few cores idle."""
    problem = Problem("f16", (m,), 4096, 16, cores=cores)
    areas = [sum(m * n for _, _, m, _, n in core) for core in tiles_of(problem)]
    assert sum(areas) == m * 4096
    assert max(areas) - sum(areas) / cores <= 128 * 256
    assert min(areas) > 0


def test_the_next_group_starts_on_the_next_core() -> None:
    tuning = (16, 32, 0, 0, 1, 0)
    problem = Problem("f16", (16, 16, 16, 16), 96, 16, cores=4, tuning=tuning)
    order = [(t[0], t[3], core) for core, tiles in enumerate(tiles_of(problem)) for t in tiles]
    for number, (_, _, core) in enumerate(sorted(order)):
        assert core == number % 4
