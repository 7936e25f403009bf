"""What the server says about prompt tokens that it did not compute again."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import httpx
import pytest

from tests.helpers.server import Server
from tests.server.asking import MODEL, cached_tokens, complete, metric, ok, text_of

HITS = "vllm:prefix_cache_hits_total"
QUERIES = "vllm:prefix_cache_queries_total"


def prompt_of(word: str, num_words: int = 60) -> str:
    """A prompt of more than one KV block of 128 tokens."""
    return f"The {word} lists: " + ", ".join(f"{word} {i}" for i in range(num_words))


def ask(client: httpx.Client, prompt: str, **body: Any) -> Any:
    return complete(client, prompt=prompt, max_tokens=4, return_token_ids=True, **body)


def hit_law(answer: Any, cached: Any, unit: int) -> int:
    """Cached tokens that are due: the longest common prefix, but never the last prompt token.

    The last token of an answer is not computed, so it is not cached.
    """
    mine, choice = answer["choices"][0]["prompt_token_ids"], cached["choices"][0]
    other = choice["prompt_token_ids"] + choice["token_ids"][:-1]
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(mine, other, strict=False))
    return min(len(list(pairs)), len(mine) - 1) // unit * unit


def reset(client: httpx.Client) -> None:
    assert ok(client.post("/reset_prefix_cache")) == {"success": True}


@pytest.fixture
def unit(server: Server) -> int:
    """Tokens that are matched as one, by the start-up line."""
    (line,) = server.log_lines("xyserve: family=")
    found = re.search(r"prefix_unit=(\d+) tokens?\b", line)
    assert found, line
    return int(found[1])


def test_a_repeat_is_served_from_the_cache(client: httpx.Client, unit: int) -> None:
    """Usage and metrics agree with each other and with what the start-up line promises."""
    reset(client)
    hits, queries = metric(client, HITS), metric(client, QUERIES)
    first = ask(client, prompt_of("harbour"))
    num_tokens = first["usage"]["prompt_tokens"]
    assert num_tokens > 256
    assert cached_tokens(first) == 0

    again = ask(client, prompt_of("harbour"))
    assert cached_tokens(again) == hit_law(again, first, unit) > 128
    assert text_of(again) == text_of(first)
    assert metric(client, HITS) - hits == cached_tokens(again)
    assert metric(client, QUERIES) - queries == 2 * num_tokens


def test_a_longer_prompt_hits_what_it_shares(client: httpx.Client, unit: int) -> None:
    reset(client)
    longer = prompt_of("meadow") + ". And then?"
    cold = ask(client, longer)
    reset(client)
    first = ask(client, prompt_of("meadow"))
    warm = ask(client, longer)
    assert cached_tokens(warm) == hit_law(warm, first, unit) > 128
    assert text_of(warm) == text_of(cold)


def test_a_stream_reports_the_same_hit(client: httpx.Client) -> None:
    reset(client)
    ask(client, prompt_of("lantern"))
    whole = ask(client, prompt_of("lantern"))
    body: dict[str, Any] = {"model": MODEL, "prompt": prompt_of("lantern"), "max_tokens": 4}
    body |= {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    chunks = client.post("/v1/completions", json=body).text.strip().split("\n\n")
    assert chunks[-1] == "data: [DONE]"
    usage = json.loads(chunks[-2].removeprefix("data: "))["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == cached_tokens(whole) > 0


def test_another_prompt_hits_nothing(client: httpx.Client, unit: int) -> None:
    reset(client)
    first = ask(client, prompt_of("granite"))
    other = ask(client, prompt_of("velvet"))
    assert cached_tokens(other) == hit_law(other, first, unit) < 3


def test_reset_empties_the_cache(client: httpx.Client) -> None:
    reset(client)
    ask(client, prompt_of("pillar"))
    assert cached_tokens(ask(client, prompt_of("pillar"))) > 0
    reset(client)
    assert cached_tokens(ask(client, prompt_of("pillar"))) == 0


def test_cache_salt_keeps_tenants_apart(client: httpx.Client) -> None:
    reset(client)
    ask(client, prompt_of("copper"), cache_salt="one")
    assert cached_tokens(ask(client, prompt_of("copper"), cache_salt="two")) == 0
    assert cached_tokens(ask(client, prompt_of("copper"), cache_salt="one")) > 0
