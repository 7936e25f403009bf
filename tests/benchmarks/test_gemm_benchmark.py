"""The linear benchmark: shapes, plan and summary, on made-up rows."""

import argparse
import dataclasses
import json

import pytest

from benchmarks import gemm
from benchmarks.gemm_child import Plan, alternate, check
from benchmarks.harness import Options, Row

SUMMARY = {
    "geomean_ratio_m_1_8",
    "geomean_ratio_m_9_32",
    "geomean_ratio_m_33_64",
    "geomean_ratio_m_96_up",
    "min_ratio",
    "int8_over_bf16",
    "int8_over_peer",
    "int8_peer_error",
    "random_order_ratio",
    "unseen_over_order",
    "worst_edge",
}


def options(quick: bool) -> Options:
    extra = argparse.Namespace(
        models=gemm.models(), threads=[1, 2], amx=False, plot=None, dtype="bfloat16"
    )
    return Options(quick=quick, json=False, extra=extra)


def rows() -> list[Row]:
    """Ratio 2 up to M = 8, 4 above, and on two threads numbers that must not count."""
    made: list[Row] = []
    for m in (1, 8, 9, 32, 33, 64, 96, 1024):
        common: Row = {"layer": "x", "n": 1, "k": 1, "m": m, "threads": 1}
        made.append(common | {"kind": "float", "ratio": 2.0 if m <= 8 else 4.0, "gflops": float(m)})
        int8: Row = {"kind": "int8", "ratio": 3.0, "over_float": 0.5 if m < 16 else 2.5}
        int8["peer_error"] = m / 1e4
        made.append(common | int8 | {"gflops": float(m)})
        made.append(common | {"kind": "float", "ratio": 0.1, "gflops": 1.0, "threads": 2})
    made += [{"kind": "first", "m": m, "ratio": r} for m, r in ((3, 1.0), (30, 9.0))]
    made += [{"kind": "unseen", "ours_over_order": value} for value in (0.99, 1.02)]
    made += [{"kind": "edge", "m": m, "edge": e} for m, e in ((8, 1.01), (512, 1.2), (9, 1.1))]
    return made


def test_summary_has_the_agreed_keys_and_counts_one_thread_only() -> None:
    summary = gemm.summarise(rows())
    assert set(summary) == SUMMARY
    assert summary == pytest.approx(
        {
            "geomean_ratio_m_1_8": 2.0,
            "geomean_ratio_m_9_32": 4.0,
            "geomean_ratio_m_33_64": 4.0,
            "geomean_ratio_m_96_up": 4.0,
            "min_ratio": 2.0,
            "int8_over_bf16": 2.5,
            "int8_over_peer": 3.0,
            "int8_peer_error": 0.1024,
            "random_order_ratio": 3.0,
            "unseen_over_order": 1.02,
            "worst_edge": 1.2,
        }
    )


def test_shares_are_of_the_best_rate_with_as_many_threads() -> None:
    made = rows()
    gemm.add_shares(made)
    shares = [(r["m"], r["share"]) for r in made if r["kind"] == "float" and r["threads"] == 1]
    assert shares == [(m, m / 1024) for m in (1, 8, 9, 32, 33, 64, 96, 1024)]
    assert {r["share"] for r in made if r["kind"] == "float" and r["threads"] == 2} == {1.0}


def test_shapes_are_those_of_three_models() -> None:
    assert gemm.models() == ["llama-3-8b", "qwen2.5-0.5b", "smollm2-135m"]
    for model in gemm.models():
        layers = [name.partition("/")[2] for name, _, _ in gemm.read_shapes(model)]
        assert layers == ["qkv", "o", "gate_up", "down", "head"]
    assert ("smollm2-135m/gate_up", 3072, 576) in gemm.read_shapes("smollm2-135m")


def test_full_plan_has_every_row_count_and_survives_the_way_to_the_child() -> None:
    plan = gemm.make_plan(options(quick=False), 1)
    assert plan.row_counts[:64] == list(range(1, 65))
    assert plan.row_counts[64:] == [96, 128, 129, 192, 256, 257, 511, 512, 1024]
    assert set(range(8, 513)) <= set(plan.edge_rows)
    assert len(plan.shapes) == 15
    wanted = json.loads(json.dumps(dataclasses.asdict(plan)))
    wanted["shapes"] = [tuple(shape) for shape in wanted["shapes"]]
    wanted["edge_shapes"] = [tuple(shape) for shape in wanted["edge_shapes"]]
    assert Plan(**wanted) == plan


def test_wrong_answer_ends_the_run() -> None:
    import torch

    good, bad = torch.ones(3), torch.tensor([1.0, 1.0, float("nan")])
    check([lambda: good, lambda: good], 0.02)
    with pytest.raises(AssertionError, match="is off by nan"):
        check([lambda: good, lambda: bad], 0.02)


def test_sides_take_turns() -> None:
    import torch

    seen: list[str] = []

    def side(name: str) -> torch.Tensor:
        seen.append(name)
        return torch.ones(1)

    alternate([lambda: side("a"), lambda: side("b")], 0.0, 3)
    assert seen == ["a"] * 3 + ["b"] * 3 + ["a", "b", "b", "a", "a", "b"]
