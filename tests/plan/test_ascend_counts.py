"""Counts of the Ascend kernels' tiles, against sums written out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from vllm_xyserve.plan.ascend import chip
from vllm_xyserve.plan.ascend.counts import (
    Form,
    Heads,
    attention_counts,
    linear_counts,
    linear_tile,
    merge_counts,
    mmad_cycles,
)
from vllm_xyserve.plan.ascend.predict import Linear

ONE = np.array([1.0])


def value(array: np.ndarray) -> float:
    assert array.shape == (1,)
    return float(array[0])


@pytest.mark.parametrize(
    ("shape", "element_bytes", "cycles"),
    [
        ((16, 16, 16), 2, 1),
        ((17, 16, 16), 2, 2),
        ((128, 256, 64), 2, 8 * 16 * 4),
        ((16, 16, 64), 1, 2),
        ((16, 16, 8), 4, 2),  # fp32: two passes
    ],
)
def test_a_fractal_takes_a_cycle(
    shape: tuple[int, int, int], element_bytes: int, cycles: int
) -> None:
    m, n, k = (np.array([float(x)]) for x in shape)
    assert value(mmad_cycles(m, n, k, element_bytes)) == cycles


def test_a_long_tile_in_four_stages() -> None:
    """100 rows on 1,000 keys, head size 128: two pages of 512 keys, so two steps."""
    counts = attention_counts(Form.FOUR_STAGE, Heads(128), 100 * ONE, 1000 * ONE)
    columns = 1008  # keys in sixteens
    partial = 2 * 100 * 128 * 4
    assert value(counts.steps) == 2
    assert value(counts.gm_to_l1) == 100 * 128 * 2 + 2 * 1000 * 128 * 2 + 100 * columns * 2
    assert value(counts.l0c_to_gm) == 100 * columns * 4 + partial
    assert value(counts.gm_to_ub) == 100 * columns * 4 + partial
    assert value(counts.ub_to_gm) == 100 * columns * 2 + 100 * 128 * 2
    assert value(counts.mmad_cycles) == 2 * 7 * (columns / 16) * 8
    assert value(counts.kv_bytes) == 2 * 1000 * 128 * 2


def test_three_stages_write_no_partial_output() -> None:
    three = attention_counts(Form.THREE_STAGE, Heads(128), 100 * ONE, 1000 * ONE)
    four = attention_counts(Form.FOUR_STAGE, Heads(128), 100 * ONE, 1000 * ONE)
    assert value(three.steps) == 1
    # The output leaves the cube core directly instead of a vector core.
    assert value(three.l0c_to_gm) == 100 * 1008 * 4 + 100 * 128 * 2
    assert value(three.ub_to_gm) == 100 * 1008 * 2
    assert value(three.mmad_cycles) == value(four.mmad_cycles)
    assert value(three.gm_bytes) < value(four.gm_bytes)


def test_small_tiles_take_more_keys_per_step() -> None:
    rows = np.array([8.0, 33.0, 128.0])
    counts = attention_counts(Form.FOUR_STAGE, Heads(128), rows, np.full(3, 8192.0))
    assert counts.steps.tolist() == [4, 8, 16]


def test_two_stages_read_keys_on_the_vector_cores() -> None:
    counts = attention_counts(Form.TWO_STAGE, Heads(128), ONE, 4096 * ONE)
    half_kv = 4096 * 128 * 2
    assert value(counts.gm_to_l1) == half_kv + 4096 * 2
    assert half_kv < value(counts.gm_to_ub) < 1.02 * half_kv
    assert value(counts.mmad_cycles) == 1 * 8 * 256  # one product, not two


def test_the_form_decides_nothing_without_keys() -> None:
    for form in Form:
        counts = attention_counts(form, Heads(64), ONE, 0 * ONE)
        assert value(counts.kv_bytes) == 0
        assert np.isfinite(value(counts.gm_bytes))


def test_merges_read_every_part_once_and_its_lse_twice() -> None:
    counts = merge_counts(Heads(128), 4 * ONE, 3 * ONE)
    assert value(counts.gm_to_ub) == 3 * 4 * (128 + 16) * 4
    assert value(counts.ub_to_gm) == 4 * 128 * 2


def test_virtual_padding_moves_real_rows_and_physical_padding_whole_tiles() -> None:
    tile = linear_tile(64, 256)
    virtual = linear_counts(tile, 33 * ONE, 256 * ONE, 1024, 2, 2)
    physical = linear_counts(tile, 33 * ONE, 256 * ONE, 1024, 2, 2, physical=True)
    assert value(virtual.gm_to_l1) == (33 + 256) * 1024 * 2
    assert value(physical.gm_to_l1) == (64 + 256) * 1024 * 2
    assert value(virtual.l0c_to_gm) == 33 * 256 * 2
    assert value(physical.l0c_to_gm) == 64 * 256 * 2
    assert value(virtual.mmad_cycles) == 3 * 16 * 64  # 48 rows
    assert value(physical.mmad_cycles) == 4 * 16 * 64


@pytest.mark.parametrize("cores", [20, 24])
@pytest.mark.parametrize(("m", "n"), [(1, 4096), (300, 512), (128, 256), (1000, 1000)])
def test_tiles_cover_the_output_whatever_the_last_wave(m: int, n: int, cores: int) -> None:
    layer = Linear(m, n, 256)
    tile = linear_tile(128, 256)
    for cuts_last in (True, False):
        counts = layer.all_counts(tile, cores, cuts_last=cuts_last)
        assert counts.l0c_to_gm.sum() == m * n * 2
        # A tile of m rows and n columns reads m + n rows of K.
        assert counts.gm_to_l1.sum() >= (m + n) * 256 * 2
    assert len(layer.all_counts(tile, cores).steps) >= len(counts.steps)


def test_linear_tiles_fit_the_first_level_buffer_twice() -> None:
    for rows in (16, 64, 128):
        for columns in (16, 128, 256):
            tile = linear_tile(rows, columns)
            assert 2 * (rows + columns) * tile.row_bytes <= chip.L1_BYTES
