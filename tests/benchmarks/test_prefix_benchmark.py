"""The prefix benchmark without an engine: its workloads, its law, and the form of its summary."""

import argparse
import json
import math
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from benchmarks import prefix, prefix_costs, prefix_law, prefix_loop, prefix_plot
from benchmarks import prefix_workloads as workloads
from benchmarks.harness import Options, Result, Row, main
from benchmarks.prefix_law import Step
from tests.helpers.scheduler_sim import make_sim


def shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length


def prompts(workload: workloads.Workload) -> list[tuple[int, ...]]:
    return [session.turns[0].tokens for session in workload.sessions]


@pytest.mark.parametrize("name", workloads.NAMES)
@pytest.mark.parametrize("quick", [True, False])
def test_workloads_are_deterministic_and_fit_the_model(name: str, quick: bool) -> None:
    workload = workloads.make(name, quick)
    assert workload == workloads.make(name, quick)
    assert workload.num_requests >= 8
    for session in workload.sessions:
        total = sum(len(turn.tokens) + turn.num_generated for turn in session.turns)
        assert total <= 8192
        for turn in session.turns:
            assert turn.num_generated >= 1
            assert all(workloads.FIRST_TOKEN <= t < workloads.VOCAB_SIZE for t in turn.tokens)


@pytest.mark.parametrize("name", workloads.NAMES)
def test_tokens_are_varied(name: str) -> None:
    for prompt in prompts(workloads.make(name, quick=True)):
        assert len(set(prompt)) > 0.85 * len(prompt)


def test_agent_prompts_have_the_lengths_and_share_all_but_the_question() -> None:
    workload = workloads.agent(num_rounds=3)
    assert {turn.num_generated for s in workload.sessions for turn in s.turns} == {64}
    rounds = [prompts(workload)[i : i + 8] for i in (0, 8, 16)]
    for one in rounds:
        lengths = sorted(len(prompt) - workloads.QUESTION_LEN for prompt in one)
        for length, nominal in zip(lengths, workloads.AGENT_PROMPT_LENS, strict=True):
            assert abs(length - nominal) <= 17
        assert all(shared(a, b) == 0 for a, b in combinations(one, 2))
    for prompt in rounds[0]:
        for one in rounds[1:]:
            best = max(shared(prompt, other) for other in one)
            assert best == len(prompt) - workloads.QUESTION_LEN


def test_multi_turn_conversations_share_the_system_prompt_alone() -> None:
    workload = workloads.multi_turn(num_conversations=4)
    assert all(len(session.turns) == 6 for session in workload.sessions)
    assert {shared(a, b) for a, b in combinations(prompts(workload), 2)} == {75}
    later = [turn.tokens for s in workload.sessions for turn in s.turns[1:]]
    assert {shared(a, b) for a, b in combinations(later, 2)} == {0}


def test_few_shot_tasks_share_their_examples() -> None:
    asked = prompts(workloads.few_shot(num_questions=3))
    common = [max(shared(a, b) for b in asked if a is not b) for a in asked]
    for prompt, length in zip(asked, common, strict=True):
        assert 25 <= len(prompt) - length <= 60
    assert len(set(common)) == 4


def test_unique_prompts_share_nothing() -> None:
    asked = prompts(workloads.unique(20))
    assert {shared(a, b) for a, b in combinations(asked, 2)} == {0}


