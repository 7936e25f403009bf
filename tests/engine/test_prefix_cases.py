"""Token-level prefix hits through the whole engine, SmolLM2 in float32.

Every answer is compared with that of stock vLLM without prefix caching, and every number of cached
tokens with the hit law: min(longest common prefix with what is cached, length of the prompt - 1).
"""

from __future__ import annotations

import json
from concurrent.futures import Future
from typing import Any

import pytest

from tests.engine import prefix_engines
from tests.engine.prefix_cases import Case, key
from tests.engine.prefix_engines import CASES, ENGINES, SPECULATION, TRAFFIC
from tests.helpers.engine import Run

LOGPROB_ATOL = 1e-3
LEAST_GAP = 1e-4

Runs = dict[str, Future[Run]]
each_engine = pytest.mark.parametrize("engine", ENGINES)
each_case = pytest.mark.parametrize(
    ("engine", "name"), [(engine, name) for engine, some in CASES.items() for name in some]
)


@pytest.fixture
def runs(prefix_runs: Runs) -> Runs:
    """The child of each engine."""
    return prefix_runs


@pytest.fixture(scope="module")
def cold(prefix_runs: Runs) -> dict[str, Any]:
    """Answers without prefix caching, by `key`."""
    (driven,) = prefix_runs["cold"].result()["cold", "all"]
    keys = prefix_engines.cold_requests()
    assert len(driven["answers"]) == len(keys)
    return {key: driven["answers"][f"c{i}"] for i, key in enumerate(keys)}


def answers_of(runs: Runs, engine: str, case: Case) -> dict[str, Any]:
    """Answers of all its requests by name, without aborted ones."""
    driven = [a for a in runs[engine].result()[engine, case.name] if is_of(a, "answers")]
    return {name: answer for drive in driven for name, answer in drive["answers"].items()}


def states(runs: Runs, engine: str, case: Case) -> list[dict[str, Any]]:
    return [a for a in runs[engine].result()[engine, case.name] if is_of(a, "counters")]


def is_of(answer: Any, kind: str) -> bool:
    return isinstance(answer, dict) and kind in answer


def counted(states: list[dict[str, Any]], counter: str) -> int:
    """How much one of the plugin's counters grew between a case's two states."""
    before, after = (state["counters"][counter] for state in states)
    return int(after - before)


def measured(states: list[dict[str, Any]], metric: str) -> int:
    """The same of one of vLLM's metrics."""
    before, after = (state["metrics"].get(metric, 0) for state in states)
    return int(after - before)


def same_answers(case: Case, got: dict[str, Any], cold: dict[str, Any]) -> None:
    """Tokens and logprobs of the cold engine, for all that was answered."""
    compared = [e for e in case.requests() if e["name"] in got.keys() - case.unchecked]
    assert compared
    for event in compared:
        same_answer(f"{case.name}/{event['name']}", got[event["name"]], cold[key(event)])


def same_answer(name: str, have: dict[str, Any], want: dict[str, Any]) -> None:
    assert len(have["outputs"]) == len(want["outputs"]) > 0
    for one, other in zip(have["outputs"], want["outputs"], strict=True):
        assert one["tokens"] == other["tokens"], name
        same_logprobs(name, one["logprobs"], other["logprobs"])
    if want["prompt_logprobs"] is None:
        assert have["prompt_logprobs"] is None
        return
    assert len(have["prompt_logprobs"]) == len(want["prompt_logprobs"]) == want["num_prompt_tokens"]
    same_logprobs(name, have["prompt_logprobs"][1:], want["prompt_logprobs"][1:])


def same_logprobs(name: str, have: list[Any], want: list[Any]) -> None:
    assert len(have) == len(want)
    for one, other in zip(have, want, strict=True):
        common = one.keys() & other.keys()  # the last of a list may change places with the next
        assert len(common) >= min(len(one), len(other)) - 1 > 0, name
        for token in common:
            assert one[token] == pytest.approx(other[token], abs=LOGPROB_ATOL), name


def hits(case: Case, got: dict[str, Any]) -> dict[str, int]:
    return {n: answer["num_cached_tokens"] for n, answer in got.items() if n in case.cached}


@each_case
def test_law_and_answers(runs: Runs, cold: dict[str, Any], engine: str, name: str) -> None:
    case = CASES[engine][name]
    got = answers_of(runs, engine, case)
    assert hits(case, got) == case.cached
    assert {event["name"] for event in case.requests()} <= got.keys()
    same_answers(case, got, cold)


@each_engine
def test_the_scheduler_is_the_one_asked_for(runs: Runs, engine: str) -> None:
    classes = states(runs, engine, CASES[engine]["preemption"])[0]["scheduler"]
    assert "XySchedulerMixin" in classes
    assert ("AsyncScheduler" in classes) == ENGINES[engine][1]


