"""Requests that several test files send, and the measure that an answer is held to."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import httpx

MODEL = "smol"
PROMPT = "The capital of France is"
# Two prompts for one model prompt and answer in either order differ in the last bits of float32,
# which move a logprob by up to 1e-5 here; a wrong key or value moves it by more than this.
LOGPROB_TOL = 1e-3
_METRIC = re.compile(r"^(?P<name>[a-z:_]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")


def ok(answer: httpx.Response) -> Any:
    """The JSON of an answer that has to be good."""
    assert answer.status_code == 200, f"HTTP {answer.status_code}: {answer.text}"
    return answer.json()


def error(answer: httpx.Response, code: int) -> str:
    """The message of an answer that has to be an error with a code."""
    assert answer.status_code == code, f"HTTP {answer.status_code}: {answer.text}"
    body = answer.json()
    assert body["error"]["code"] == code
    return str(body["error"]["message"])


def complete(client: httpx.Client, **body: Any) -> Any:
    """One greedy completion; every field can be replaced."""
    defaults = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    return ok(client.post("/v1/completions", json={**defaults, **body}))


def text_of(answer: Any) -> str:
    """The text of the only choice of a completion."""
    (choice,) = answer["choices"]
    return str(choice["text"])


def cached_tokens(answer: Any) -> int:
    """Prompt tokens that were taken from the prefix cache, by the answer's usage."""
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def score(
    client: httpx.Client, prompt: list[int], answer: list[int], model: str = MODEL
) -> tuple[list[float], list[float]]:
    """What one prefill over prompt and answer says about the answer's tokens.

    Returns:
        Logprob of each answer token, and logprob of the likeliest token at each place.
    """
    whole = complete(client, model=model, prompt=prompt + answer, max_tokens=1, prompt_logprobs=1)
    rows = whole["choices"][0]["prompt_logprobs"][len(prompt) :]
    assert len(rows) == len(answer)
    chosen = [row[str(token)]["logprob"] for row, token in zip(rows, answer, strict=True)]
    return chosen, [max(entry["logprob"] for entry in row.values()) for row in rows]


def assert_greedy(client: httpx.Client, choice: Any, prompt: list[int]) -> None:
    """Require that each token of an answer is the likeliest one, up to a near tie."""
    tokens = choice["token_ids"]
    assert tokens, choice
    chosen, best = score(client, prompt, tokens)
    for place, (mine, top) in enumerate(zip(chosen, best, strict=True)):
        assert mine >= top - LOGPROB_TOL, f"token {place} of {choice['text']!r}: {mine} < {top}"


def metric(client: httpx.Client, name: str, **labels: str) -> float:
    """A value of ``/metrics``, summed over the series that carry the labels."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    values = [
        float(match["value"])
        for match in map(_METRIC.match, answer.text.splitlines())
        if match
        and match["name"] == name
        and all(f'{key}="{value}"' in (match["labels"] or "") for key, value in labels.items())
    ]
    assert values, f"/metrics has no {name} with {labels}"
    return sum(values)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Poll until a condition holds; fail if it does not within the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(0.05)


def wait_idle(client: httpx.Client) -> None:
    """Wait until the engine holds no request and no KV block is taken."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    wait_until(lambda: all(metric(client, name) == 0 for name in names), f"{names} are 0")
