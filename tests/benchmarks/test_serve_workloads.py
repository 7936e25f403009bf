"""Workloads of the serving benchmark: lengths, arrivals, sharing, real text."""

from __future__ import annotations

import csv
import dataclasses
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.prefix_workloads import Session, Turn
from benchmarks.serving import text, workloads
from benchmarks.serving.workloads import NAMES, SCALES, Maker, Traces, Traffic
from tests.helpers import models

MAX_LEN = 4096


@pytest.fixture(scope="module")
def maker() -> Maker:
    return Maker(models.smollm2() / "tokenizer.json", MAX_LEN)


def opening(traffic: Traffic) -> list[tuple[int, ...]]:
    return [session.turns[0].tokens for session in traffic.sessions]


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))


@pytest.mark.parametrize("name", NAMES)
def test_deterministic_and_within_the_model(maker: Maker, name: str) -> None:
    traffic = maker.make(name, 24)
    assert traffic == maker.make(name, 24)
    assert traffic.digest() == maker.make(name, 24).digest() != maker.make(name, 24, 1).digest()
    assert traffic.num_requests >= 24
    for session in traffic.sessions:
        assert sum(len(t.tokens) + t.num_generated for t in session.turns) <= MAX_LEN
        assert all(t.tokens and t.num_generated >= 1 for t in session.turns)


@pytest.mark.parametrize("name", NAMES)
def test_arrivals_come_once_per_second_on_average(maker: Maker, name: str) -> None:
    times = maker.make(name, 24).arrivals
    assert times[0] == 0
    assert all(one <= two for one, two in pairwise(times))
    assert times[-1] == pytest.approx(len(times) - 1)
    assert len({round(b - a, 6) for a, b in pairwise(times)}) > len(times) // 2, "no metronome"


@pytest.mark.parametrize("name", ["coding", "conversation"])
def test_trace_lengths_and_times_are_kept_in_proportion(maker: Maker, name: str) -> None:
    with Path(getattr(Traces(), name)).open() as stream:
        rows = list(csv.DictReader(stream))[:30]
    traffic = maker.make(name, 30)
    for row, prompt, session in zip(rows, opening(traffic), traffic.sessions, strict=True):
        assert len(prompt) == max(2, round(int(row["ContextTokens"]) * SCALES[name]))
        wanted = max(1, round(int(row["GeneratedTokens"]) * SCALES[name]))
        assert session.turns[0].num_generated == wanted
    fields = [row["TIMESTAMP"].split(":") for row in rows]
    clock = [60 * float(minutes) + float(seconds) for _, minutes, seconds in fields]
    assert (clock[20] - clock[10]) * traffic.arrivals[25] == pytest.approx(
        (clock[25] - clock[0]) * (traffic.arrivals[20] - traffic.arrivals[10]), rel=1e-6
    )


def test_long_prompts_leave_room_for_the_answer(maker: Maker) -> None:
    small = dataclasses.replace(maker, max_len=300)
    lens = [
        (len(s.turns[0].tokens), s.turns[0].num_generated)
        for s in small.make("coding", 30).sessions
    ]
    assert max(a + b for a, b in lens) == 300


def test_prompts_repeat_only_what_they_share(maker: Maker) -> None:
    """Any 24 tokens in a row stand in one prompt of a workload without sharing."""
    for name in ("coding", "conversation"):
        seen: set[tuple[int, ...]] = set()
        for prompt in opening(maker.make(name, 40)):
            pieces = {prompt[i : i + 24] for i in range(0, len(prompt) - 24, 24)}
            # Some lines of real text come twice, such as a licence.
            assert len(pieces & seen) <= 0.05 * max(1, len(pieces)) + 1
            seen |= pieces


def test_agents_share_their_system_prompt_at_odd_lengths(maker: Maker) -> None:
    prompts = opening(maker.make("agent", 24))
    again = [max(common(p, q) for q in prompts if q is not p) for p in prompts]
    assert min(again) >= 50 - 17  # the smallest agent
    assert any(length % 16 for length in again)
    assert all(length < len(p) for length, p in zip(again, prompts, strict=True))


def test_mooncake_keeps_the_traces_prefixes(maker: Maker) -> None:
    traffic = maker.make("mooncake", 24)
    assert traffic.num_new_tokens < 0.95 * sum(map(len, opening(traffic)))


def test_decode_heavy_and_prefill_heavy_differ_in_what_they_are_named_after(maker: Maker) -> None:
    prefill, decode = (maker.make(n, 16) for n in ("prefill-heavy", "decode-heavy"))
    assert prefill.num_generated / prefill.num_new_tokens < 0.1
    assert decode.num_generated / decode.num_new_tokens > 0.5


def test_mixed_holds_all_kinds_and_nothing_of_the_others_prompts(maker: Maker) -> None:
    mixed = maker.make("mixed", 40)
    alone = {prompt for n in NAMES if n != "mixed" for prompt in opening(maker.make(n, 40))}
    assert not alone.intersection(opening(mixed))
    assert any(len(session.turns) > 1 for session in mixed.sessions)
    assert len({s.turns[0].num_generated for s in mixed.sessions}) > 4


def test_a_session_for_each_user(maker: Maker) -> None:
    assert len(maker.for_users("multi-turn", 8, 8).sessions) >= 8


def test_num_new_tokens_is_what_a_perfect_cache_leaves() -> None:
    turns = [(1, 2, 3, 4), (1, 2, 3, 5, 6), (1, 2, 9), (7,)]
    sessions = [Session((Turn(tokens, 1),)) for tokens in turns]
    sessions[3] = Session((Turn((7,), 1), Turn((8, 9), 1)))
    traffic = Traffic("x", tuple(sessions), (0.0, 1.0, 2.0, 3.0), 1.0)
    assert traffic.num_new_tokens == 4 + 2 + 1 + 1 + 2


def test_text_that_is_used_up_is_an_error(maker: Maker) -> None:
    prose = text.Text(maker.tokenizer_file, "prose", 0)
    assert len(prose.draw(1000)) == 1000
    with pytest.raises(ValueError, match=r"at most the .* that are left"):
        prose.draw(10_000_000)
    with pytest.raises(ValueError, match="cannot draw 0"):
        prose.draw(0)


def test_text_is_text(maker: Maker) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(maker.tokenizer_file))
    prose = tokenizer.decode(list(text.Text(maker.tokenizer_file, "prose", 0).draw(4000)))
    code = tokenizer.decode(list(text.Text(maker.tokenizer_file, "code", 0).draw(4000)))
    assert prose.count(" the ") > 60
    assert code.count("self") + code.count("def ") + code.count("return") > 20


def test_unknown_names_and_traces_that_are_too_short(maker: Maker, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="known: coding"):
        maker.make("poetry", 4)
    with pytest.raises(ValueError, match="has 1500 requests, asked for 2000"):
        maker.make("coding", 2000)
    bad = tmp_path / "bad.csv"
    bad.write_text("ContextTokens,GeneratedTokens\n1,2\n")
    with pytest.raises(SystemExit, match="TIMESTAMP"):
        workloads.arrivals_of(bad)