def write_trace(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def trace_row(input_length: int, output_length: int, *hash_ids: int) -> dict[str, Any]:
    return {
        "timestamp": 0,
        "input_length": input_length,
        "output_length": output_length,
        "hash_ids": list(hash_ids),
    }


def test_mooncake_keeps_prefix_structure_and_scales_lengths(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path,
        [
            trace_row(1400, 320, 0, 1, 2),
            trace_row(1000, 1, 0, 7),
            trace_row(2000, 64, 0, 1, 5, 6),
            trace_row(600, 64, 0, 9),
        ],
    )
    first, second, third = prompts(workloads.mooncake(2, path, tokens_per_id=32))
    assert (len(first), len(second), len(third)) == (88, 62, 125)  # a 16th, rounded to even
    assert (shared(first, second), shared(first, third), shared(second, third)) == (32, 64, 32)
    generated = [s.turns[0].num_generated for s in workloads.mooncake(2, path).sessions]
    assert generated == [20, 1, 4]


def test_mooncake_cuts_long_prompts_and_names_a_bad_row(tmp_path: Path) -> None:
    path = write_trace(tmp_path, [trace_row(512 * 40, 9, *range(40))])
    (prompt,) = prompts(workloads.mooncake(1, path, max_prompt_len=1000))
    assert len(prompt) == 1000
    path = write_trace(tmp_path, [trace_row(5, 5, 1), {"input_length": 4}])
    with pytest.raises(ValueError, match=r"trace.jsonl:2.*hash_ids"):
        workloads.mooncake(3, path)


def test_excerpt_is_a_trace_with_follow_ups() -> None:
    workload = workloads.mooncake(150)
    assert len(workload.sessions) == 315
    asked = prompts(workload)
    hits = [max((shared(p, q) for q in asked[:i]), default=0) for i, p in enumerate(asked)]
    assert 0.4 < sum(hits) / sum(map(len, asked)) < 0.55


def test_law_by_hand() -> None:
    """Blocks of four. One finished, one running; two are admitted in the same step."""
    sequences = {
        "old": [1, 2, 3, 4, 5, 6, 7],  # the 7 was sampled and never computed
        "runs": [1, 2, 3, 9, 9, 9, 9, 9, 9, 5, 5],
        "a": [1, 2, 3, 4, 5, 6, 7, 8, 8, 8],
        "b": [1, 2, 3, 4, 5, 6, 7, 8, 8, 8],
        "c": [1, 2, 3, 9, 9, 9, 9, 9, 9, 9],
        "d": [1, 2, 3, 4, 5],
    }
    steps = [
        Step({}, {"old": 6}, [("old", 0)]),
        Step(
            {"runs": 5},
            {"runs": 4, "a": 3, "b": 1, "c": 1, "d": 1},
            [("a", 6), ("b", 8), ("c", 8), ("d", 4)],
        ),
    ]
    prompt_lens = {"old": 6, "runs": 9, "a": 9, "b": 9, "c": 10, "d": 5}
    got = {
        a.name: (a.law, a.block_law)
        for a in prefix_law.admissions(steps, sequences, prompt_lens, {"old": 0}, 4)
    }
    assert got == {
        "old": (0, 0),
        "a": (6, 4),
        "b": (8, 8),  # the two blocks that "a" is about to fill
        "c": (8, 8),  # of "runs", whose second block is filled in this step
        "d": (4, 4),  # one token is always computed
    }


@pytest.mark.parametrize("name", workloads.NAMES)
@pytest.mark.parametrize("concurrency", [1, 8])
def test_loop_finds_the_law_kept_and_stock_within_blocks(name: str, concurrency: int) -> None:
    workload = workloads.shortened(workloads.make(name, quick=True), 12, 3, 8)
    runs = {}
    for xyserve in (True, False):
        engine = prefix_costs.SimEngine(make_sim(128, 1000, xyserve=xyserve))
        runs[xyserve] = prefix_loop.run(engine, workload, concurrency)
    ours, stock = runs[True], runs[False]
    assert len(ours.answers) == len(ours.ttft_s) == workload.num_requests
    asked = sum(t.num_generated for s in workload.sessions for t in s.turns)
    assert ours.num_generated_tokens == asked
    assert ours.hit_tokens == ours.law_tokens
    assert ours.below_law == []
    assert stock.hit_tokens == stock.block_law_tokens
    if name == "unique":
        assert ours.hit_tokens == 0
    else:
        assert ours.hit_tokens > stock.hit_tokens
        assert stock.below_law


def test_later_turns_carry_the_answers() -> None:
    workload = workloads.multi_turn(1, num_turns=3, num_generated=5)
    engine = prefix_costs.SimEngine(make_sim(128, 100))
    result = prefix_loop.run(engine, workload, 1)
    first, second, third = (engine.requests[f"s0t{turn}"] for turn in range(3))
    assert list(second.prompt_token_ids)[: first.num_tokens] == list(first.all_token_ids)
    assert list(third.prompt_token_ids)[: second.num_tokens] == list(second.all_token_ids)
    assert [answer.turn for answer in result.answers] == [0, 1, 2]


def test_lookup_check_holds_and_both_sides_are_measured() -> None:
    options = Options(quick=True, json=False, extra=argparse.Namespace())
    added_us, rows = prefix_costs.lookup(options, num_children=40)
    assert math.isfinite(added_us)
    assert len(rows) == 2
    assert all(row["ours_us"] > 0 and row["peer_us"] > 0 for row in rows)


def test_step_cost_has_both_sides() -> None:
    cost = prefix_costs.step_cost(num_decodes=3, num_steps=10, steps_per_request=2)
    assert min(cost.stock_schedule_us, cost.ours_schedule_us, cost.ours_update_us) > 0
    assert cost.row()["ratio"] == cost.stock_us / cost.ours_us


def answer(session: int, tokens: list[int], margin: float = 1.0) -> list[Any]:
    return [session, 0, tokens, [margin] * len(tokens)]


def test_wrong_answers_are_found_and_ties_are_counted() -> None:
    right = [answer(0, [1, 2, 3]), answer(1, [4, 5, 6])]
    assert prefix.compare(right, right, "here") == 0
    with pytest.raises(AssertionError, match=r"here: session 1, turn 0: token 1 is 9, not 5"):
        prefix.compare([right[0], answer(1, [4, 9, 6])], right, "here")
    tied = [right[0], answer(1, [4, 9, 7], margin=1e-5)]
    assert prefix.compare(tied, right, "here") == 1
    with pytest.raises(AssertionError, match="1 answers, 2 expected"):
        prefix.compare(right[:1], right, "here")
    with pytest.raises(AssertionError):
        prefix.compare([], [], "here")


def one_run(wall_s: float, hit_tokens: int) -> dict[str, Any]:
    return {
        "wall_s": wall_s,
        "ttft_s": [0.1 * wall_s, 0.2 * wall_s, 0.3 * wall_s],
        "num_requests": 3,
        "prompt_tokens": 300,
        "generated_tokens": 30,
        "hit_tokens": hit_tokens,
        "law_tokens": 200,
        "block_law_tokens": 128,
        "below_law": [],
        "decode_step_us": 1000.0,
        "answers": [],
    }


class FakeEngine:
    """Answers as an engine that takes ``wall_s`` for everything."""

    def __init__(self, wall_s: float, hit_tokens: int) -> None:
        self.result = one_run(wall_s, hit_tokens)

    def ask(self, command: str, **_: Any) -> Any:
        assert command == "run"
        return self.result

    def cpu_s(self) -> float:
        return 0.0


def fake_rows() -> list[Row]:
    extra = argparse.Namespace(repeats=3, trace=workloads.EXCERPT)
    bench = prefix.Bench(Options(quick=True, json=True, extra=extra), Path("model"))
    rows = []
    for name, ours_s in (("agent", 2.0), ("unique", 4.0)):
        for concurrency in prefix.CONCURRENCIES:
            engines: Any = {"peer": FakeEngine(3.0, 128), "ours": FakeEngine(ours_s, 200)}
            runs: prefix.Runs = {"peer": [], "ours": []}
            idle_s = prefix.run_pair(bench, engines, name, concurrency, runs)
            rows.append(prefix.pair_row(name, concurrency, runs, idle_s))
            assert rows[-1]["repeats"] == 2  # of this start order
    return rows


SUMMARY = {
    "hit_share_of_law",
    "agent_throughput_ratio",
    "agent_ttft_ratio",
    "worst_throughput_ratio",
    "lookup_added_us",
    "no_hit_engine_step_ratio",
}


def test_json_has_the_summary(capfd: pytest.CaptureFixture[str]) -> None:
    rows = fake_rows()
    copies: Row = {"name": "copy", "break_even_tokens": 3, "ratio": 4.0}
    scheduler = {"lookup_added_us": 20.0, "scheduler_added_us": 10.0, "scheduler_step_ratio": 0.9}
    summary = prefix.summarize(rows, copies, scheduler)
    assert summary["agent_throughput_ratio"] == pytest.approx(1.5)
    assert summary["agent_ttft_ratio"] == pytest.approx(1.5)
    assert summary["worst_throughput_ratio"] == pytest.approx(0.75)
    assert summary["hit_share_of_law"] == 1.0
    assert summary["no_hit_engine_step_ratio"] == pytest.approx(1000 / 1010)
    main(lambda _: Result(summary, rows), None, argv=["--json"])
    whole = json.loads(capfd.readouterr().out)
    assert set(whole["summary"]) >= SUMMARY
    assert whole["rows"][0]["ours_computed_tokens"] == 100
    assert whole["rows"][0]["peer_computed_tokens"] == 172


def test_a_miss_of_the_law_shows() -> None:
    assert prefix.share([one_run(1.0, 200), one_run(1.0, 150)]) == 0.75


def test_plots_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = prefix_plot.plot(fake_rows(), tmp_path / "plots")
    assert len(files) == 2
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="prepare_model"):
        prefix.model_folder(tmp_path)
