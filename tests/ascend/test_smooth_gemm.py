"""SmoothGEMM on the emulation against fp64: shapes, orders, padding, groups, bytes moved."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.ascend.emulator import EAGER, Schedule, directed, random_order
from tests.ascend.gemm import Problem, make
from tests.ascend.running import (
    check_gemm,
    compare_gemm,
    fixpipe_word,
    gemm_memory,
    gemm_plan,
    run_gemm,
)

SEEDS = range(5)
# m_tile, n_tile, k_tile, swizzle direction and count, last_split.
SMALL_TILE = (16, 32, 32, 0, 2, 2)
MIXED_FORMS = ("int8_f16", "int8_bf16")


def name_of(problem: Problem) -> str:
    """A test id that says what is special about a problem."""
    rows = "+".join(map(str, problem.rows))
    flags = [f for f in ("nz", "bias") if getattr(problem, f)]
    flags += ["pad"] if problem.pad else []
    flags += [f"{problem.cores}cores"] if problem.cores != 2 else []
    flags += ["x".join(map(str, problem.tuning[:3]))] if any(problem.tuning) else []
    return "-".join([problem.form, f"{rows}x{problem.n}x{problem.k}", *flags])


def problems(*cases: Problem) -> pytest.MarkDecorator:
    """One test per problem."""
    return pytest.mark.parametrize("problem", cases, ids=name_of)


@problems(
    Problem("f16", (1,), 16, 1),
    Problem("f16", (1,), 80, 64, bias=True, pad=5),
    Problem("f16", (17,), 31, 15, nz=True),
    Problem("f16", (15,), 129, 33, bias=True, nz=True),
    Problem("bf16", (33,), 100, 70, pad=3),
    Problem("bf16", (31,), 17, 300, bias=True, nz=True),
    Problem("f16", (129,), 257, 513, bias=True, pad=1, cores=3),
    Problem("bf16", (300,), 300, 130, nz=True, cores=4),
    Problem("f16", (128,), 256, 256, cores=1),  # one tile of the largest size
    Problem("f16", (255,), 512, 64, tuning=(128, 256, 0, 0, 0, 0)),  # L0C holds one tile
    Problem("bf16", (70,), 190, 90, bias=True, tuning=(32, 48, 48, 1, 3, 1), cores=3),
    Problem("f16", (50,), 96, 90, bias=True, tuning=(16, 16, 16, 0, 2, 1)),
    Problem("int8_static", (1,), 48, 33),
    Problem("int8_static", (45,), 99, 70, bias=True, pad=7),
    Problem("int8_static", (130,), 270, 600, bias=True, nz=True, cores=3),
    Problem("int8_f16", (1,), 48, 33),  # the second vector core has no row
    Problem("int8_f16", (45,), 99, 70, bias=True, pad=7),
    Problem("int8_bf16", (130,), 270, 600, bias=True, nz=True),
    Problem("int8_bf16", (35,), 80, 64, row_scales=False),
)
def test_values(problem: Problem) -> None:
    check_gemm(problem)


@pytest.mark.parametrize("form", ["f16", "int8_static", "int8_bf16"])
@pytest.mark.parametrize("cores", [20, 24])
def test_values_on_a_whole_chip(form: str, cores: int) -> None:
    check_gemm(Problem(form, (150,), 700, 64, bias=True, cores=cores))


@problems(
    Problem("f16", (5, 0, 33, 1), 70, 48, bias=True, cores=3, tuning=(16, 32, 0, 0, 0, 0)),
    Problem("bf16", (0, 0, 7), 48, 33, nz=True),
    Problem("int8_static", (9, 20), 50, 40, bias=True, nz=True),
    Problem("int8_bf16", (3, 0, 18), 50, 40, bias=True, cores=3),
    Problem("f16", (3, 30), 48, 40, overshoot=9),  # ends are clamped to the rows of x
)
def test_groups(problem: Problem) -> None:
    check_gemm(problem)


def test_no_rows() -> None:
    report = check_gemm(Problem("f16", (0,), 48, 32))
    assert report.count("fix.bytes") == 0


ORDER_PROBLEMS = (
    Problem("f16", (21,), 75, 90, bias=True, pad=2, tuning=SMALL_TILE),
    Problem("bf16", (5, 0, 18), 70, 48, nz=True, bias=True, tuning=SMALL_TILE),
    Problem("f16", (129,), 300, 150, tuning=(128, 256, 64, 0, 1, 1)),
    Problem("int8_static", (37,), 75, 100, bias=True, tuning=(16, 32, 64, 0, 2, 2)),
    Problem("int8_bf16", (37,), 75, 100, bias=True, tuning=(16, 32, 64, 0, 2, 2)),
)


def orders(problem: Problem, seeds: range = SEEDS) -> list[Schedule]:
    """Every directed schedule of a problem's cores, and random ones."""
    cores = problem.cores * (3 if problem.mixed else 1)
    return [
        *directed(cores, cube=True, vector=problem.mixed),
        *(random_order(seed) for seed in seeds),
    ]


