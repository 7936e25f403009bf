"""Token-level prefix hits through the whole engine, SmolLM2 in float32.

Every answer is compared with that of stock vLLM without prefix caching, and every number of cached
tokens with the hit law: min(longest common prefix with what is cached, length of the prompt - 1).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.engine import prefix_cases
from tests.engine.conftest import TIMEOUT
from tests.engine.prefix_cases import Case
from tests.helpers import models
from tests.helpers.engine import Engine, Run, Setting, run

LOGPROB_ATOL = 1e-3
LEAST_GAP = 1e-4
SEED = 1
# Block size and way of scheduling. Usable blocks of the random run: too few for what comes.
ENGINES = {"sync-32": (32, False), "sync-128": (128, False), "async-128": (128, True)}
POOL = {32: 14, 128: 5}
CASES = {name: {c.name: c for c in prefix_cases.cases(b)} for name, (b, _) in ENGINES.items()}
SPECULATION = prefix_cases.speculation()


TRAFFIC = {name: prefix_cases.traffic(SEED, POOL[block]) for name, (block, _) in ENGINES.items()}


def key(event: dict[str, Any]) -> str:
    return json.dumps(prefix_cases.sampling_of(event), sort_keys=True)


def llm(block_size: int, **more: Any) -> dict[str, Any]:
    return {
        "model": str(models.smollm2()),
        "max_model_len": 512,
        "max_num_batched_tokens": prefix_cases.BUDGET,
        "max_num_seqs": 64,
        "block_size": block_size,
        "kv_cache_memory_bytes": 512 << 20,
        "disable_log_stats": False,
        **more,
    }


def play(case: Case) -> dict[str, Any]:
    return {"name": case.name, "do": "prefix_steps.play", "ops": case.ops}


def cold_engine() -> tuple[Engine, list[str]]:
    """Stock vLLM without prefix caching, once for each different request; and the requests."""
    everything = [
        SPECULATION,
        *[case for some in CASES.values() for case in some.values()],
        *TRAFFIC.values(),
    ]
    wanted = {
        key(event): event
        for case in everything
        for event in case.requests()
        if event["name"] not in case.unchecked
    }
    events = [
        {**prefix_cases.sampling_of(event), "name": f"c{i}"}
        for i, event in enumerate(wanted.values())
    ]
    steps = [
        {"name": "all", "do": "prefix_steps.play", "ops": [{"drive": events}]},
        play(prefix_cases.turns()),
    ]
    engine = Engine("cold", llm(32, enable_prefix_caching=False), steps)
    return engine, list(wanted)


def warm_engines() -> dict[str, list[Engine]]:
    """The engines of each child on xyserve."""
    made = {}
    for name, (block_size, asynchronous) in ENGINES.items():
        steps = [play(case) for case in (*CASES[name].values(), TRAFFIC[name])]
        made[name] = Engine(name, llm(block_size), steps, asynchronous)
    lookup = {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    arguments = llm(32, speculative_config={**lookup, "num_speculative_tokens": 4})
    # Last: what its JIT compiler leaves behind keeps vLLM from starting another engine.
    ngram = Engine("ngram", arguments, [play(SPECULATION)])
    return {"128": [made["sync-128"], made["async-128"]], "32": [made["sync-32"], ngram]}


@pytest.fixture(scope="module")
def runs(folder: Path) -> Iterator[dict[str, Future[Run]]]:
    """Two children at a time: each keeps one core busy."""
    with ThreadPoolExecutor(max_workers=2) as pool:

        def start(setting: Setting, engines: list[Engine]) -> Future[Run]:
            where = folder / f"prefix-{setting.name}"
            return pool.submit(run, setting, engines, where, timeout=TIMEOUT)

        started = {
            engine.name: future
            for name, engines in warm_engines().items()
            for future in [start(Setting(f"blocks-of-{name}", {}), engines)]
            for engine in engines
        }
        yield {**started, "cold": start(Setting("cold", None), [cold_engine()[0]])}


@pytest.fixture(scope="module")
def cold(runs: dict[str, Future[Run]]) -> dict[str, Any]:
    """Cold answers by `key`."""
    (driven,) = runs["cold"].result()["cold", "all"]
    answers = driven["answers"]
    keys = cold_engine()[1]
    assert len(answers) == len(keys)
    return {key: answers[f"c{i}"] for i, key in enumerate(keys)}


def answers_of(runs: dict[str, Future[Run]], engine: str, case: Case) -> dict[str, Any]:
    """Answers of all its requests by name, without aborted ones."""
    driven = [a for a in runs[engine].result()[engine, case.name] if is_of(a, "answers")]
    return {name: answer for drive in driven for name, answer in drive["answers"].items()}


def states(runs: dict[str, Future[Run]], engine: str, case: Case) -> list[dict[str, Any]]:
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


each_engine = pytest.mark.parametrize("engine", ENGINES)


@pytest.mark.parametrize(
    ("engine", "name"), [(engine, name) for engine, some in CASES.items() for name in some]
)
def test_law_and_answers(
    runs: dict[str, Future[Run]], cold: dict[str, Any], engine: str, name: str
) -> None:
    case = CASES[engine][name]
    got = answers_of(runs, engine, case)
    assert hits(case, got) == case.cached
    assert {event["name"] for event in case.requests()} <= got.keys()
    same_answers(case, got, cold)


@each_engine
def test_the_scheduler_is_the_one_asked_for(runs: dict[str, Future[Run]], engine: str) -> None:
    classes = states(runs, engine, TRAFFIC[engine])[0]["scheduler"]
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


@each_engine
def test_conversation_answers_as_without_cache(runs: dict[str, Future[Run]], engine: str) -> None:
    case = prefix_cases.turns()
    got, want = (answers_of(runs, name, case) for name in (engine, "cold"))
    assert got.keys() == want.keys() == case.cached.keys()
    for name, answer in got.items():
        assert answer["num_prompt_tokens"] == want[name]["num_prompt_tokens"]
        same_answer(name, answer, want[name])


@each_engine
def test_counters_are_the_sum_of_the_answers(runs: dict[str, Future[Run]], engine: str) -> None:
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
def test_preempted_tokens_are_no_hits(runs: dict[str, Future[Run]], engine: str) -> None:
    seen = states(runs, engine, CASES[engine]["preemption"])
    assert measured(seen, "vllm:num_preemptions") > 0
    assert measured(seen, "vllm:prefix_cache_hits") == 0
    assert counted(seen, "block_hit_tokens") + counted(seen, "sub_block_hit_tokens") == 0


@each_engine
def test_reset_is_refused_while_a_request_runs(runs: dict[str, Future[Run]], engine: str) -> None:
    case = CASES[engine]["reset-while-running"]
    first = next(a for a in runs[engine].result()[engine, case.name] if is_of(a, "resets"))
    assert first["resets"] == [False]


@pytest.mark.parametrize(
    ("engine", "name"), [(engine, name) for engine, some in CASES.items() for name in some]
)
def test_every_reset_succeeds(runs: dict[str, Future[Run]], engine: str, name: str) -> None:
    """Between cases, with nothing running: no block was lost."""
    told = runs[engine].result()[engine, name]
    asked = [i for i, op in enumerate(CASES[engine][name].ops) if "reset" in op]
    assert [told[i] for i in asked] == [True] * len(asked)


@each_engine
def test_random_traffic(runs: dict[str, Future[Run]], cold: dict[str, Any], engine: str) -> None:
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


def test_speculation(runs: dict[str, Future[Run]], cold: dict[str, Any]) -> None:
    """The answers of an engine without it, behind hits of any length before the tail."""
    got = answers_of(runs, "ngram", SPECULATION)
    assert hits(SPECULATION, got) == SPECULATION.cached
    same_answers(SPECULATION, got, cold)
    seen = states(runs, "ngram", SPECULATION)
    drafted = measured(seen, "vllm:spec_decode_num_draft_tokens")
    accepted = measured(seen, "vllm:spec_decode_num_accepted_tokens")
    assert 0 < accepted < drafted, "both right and wrong guesses have to occur"
