"""The cost model's counts against what the emulation counts while the kernels run.

Bytes per path and cube cycles agree exactly: the model describes these kernels and no others.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.ascend_batches import merging_of, tiles_of
from tests.ascend import attention_launch, running
from tests.ascend.attention_cases import FOUR_STAGE, THREE_STAGE, TWO_STAGE, Case, make_batch
from tests.ascend.emulator import Report
from tests.ascend.gemm import Problem
from vllm_xyserve.plan import Geometry, view
from vllm_xyserve.plan.ascend import vectors
from vllm_xyserve.plan.ascend.counts import (
    Counts,
    Form,
    Heads,
    LinearTile,
    attention_counts,
    linear_tile,
    merge_counts,
)
from vllm_xyserve.plan.ascend.predict import Linear

FORMS = {
    THREE_STAGE: Form.THREE_STAGE,
    FOUR_STAGE: Form.FOUR_STAGE,
    TWO_STAGE: Form.TWO_STAGE,
}


def counted(report: Report, *, mixed: bool) -> dict[str, int]:
    """The emulation's counters under the model's names. Cores of a mixed launch come in threes: a
    cube core and its two vector cores."""
    per_block = 3 if mixed else 1
    cubes = report.per_core[::per_block]
    vectors = [c for i, c in enumerate(report.per_core) if i % per_block]

    def total(cores: list[dict[str, int]], name: str) -> int:
        return sum(core.get(name, 0) for core in cores)

    return {
        "gm_to_l1": total(cubes, "mte2.bytes"),
        "gm_to_ub": total(vectors, "mte2.bytes"),
        "ub_to_gm": total(vectors, "mte3.bytes"),
        "l0c_to_gm": total(cubes, "fix.bytes"),
        "l1_to_l0a": total(cubes, "mte1.l0a.bytes"),
        "l1_to_l0b": total(cubes, "mte1.l0b.bytes"),
        "mmad_cycles": total(cubes, "mmad.cycles"),
    }


def predicted(counts: Counts, times: np.ndarray | float = 1.0) -> dict[str, float]:
    """Sums over tiles. times: heads of each."""
    names = ("gm_to_l1", "gm_to_ub", "ub_to_gm", "l0c_to_gm", "l1_to_l0a", "l1_to_l0b")
    return {n: float((getattr(counts, n) * times).sum()) for n in (*names, "mmad_cycles")}


CASES = {
    "three stages": Case((150, 1, 40), (150, 700, 333), form=THREE_STAGE),
    "four stages": Case((150, 1, 40), (150, 700, 1333), splits=False),
    "four stages, split": Case((1, 1, 5), (2600, 300, 900), cores=4),
    "head of 256": Case((70, 1), (200, 513), head_dim=256, splits=False),
    "two stages": Case((1, 1, 1), (2600, 300, 64), form=TWO_STAGE, group_size=2, splits=False),
    "two stages, split": Case((1, 1), (4500, 130), form=TWO_STAGE, group_size=1, cores=3),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_attention(case: Case) -> None:
    batch = make_batch(case)
    report = attention_launch.check_run(batch)
    table = view(batch.table)
    geometry = Geometry(case.num_kv_heads, case.group_size, case.head_dim)
    heads = Heads(case.head_dim, 2)
    tiles = tiles_of(table, geometry)
    counts = attention_counts(FORMS[case.form], heads, tiles.rows, tiles.keys, tiles.is_split)
    expected = predicted(counts, tiles.num_heads)
    merging = merging_of(table, geometry)
    for name, value in predicted(merge_counts(heads, merging.rows, merging.splits)).items():
        expected[name] += value
    assert expected["mmad_cycles"] > 0
    assert counted(report, mixed=True) == expected


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_vector_work(case: Case) -> None:
    """Repeats of every operation at its published rate; the model has neither masks nor the last
    division of a tile, and rounds rows of a set."""
    batch = make_batch(case)
    report = attention_launch.check_run(batch)
    worked = 0.0
    for name, repeats in report.counters.items():
        if name.startswith("vector."):
            worked += repeats * vectors.CYCLES[name.split(".")[1]]
    table = view(batch.table)
    geometry = Geometry(case.num_kv_heads, case.group_size, case.head_dim)
    tiles = tiles_of(table, geometry)
    form, heads = FORMS[case.form], Heads(case.head_dim, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "START_CYCLES", 0)
        counts = attention_counts(form, heads, tiles.rows, tiles.keys, tiles.is_split)
        merging = merging_of(table, geometry)
        merges = merge_counts(heads, merging.rows, merging.splits)
    expected = float((counts.vector_cycles * tiles.num_heads).sum() + merges.vector_cycles.sum())
    assert worked == pytest.approx(expected, rel=0.05)


LAYERS = {
    "whole tiles": (256, 512, 512, (128, 256)),
    "odd rows": (77, 256, 512, (64, 128)),
    "last wave cut": (33, 640, 256, (48, 256)),
}


@pytest.mark.parametrize(("m", "n", "k", "shape"), LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("form", ["f16", "int8_static"])
def test_linear(m: int, n: int, k: int, shape: tuple[int, int], form: str) -> None:
    problem = Problem(form, (m,), n, k, cores=4, tuning=(*shape, 0, 0, 0, 0))
    report = running.check_gemm(problem)
    element = 1 if problem.int8 else 2
    tile: LinearTile = linear_tile(*shape)
    found = counted(report, mixed=False)
    expected = predicted(Linear(m, n, k, element, 2).all_counts(tile, problem.cores))
    if problem.int8:
        # Scales, eight bytes per column and tile.
        scales = found["gm_to_l1"] - expected["gm_to_l1"]
        assert 0 < scales <= 8 * n * (-(-m // shape[0]))
        expected["gm_to_l1"] += scales
    assert found == expected


def test_virtual_padding_moves_the_real_rows_alone() -> None:
    """33 rows of a tile of 48: what is read and written is 33 rows, and the weight once."""
    m, n, k = 33, 256, 512
    report = running.check_gemm(Problem("f16", (m,), n, k, cores=1, tuning=(48, 256, 0, 0, 0, 1)))
    found = counted(report, mixed=False)
    assert found["gm_to_l1"] == (m + n) * k * 2
    assert found["l0c_to_gm"] == m * n * 2
    physical = Linear(m, n, k).all_counts(linear_tile(48, 256), 1, physical=True)
    assert float(physical.gm_bytes.sum()) == (48 + n) * k * 2 + 48 * n * 2