@problems(*ORDER_PROBLEMS)
def test_any_order_gives_the_same_bits(problem: Problem) -> None:
    report, first = run_gemm(problem, EAGER)
    assert report.ok, report.message
    for schedule in orders(problem):
        report, t = run_gemm(problem, schedule)
        assert report.ok, (schedule, report.message)
        assert torch.equal(t.out.view(torch.int16), first.out.view(torch.int16)), schedule


@pytest.mark.ascend_full
@pytest.mark.parametrize("form", ["f16", "bf16", "int8_static", *MIXED_FORMS])
@pytest.mark.parametrize("nz", [False, True], ids=["rows", "nz"])
def test_every_odd_number_of_rows(form: str, nz: bool) -> None:
    for m in range(1, 301, 2):
        check_gemm(Problem(form, (m,), 80, 48, nz=nz, bias=m % 4 == 1, pad=m % 3, seed=m))


@pytest.mark.ascend_full
@pytest.mark.parametrize("form", ["f16", "bf16", "int8_static", *MIXED_FORMS])
@pytest.mark.parametrize("nz", [False, True], ids=["rows", "nz"])
def test_ragged_columns_and_depths(form: str, nz: bool) -> None:
    for i, n in enumerate((16, 17, 31, 32, 47, 63, 65, 100, 127, 255, 257, 271, 400, 513)):
        for k in (1, 3, 15, 17, 31, 33, 64, 100, 255, 257, 511, 700):
            m = 1 + (7 * i + k) % 70
            check_gemm(Problem(form, (m,), n, k, nz=nz, bias=(n + k) % 2 == 0, cores=2 + i % 3))


