"""Times of the Ascend model: pipes, cores that share bandwidth, whole launches."""

from __future__ import annotations

import numpy as np
import pytest

from vllm_xyserve.plan.ascend import chip
from vllm_xyserve.plan.ascend.cores import Work, makespan
from vllm_xyserve.plan.ascend.counts import Form, Heads, attention_counts, linear_tile
from vllm_xyserve.plan.ascend.predict import (
    Linear,
    Merging,
    Tiles,
    attention_seconds,
    best_tile,
    linear_layer_seconds,
    select_form,
)
from vllm_xyserve.plan.ascend.times import pipe_times, tile_seconds

MANY = 1e18


def work(cores: list[int], seconds: list[float], hbm: list[float] | None = None) -> Work:
    none = np.zeros(len(cores))
    return Work(
        np.array(cores, dtype=np.int64),
        np.array(seconds),
        none,
        none if hbm is None else np.array(hbm),
    )


def test_without_contention_the_longest_list_decides() -> None:
    found = makespan(work([0, 0, 1, 2], [1.0, 2.0, 2.5, 0.5]), 4, MANY, MANY)
    assert found == pytest.approx(3.0)
    assert makespan(work([], []), 4, MANY, MANY) == 0


def test_cores_share_a_bandwidth_fairly() -> None:
    """Two that want 8 bytes/s each of 10 get 5 each; a third that wants 1 gets it."""
    found = makespan(work([0, 1, 2], [1.0, 1.0, 1.0], [8.0, 8.0, 1.0]), 3, MANY, 10.0)
    # Until t = 1 the two get 4.5 each, then 5 each: 4.5 + 5 * (t - 1) = 8.
    assert found == pytest.approx(1.7)


def test_a_bandwidth_bounds_the_makespan_from_below() -> None:
    rng = np.random.default_rng(7)
    cores = np.sort(rng.integers(0, 8, 60))
    seconds, hbm = rng.uniform(0.1, 1, 60), rng.uniform(0, 5, 60)
    found = makespan(work(cores.tolist(), seconds.tolist(), hbm.tolist()), 8, MANY, 6.0)
    alone = np.bincount(cores, seconds, 8).max()
    assert found >= max(alone, hbm.sum() / 6.0) - 1e-9
    # And nobody idles while others starve: within the sum of both bounds.
    assert found <= alone + hbm.sum() / 6.0 + 1e-9


def test_the_slowest_pipe_decides() -> None:
    counts = attention_counts(Form.FOUR_STAGE, Heads(128), np.array([128.0]), np.array([4096.0]))
    for memory in chip.MEMORIES:
        pipes = pipe_times(chip.B2, memory, counts)
        steady, fill = tile_seconds(chip.B2, memory, counts)
        handshakes = float(counts.steps[0]) * chip.HANDSHAKE_CYCLES / chip.B2.hertz
        every = [pipes.mte2, pipes.mte1, pipes.mmad, pipes.fix]
        every += [pipes.load, pipes.vector, pipes.store]
        assert float(steady[0]) == pytest.approx(max(float(x[0]) for x in every) + handshakes)
        assert 0 < float(fill[0]) < float(steady[0])


def tiles(rows: list[float], keys: list[float], cores: list[int]) -> Tiles:
    return Tiles(
        np.array(cores, dtype=np.int64),
        np.array(rows),
        np.array(keys),
        np.ones(len(rows)),
        np.ones(len(rows)),
        np.zeros(len(rows), dtype=bool),
    )


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("memory", chip.MEMORIES, ids=lambda m: m.name)
def test_more_keys_take_longer(form: Form, memory: chip.Memory) -> None:
    times = [
        attention_seconds(chip.B1, memory, form, Heads(), tiles([2.0], [float(keys)], [0]))
        for keys in (128, 1024, 8192, 65536)
    ]
    assert times == sorted(times)
    assert times[0] > memory.launch_s
    # Long tiles approach a constant time per key.
    assert (times[3] - memory.launch_s) / (times[2] - memory.launch_s) == pytest.approx(8, rel=0.1)


def test_splitting_one_long_decode_over_the_cores_pays_and_merges_cost() -> None:
    memory = chip.MEMORIES[0]
    args = (chip.B1, memory, Form.FOUR_STAGE, Heads())
    whole = attention_seconds(*args, tiles([8.0], [131072.0], [0]))
    parts = tiles([8.0] * 16, [8192.0] * 16, list(range(16)))
    split = attention_seconds(*args, parts)
    merging = Merging(np.array([0], dtype=np.int64), np.array([8.0]), np.array([16.0]))
    merged = attention_seconds(*args, parts, merging)
    assert split < merged < whole


def test_the_form_follows_the_cache_rule() -> None:
    assert select_form(24, 4, 128, 3968, decode_only=False, splits=False) is Form.THREE_STAGE
    assert select_form(24, 4, 128, 4096, decode_only=False, splits=False) is Form.FOUR_STAGE
    assert select_form(20, 4, 128, 4096, decode_only=False, splits=False) is Form.THREE_STAGE
    assert select_form(24, 4, 128, 1000, decode_only=False, splits=True) is Form.FOUR_STAGE
    assert select_form(24, 2, 128, 9999, decode_only=True, splits=True) is Form.TWO_STAGE
    assert select_form(24, 8, 128, 1000, decode_only=True, splits=False) is Form.THREE_STAGE


def test_a_layer_is_bound_by_weights_when_few_rows_come() -> None:
    layer = Linear(1, 4096, 4096)
    for memory in chip.MEMORIES:
        tile, seconds = best_tile(chip.B1, memory, layer)
        assert tile.rows == 16
        least = 4096 * 4096 * 2 / memory.hbm_bytes_per_s
        assert least < seconds - memory.launch_s < 4 * least


def test_physical_padding_is_never_predicted_faster() -> None:
    for m in (1, 17, 100, 129):
        layer = Linear(m, 1024, 1024)
        for memory in chip.MEMORIES:
            tile = linear_tile(128, 256)
            virtual = linear_layer_seconds(chip.B1, memory, layer, tile)
            physical = linear_layer_seconds(chip.B1, memory, layer, tile, physical=True)
            assert virtual <= physical