def test_cold_answers_are_comparable(cold: dict[str, Any]) -> None:
    """Nothing was cached, answers differ, and no greedy token was nearly another one."""
    assert {answer["num_cached_tokens"] for answer in cold.values()} == {0}
    answers = {name: tuple(answer["outputs"][0]["tokens"]) for name, answer in cold.items()}
    assert len(set(answers.values())) > len(answers) / 2
    for name, answer in cold.items():
        if json.loads(name)["temperature"] == 0:
            for position in answer["outputs"][0]["logprobs"]:
                best, second = sorted(position.values(), reverse=True)[:2]
                assert best - second > LEAST_GAP, name


@pytest.mark.parametrize("engine", [*ENGINES, "ngram"])
def test_turns_answer_as_without_cache(runs: Runs, engine: str) -> None:
    """Prompts that hold the engine's own answers."""
    case = SPECULATION if engine == "ngram" else CASES[engine]["turns"]
    got, want = answers_of(runs, engine, case), answers_of(runs, "cold", case.chain())
    assert len(want) > 1
    for name, answer in want.items():
        assert answer["num_cached_tokens"] == 0
        assert answer["num_prompt_tokens"] == got[name]["num_prompt_tokens"]
        same_answer(name, got[name], answer)


@each_engine
def test_counters_are_the_sum_of_the_answers(runs: Runs, engine: str) -> None:
    """Three requests that share S tokens: 2 * S cached, told alike in all three places."""
    case = CASES[engine]["shared-beginnings"]
    seen = states(runs, engine, case)
    total = sum(a["num_cached_tokens"] for a in answers_of(runs, engine, case).values())
    assert total == 2 * (1 + 33 + 131)
    assert counted(seen, "block_hit_tokens") + counted(seen, "sub_block_hit_tokens") == total
    assert measured(seen, "vllm:prefix_cache_hits") == total
    prompts = sum(len(event["add"]) for event in case.requests())
    assert measured(seen, "vllm:prefix_cache_queries") == prompts


@each_engine
def test_preempted_tokens_are_no_hits(runs: Runs, engine: str) -> None:
    seen = states(runs, engine, CASES[engine]["preemption"])
    assert measured(seen, "vllm:num_preemptions") > 0
    assert measured(seen, "vllm:prefix_cache_hits") == 0
    assert counted(seen, "block_hit_tokens") + counted(seen, "sub_block_hit_tokens") == 0


@each_engine
def test_reset_is_refused_while_a_request_runs(runs: Runs, engine: str) -> None:
    case = CASES[engine]["reset-while-running"]
    first = next(a for a in runs[engine].result()[engine, case.name] if is_of(a, "resets"))
    assert first["resets"] == [False]


@each_case
def test_every_reset_succeeds(runs: Runs, engine: str, name: str) -> None:
    """Between cases, with nothing running: no block was lost."""
    told = runs[engine].result()[engine, name]
    asked = [i for i, op in enumerate(CASES[engine][name].ops) if "reset" in op]
    assert [told[i] for i in asked] == [True] * len(asked)


@pytest.mark.parametrize("engine", TRAFFIC)
def test_random_traffic(runs: Runs, cold: dict[str, Any], engine: str) -> None:
    """Hits, aborts and preemptions in a small pool: cold answers, and no block lost."""
    case = TRAFFIC[engine]
    told = runs[engine].result()[engine, case.name]
    got, seen = answers_of(runs, engine, case), states(runs, engine, case)
    (aborted,) = [a["aborted"] for a in told if is_of(a, "aborted")]
    assert len(aborted) >= 3
    assert len(got) + len(aborted) == len(case.requests())
    same_answers(case, got, cold)
    assert counted(seen, "num_copies") > 10
    assert counted(seen, "sub_block_hit_tokens") > 200
    assert measured(seen, "vllm:num_preemptions") > 0
    assert seen[-1]["num_free"] == seen[-1]["num_blocks"]
    assert told[-1] is True, "the last reset was refused"


def test_speculation(runs: Runs, cold: dict[str, Any]) -> None:
    """The answers of an engine without it, behind hits of any length before the tail."""
    got = answers_of(runs, "ngram", SPECULATION)
    assert hits(SPECULATION, got) == SPECULATION.cached
    same_answers(SPECULATION, got, cold)
    seen = states(runs, "ngram", SPECULATION)
    drafted = measured(seen, "vllm:spec_decode_num_draft_tokens")
    accepted = measured(seen, "vllm:spec_decode_num_accepted_tokens")
    assert 0 < accepted < drafted, "both right and wrong guesses have to occur"
