"""Chat and completions over HTTP: streaming, several answers, stop strings, logprobs, beams."""

from __future__ import annotations

import itertools
import json
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from tests.server.asking import (
    LOGPROB_TOL,
    MODEL,
    PROMPT,
    assert_greedy,
    complete,
    metric,
    ok,
    score,
    text_of,
    wait_idle,
)

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2, "maxLength": 12},
        "rating": {"type": "integer", "minimum": 1, "maximum": 9},
        "continent": {"enum": ["Africa", "America", "Asia", "Europe", "Oceania"]},
    },
    "required": ["city", "rating", "continent"],
    "additionalProperties": False,
}


def chat(api: openai.OpenAI, **options: Any) -> Any:
    defaults = {"model": MODEL, "messages": QUESTION, "max_tokens": 24, "temperature": 0}
    return api.chat.completions.create(**{**defaults, **options})


def test_model_list_names_the_served_model(api: openai.OpenAI) -> None:
    assert MODEL in [model.id for model in api.models.list()]


def test_chat_answers_the_question(api: openai.OpenAI) -> None:
    answer = chat(api)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert 0 < answer.usage.completion_tokens <= 24


def test_chat_stream_gives_the_same_text_and_usage(api: openai.OpenAI) -> None:
    whole = chat(api)
    chunks = list(chat(api, stream=True, stream_options={"include_usage": True}))
    *body, last = chunks
    text = "".join(chunk.choices[0].delta.content or "" for chunk in body)
    assert text == whole.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in body]
    assert reasons[-1] == whole.choices[0].finish_reason
    assert set(reasons[:-1]) == {None}
    assert last.choices == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(last.usage, name) == getattr(whole.usage, name)
    assert all(chunk.usage is None for chunk in body)


def test_stream_arrives_while_the_answer_is_being_made(
    api: openai.OpenAI, client: httpx.Client
) -> None:
    wait_idle(client)
    num_tokens = 150
    stream = api.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=num_tokens,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    texts = []
    running = 0.0
    for chunk in stream:
        texts.append(chunk.choices[0].text)
        if len(texts) == 3:
            running = metric(client, "vllm:num_requests_running")
    assert running == 1
    # A busy API server may join tokens; one that waits for the end sends a single chunk.
    assert num_tokens // 10 <= len(texts) <= num_tokens + 1


def test_two_seeded_answers_differ_and_come_again(api: openai.OpenAI) -> None:
    def ask(seed: int) -> list[str]:
        answer = chat(api, n=2, temperature=1.0, seed=seed)
        assert [choice.index for choice in answer.choices] == [0, 1]
        return [choice.message.content for choice in answer.choices]

    first = ask(7)
    assert first[0] != first[1]
    assert ask(7) == first
    assert ask(8) != first


def test_two_seeded_answers_stream(api: openai.OpenAI) -> None:
    options: Any = {"n": 2, "temperature": 1.0, "seed": 7}
    whole = [choice.message.content for choice in chat(api, **options).choices]
    texts = ["", ""]
    for chunk in chat(api, stream=True, **options):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == whole