@pytest.mark.ascend_full
@pytest.mark.parametrize("form", ["f16", "int8_static", "int8_f16"])
def test_every_tile(form: str) -> None:
    for m_tile in (16, 48, 64, 96, 128):
        for n_tile in (32, 48, 64, 112, 176, 256):
            for direction in (0, 1):
                tuning = (m_tile, n_tile, 0, direction, 1 + n_tile // 64, 0)
                check_gemm(Problem(form, (141,), 301, 130, bias=True, tuning=tuning, cores=3))


@pytest.mark.ascend_full
@problems(*ORDER_PROBLEMS)
def test_twenty_random_orders(problem: Problem) -> None:
    for seed in range(20):
        check_gemm(dataclasses.replace(problem, seed=seed), random_order(seed))


def real_bytes(problem: Problem) -> tuple[int, int]:
    """Bytes that one pass over the real rows moves: x, weight and out, each element once."""
    size = 1 if problem.int8 else 2
    return size * (problem.m + problem.n) * problem.k, 2 * problem.m * problem.n


@pytest.mark.parametrize("m", [1, 5, 17, 100, 129])
def test_bytes_are_those_of_the_real_rows(m: int) -> None:
    """One column of tiles: x is read once, and the weight once per tile of rows."""
    problem = Problem("f16", (m,), 256, 320, cores=2, tuning=(128, 256, 0, 0, 0, 1))
    report = check_gemm(problem)
    tiles = -(-m // 128)
    read, written = real_bytes(problem)
    weight = 2 * problem.n * problem.k
    assert report.count("mte2.bytes") == read + (tiles - 1) * weight
    assert report.count("fix.bytes") == written
    # Physical padding would read and write whole tiles of rows.
    rows = 128 * tiles
    padded = 2 * rows * (problem.k + problem.n) + tiles * weight
    virtual = report.count("mte2.bytes") + report.count("fix.bytes")
    assert virtual == padded - 2 * (rows - m) * (problem.k + problem.n)
    print(f"m = {m}: {virtual} bytes moved, {padded} with physical padding")


def test_ragged_columns_cost_at_most_fifteen_rows_twice() -> None:
    """The stated price of a Fixpipe that writes columns in sixteens."""
    problem = Problem("f16", (20,), 103, 64, cores=1, tuning=(32, 112, 0, 0, 0, 1))
    report = check_gemm(problem)
    read, written = real_bytes(problem)
    again = 16 - 103 % 16
    assert report.count("mte2.bytes") == read + 2 * again * problem.k
    assert report.count("fix.bytes") == written + 2 * again * problem.m


def test_workspace_is_all_that_the_mixed_form_adds() -> None:
    problem = Problem("int8_bf16", (37,), 96, 128, cores=2, tuning=(64, 96, 0, 0, 0, 1))
    report = check_gemm(problem)
    read, written = real_bytes(problem)
    tile, columns, rows = 4 * 37 * 96, 2 * 4 * 96, 4 * 37
    assert report.count("fix.bytes") == tile
    assert report.count("mte2.bytes") == read + tile + columns + rows
    assert report.count("mte3.bytes") == written


def test_row_does_not_depend_on_its_neighbours() -> None:
    """With one tile, a row's bits are the same in any batch."""
    problem = Problem("bf16", (61,), 100, 200, bias=True, tuning=(64, 112, 0, 0, 0, 1))
    _, whole = run_gemm(problem)
    few = dataclasses.replace(
        whole,
        x=whole.x[20:27].clone(),
        out=torch.full_like(whole.out[:7], 7.0),
        expected=whole.expected[20:27],
        numbers=[*whole.numbers[:2], 7, *whole.numbers[3:]],
    )
    alone = dataclasses.replace(problem, rows=(7,))
    report, _ = run_gemm(alone, tensors=few)
    assert report.ok, report.message
    compare_gemm(alone, few)
    assert torch.equal(few.out.view(torch.int16), whole.out[20:27].view(torch.int16))


REFUSALS = {
    "columns": (Problem("f16", (4,), 15, 32), "in sixteens"),
    "tile": (Problem("f16", (4,), 64, 64, tuning=(144, 64, 0, 0, 0, 0)), "do not hold"),
    "ragged tile": (Problem("f16", (4,), 64, 64, tuning=(16, 40, 0, 0, 0, 0)), "multiples of 16"),
    "deep tile": (Problem("f16", (4,), 256, 900, tuning=(16, 256, 512, 0, 1, 1)), "do not hold"),
    "narrow tile": (Problem("f16", (4,), 40, 64, tuning=(16, 16, 0, 0, 0, 0)), "at least 32"),
    "order": (Problem("f16", (4,), 64, 64, tuning=(16, 64, 0, 2, 1, 1)), "swizzle_direction"),
    "cores": (Problem("f16", (4,), 64, 64, cores=25), "1 to 24"),
}


@pytest.mark.parametrize(("problem", "words"), REFUSALS.values(), ids=REFUSALS.keys())
def test_can_run_says_no_with_a_reason(problem: Problem, words: str) -> None:
    t = make(problem, fixpipe_word)
    answer = gemm_plan(gemm_memory(t), t.numbers)
    assert isinstance(answer, str)
    assert words in answer


def test_can_run_checks_scales() -> None:
    t = make(Problem("int8_f16", (4,), 32, 32), fixpipe_word)
    memory = gemm_memory(t)
    memory[3] = None
    assert "scale per column" in str(gemm_plan(memory, t.numbers))
    static = make(Problem("int8_static", (4,), 32, 32), fixpipe_word)
    memory = gemm_memory(static)
    memory[4] = torch.ones(4)
    assert "scale per row" in str(gemm_plan(memory, static.numbers))


def test_can_run_checks_strides() -> None:
    t = make(Problem("f16", (4,), 32, 32))
    t.numbers[6] = 31
    assert "row strides" in str(gemm_plan(gemm_memory(t), t.numbers))
    t.numbers[6], t.numbers[9] = 32, (1 << 30) + 1
    assert "above 2^30" in str(gemm_plan(gemm_memory(t), t.numbers))


def test_a_weight_row_beyond_sixteen_bits_is_loaded_row_by_row() -> None:
    check_gemm(Problem("f16", (3,), 20, 64, pad=65535))
    check_gemm(Problem("int8_static", (3,), 20, 64, pad=65535))


def test_an_nz_weight_of_more_rows_than_sixteen_bits_is_loaded_block_by_block() -> None:
    check_gemm(Problem("f16", (2,), 66000, 40, nz=True, cores=4))
