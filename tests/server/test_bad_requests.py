"""Requests that cannot be served get HTTP 4xx and a clear message, and the server goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.server.asking import (
    MODEL,
    PROMPT,
    complete,
    error,
    metric,
    text_of,
    wait_idle,
    wait_until,
)
from tests.server.conftest import MAX_MODEL_LEN

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def good_answer(client: httpx.Client) -> str:
    """What the server says before any bad request."""
    return text_of(complete(client, max_tokens=6))


@pytest.fixture(autouse=True)
def _server_goes_on(client: httpx.Client, good_answer: str) -> Iterator[None]:
    """After each test: alive, idle, no KV block held, and the same good answer."""
    yield
    assert client.get("/health").status_code == 200
    wait_idle(client)
    assert text_of(complete(client, max_tokens=6)) == good_answer


def schema(body: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": body}}


BAD: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "prompt-too-long": (COMPLETIONS, {"prompt": "word " * 1500}, 400, "maximum context length"),
    "chat-too-long": (
        CHAT,
        {"messages": [{"role": "user", "content": "word " * 1500}]},
        400,
        f"maximum context length is {MAX_MODEL_LEN} tokens",
    ),
    "unknown-model": (COMPLETIONS, {"model": "nobody"}, 404, "`nobody` does not exist"),
    "empty-prompt": (COMPLETIONS, {"prompt": ""}, 400, "non-empty"),
    "no-prompt": (COMPLETIONS, {"prompt": []}, 400, "at least one prompt"),
    "no-messages": (CHAT, {"messages": []}, 400, "at least one message"),
    "token-out-of-vocabulary": (COMPLETIONS, {"prompt": [1, 10**7]}, 400, "out of vocabulary"),
    "negative-token": (COMPLETIONS, {"prompt": [-1]}, 400, "greater than or equal to 0"),
    "max-tokens-negative": (COMPLETIONS, {"max_tokens": -1}, 400, "max_tokens"),
    "max-tokens-zero": (COMPLETIONS, {"max_tokens": 0}, 400, "max_tokens"),
    "max-tokens-too-large": (COMPLETIONS, {"max_tokens": 10**6}, 400, "max_tokens"),
    "max-tokens-no-number": (COMPLETIONS, {"max_tokens": "many"}, 400, "max_tokens"),
    "temperature-negative": (COMPLETIONS, {"temperature": -1}, 400, "temperature"),
    "top-p-too-large": (COMPLETIONS, {"top_p": 2}, 400, "top_p"),
    "n-zero": (COMPLETIONS, {"n": 0}, 400, "n must be at least 1"),
    "n-very-large": (COMPLETIONS, {"n": 10**6}, 400, "n must be at most"),
    "too-many-logprobs": (COMPLETIONS, {"logprobs": 1000}, 400, "logprobs"),
    "suffix": (COMPLETIONS, {"suffix": "x"}, 400, "suffix"),
    "schema-of-no-type": (CHAT, {"response_format": schema({"type": "nonsense"})}, 400, "nonsense"),
    "schema-is-a-number": (CHAT, {"response_format": schema(5)}, 400, "schema"),
    "regex-open-bracket": (CHAT, {"structured_outputs": {"regex": "("}}, 400, "regex"),
    "two-constraints": (
        CHAT,
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        400,
        "structured",
    ),
    "beams-in-a-stream": (
        COMPLETIONS,
        {"use_beam_search": True, "n": 2, "stream": True},
        400,
        "Streaming is not",
    ),
    "tools-not-set-up": (
        CHAT,
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        400,
        "--enable-auto-tool-choice",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_request_is_explained(client: httpx.Client, name: str) -> None:
    path, body, code, words = BAD[name]
    content: dict[str, Any] = {"messages": HELLO} if path == CHAT else {"prompt": PROMPT}
    answer = client.post(path, json={"model": MODEL, "max_tokens": 4, **content, **body})
    assert words in error(answer, code)


def test_malformed_json(client: httpx.Client) -> None:
    answer = client.post(
        COMPLETIONS, content='{"model": "smol", ', headers={"Content-Type": "application/json"}
    )
    assert "JSON" in error(answer, 400)


def test_openai_client_gets_its_own_errors(api: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody"):
        api.chat.completions.create(model="nobody", messages=HELLO)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        api.chat.completions.create(model=MODEL, messages=HELLO, temperature=-1)


def test_context_up_to_its_last_token(client: httpx.Client) -> None:
    """Prompt and answer may fill the model's length to the token, and not one token more."""
    prompt = [500] * (MAX_MODEL_LEN - 8)
    for max_tokens in (8, 9, None):  # vLLM cuts 9 down to what fits; None asks for that
        full = complete(client, prompt=prompt, ignore_eos=True, max_tokens=max_tokens)
        assert full["usage"]["total_tokens"] == MAX_MODEL_LEN
        assert full["choices"][0]["finish_reason"] == "length"
    for length, words in ((MAX_MODEL_LEN, "max_tokens"), (MAX_MODEL_LEN + 1, str(MAX_MODEL_LEN))):
        body = {"model": MODEL, "prompt": [500] * length, "max_tokens": 1}
        assert words in error(client.post(COMPLETIONS, json=body), 400)


@pytest.mark.parametrize("num_answers", [1, 3])
def test_client_that_goes_away_frees_its_blocks(client: httpx.Client, num_answers: int) -> None:
    wait_idle(client)
    generated = "vllm:generation_tokens_total"
    before = metric(client, generated)
    body = {
        "model": MODEL,
        "prompt": PROMPT,
        "max_tokens": MAX_MODEL_LEN - 24,
        "n": num_answers,
        "temperature": 1,
        "ignore_eos": True,
        "stream": True,
    }
    with client.stream("POST", COMPLETIONS, json=body) as answer:
        lines = answer.iter_lines()
        while not next(lines).startswith("data: {"):
            pass
        wait_until(lambda: metric(client, "vllm:num_requests_running") == num_answers, "all run")
        assert metric(client, "vllm:kv_cache_usage_perc") > 0
    # Leaving the context closes the connection with most of the answer still to come.
    wait_idle(client)
    assert 0 < metric(client, generated) - before < num_answers * (MAX_MODEL_LEN - 24)