def test_stop_string_ends_the_text_before_it(client: httpx.Client) -> None:
    full = text_of(complete(client, max_tokens=24))
    stop = full[len(full) // 2 : len(full) // 2 + 4]  # not at the border of a token
    expected = full[: full.index(stop)]
    assert expected

    choice = complete(client, max_tokens=24, stop=[stop, "never said"])["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (expected, "stop")
    assert choice["stop_reason"] == stop

    kept = complete(client, max_tokens=24, stop=stop, include_stop_str_in_output=True)
    assert text_of(kept) == expected + stop


def test_stop_string_in_a_stream(api: openai.OpenAI, client: httpx.Client) -> None:
    full = text_of(complete(client, max_tokens=24))
    stop = full[len(full) // 2 : len(full) // 2 + 4]
    chunks = list(
        api.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=24, temperature=0, stop=stop, stream=True
        )
    )
    # No chunk may hold a part of the stop string, which can only be taken back before it is sent.
    assert "".join(chunk.choices[0].text for chunk in chunks) == full[: full.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_chat_logprobs_are_sorted_and_sensible(api: openai.OpenAI) -> None:
    choice = chat(api, logprobs=True, top_logprobs=5).choices[0]
    rows = choice.logprobs.content
    words = [row.token for row in rows if row.token != "<|im_end|>"]
    assert "".join(words) == choice.message.content
    for row in rows:
        top = [entry.logprob for entry in row.top_logprobs]
        assert len(top) == 5
        assert top == sorted(top, reverse=True)
        assert row.logprob == top[0]  # greedy
        assert row.token == row.top_logprobs[0].token
        assert 0 < sum(map(math.exp, top)) <= 1 + 1e-6


def test_logprobs_of_decode_and_prefill_agree(client: httpx.Client) -> None:
    """Decode steps, one prefill over prompt and answer, and echo give the same numbers."""
    answer = complete(client, max_tokens=8, logprobs=3, return_token_ids=True)["choices"][0]
    decoded = answer["logprobs"]["token_logprobs"]
    assert len(decoded) == 8
    chosen, best = score(client, answer["prompt_token_ids"], answer["token_ids"])
    assert chosen == pytest.approx(decoded, abs=LOGPROB_TOL)
    assert best == pytest.approx(decoded, abs=LOGPROB_TOL)  # greedy

    echoed = complete(client, prompt=PROMPT + answer["text"], echo=True, logprobs=1, max_tokens=1)
    table = echoed["choices"][0]["logprobs"]
    assert table["token_logprobs"][0] is None  # nothing comes before the first token
    assert table["token_logprobs"][-9:-1] == pytest.approx(decoded, abs=LOGPROB_TOL)
    assert table["tokens"][-9:-1] == answer["logprobs"]["tokens"]


def test_echo_repeats_the_prompt(client: httpx.Client) -> None:
    plain = text_of(complete(client))
    assert text_of(complete(client, echo=True)) == PROMPT + plain


def test_prompt_logprobs_cover_the_prompt(client: httpx.Client) -> None:
    choice = complete(client, prompt_logprobs=2, max_tokens=1, return_token_ids=True)["choices"][0]
    rows, tokens = choice["prompt_logprobs"], choice["prompt_token_ids"]
    assert rows[0] is None
    assert len(rows) == len(tokens) > 3
    for row, token in zip(rows[1:], tokens[1:], strict=True):
        entry = row[str(token)]
        better = [other for other in row.values() if other["rank"] < entry["rank"]]
        assert all(other["logprob"] >= entry["logprob"] for other in better)
        assert {1, 2} <= {other["rank"] for other in row.values()}
        assert entry["logprob"] < 0


def test_answer_follows_a_json_schema(api: openai.OpenAI) -> None:
    asked: Any = [{"role": "user", "content": "Describe a city of your choice."}]
    with pytest.raises(json.JSONDecodeError):  # else the schema would not be what makes it JSON
        json.loads(chat(api, messages=asked).choices[0].message.content)
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    for temperature in (0.0, 1.0):
        answer = chat(
            api,
            messages=asked,
            max_tokens=128,
            response_format=wanted,
            temperature=temperature,
            seed=3,
        )
        assert answer.choices[0].finish_reason == "stop"
        jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMA)


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        ({"choice": ["violet", "ochre"]}, r"violet|ochre"),
        ({"regex": r"[0-9]{3}-[x-z]{2}"}, r"[0-9]{3}-[x-z]{2}"),
    ],
)
def test_answer_follows_a_choice_or_regex(
    api: openai.OpenAI, constraint: dict[str, Any], pattern: str
) -> None:
    jsonschema.Draft202012Validator({"type": "string", "pattern": f"^({pattern})$"}).validate(
        chat(api, extra_body={"structured_outputs": constraint}).choices[0].message.content
    )


def test_beams_are_different_and_ordered(client: httpx.Client) -> None:
    options: Any = {"use_beam_search": True, "n": 3, "max_tokens": 6, "ignore_eos": True}
    prompt = ok(client.post("/tokenize", json={"model": MODEL, "prompt": PROMPT}))["tokens"]
    texts = [choice["text"] for choice in complete(client, **options)["choices"]]
    assert len(set(texts)) == 3
    assert [choice["text"] for choice in complete(client, **options)["choices"]] == texts
    totals = []
    for text in texts:
        whole = ok(client.post("/tokenize", json={"model": MODEL, "prompt": PROMPT + text}))
        assert whole["tokens"][: len(prompt)] == prompt
        totals.append(sum(score(client, prompt, whole["tokens"][len(prompt) :])[0]))
    for better, worse in itertools.pairwise(totals):
        assert better >= worse - LOGPROB_TOL


def test_eight_requests_at_once(client: httpx.Client) -> None:
    """All are answered, they really share steps, and each token is the likeliest one."""
    prompts = [
        f"{place} is known for"
        for place in ("Paris", "Rome", "Tokyo", "Cairo", "Lima", "Oslo", "Delhi", "The Moon")
    ]
    wait_idle(client)
    steps = metric(client, "vllm:iteration_tokens_total_count")
    with ThreadPoolExecutor(len(prompts)) as pool:
        asked = [
            pool.submit(complete, client, prompt=p, max_tokens=24, return_token_ids=True)
            for p in prompts
        ]
        choices = [future.result()["choices"][0] for future in asked]
    wait_idle(client)
    steps = metric(client, "vllm:iteration_tokens_total_count") - steps
    assert steps < sum(len(choice["token_ids"]) for choice in choices) * 0.75
    for choice in choices:
        assert choice["finish_reason"] in ("stop", "length")
        assert choice["text"].strip()
        assert_greedy(client, choice, choice["prompt_token_ids"])
