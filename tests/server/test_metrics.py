"""Our figures at ``/metrics``, held against vLLM's own and against what the answers say."""

from __future__ import annotations

import json
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.server.asking import MODEL, cached_tokens, complete, ok

HITS = "xyserve_prefix_hit_tokens_total"
VLLM_HITS = "vllm:prefix_cache_hits_total"


def figures(client: httpx.Client) -> dict[str, float]:
    """Prefix figures of a scrape, with the label ``kind`` behind the name."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            if sample.name.startswith(("xyserve_prefix_", "vllm:prefix_cache_")):
                if sample.name.endswith("_created"):
                    continue
                name = sample.name + (f"/{kind}" if (kind := sample.labels.get("kind")) else "")
                assert name not in found, f"{name} has several series"
                assert sample.labels["engine"] == "0"
                found[name] = sample.value
    return found


def growth(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    assert before.keys() == after.keys()
    return {name: after[name] - before[name] for name in after}


def ask(client: httpx.Client, prompt: list[int], **body: Any) -> Any:
    return complete(client, prompt=prompt, max_tokens=2, **body)


def tokens(seed: int, count: int) -> list[int]:
    return [1000 + (seed * 7919 + i * 104729) % 40_000 for i in range(count)]


def ask_all(client: httpx.Client, seed: int) -> list[Any]:
    """A miss, an exact repeat, a hit within the second block, one in the first, and a miss."""
    first = tokens(seed, 200)
    prompts = [first, first, [*first[:150], 5, 6, 7], [*first[:40], 8, 9], tokens(seed + 1, 60)]
    return [ask(client, prompt) for prompt in prompts]


def check_growth(grown: dict[str, float], answers: list[Any]) -> None:
    """All that counts hits counts those of the answers."""
    cached = [cached_tokens(answer) for answer in answers]
    assert cached == [0, 199, 150, 40, 0]
    assert grown[VLLM_HITS] == sum(cached)
    assert grown[f"{HITS}/block"] == 128 + 128
    assert grown[f"{HITS}/sub_block"] == 71 + 22 + 40
    prompts = sum(answer["usage"]["prompt_tokens"] for answer in answers)
    assert grown["xyserve_prefix_prompt_tokens_total"] == prompts
    assert grown["vllm:prefix_cache_queries_total"] == prompts
    assert grown["xyserve_prefix_copies_total"] == 3
    page = grown["xyserve_prefix_copied_bytes_total"] / 3
    assert page > 0
    assert page % 128 == 0
    assert grown["xyserve_prefix_lookups_total"] == len(answers)
    assert 0 < grown["xyserve_prefix_lookup_seconds_total"] < 1
    assert grown["xyserve_prefix_refused_total"] == 0
    assert grown["xyserve_prefix_resumed_hit_tokens_total"] == 0


def test_figures_and_answers_agree(client: httpx.Client) -> None:
    ok(client.post("/reset_prefix_cache"))
    before = figures(client)
    answers = ask_all(client, seed=1)
    check_growth(growth(before, figures(client)), answers)


def test_a_miss_says_zero(client: httpx.Client) -> None:
    ok(client.post("/reset_prefix_cache"))
    answer = ask(client, tokens(11, 30))
    # Not null, as vLLM's field is by default, and not left out.
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def stream_usage(client: httpx.Client, prompt: list[int]) -> Any:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "temperature": 0, "stream": True}
    answer = client.post(
        "/v1/completions", json={**body, "stream_options": {"include_usage": True}}
    )
    assert answer.status_code == 200
    chunks = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert chunks[-1] == "[DONE]"
    return shown(json.loads(chunks[-2])["usage"])


def whole_usage(client: httpx.Client, prompt: list[int]) -> Any:
    return shown(ask(client, prompt)["usage"])


def shown(usage: dict[str, Any]) -> Any:
    """Without fields that are null, which a stream leaves out."""
    kept = {key: value for key, value in usage.items() if value is not None}
    details = kept["prompt_tokens_details"].items()
    return {**kept, "prompt_tokens_details": {k: v for k, v in details if v is not None}}


def test_streaming_says_the_same(client: httpx.Client) -> None:
    """On a miss and on a hit, and it is counted alike."""
    prompt = tokens(21, 170)
    usages = []
    for ask_for_usage in (stream_usage, whole_usage):
        ok(client.post("/reset_prefix_cache"))
        before = figures(client)
        usages.append([ask_for_usage(client, prompt) for _ in range(2)])
        assert growth(before, figures(client))[VLLM_HITS] == 169
    assert usages[0] == usages[1]
    assert [u["prompt_tokens_details"]["cached_tokens"] for u in usages[0]] == [0, 169]


def test_a_reset_leaves_the_totals(client: httpx.Client) -> None:
    ask(client, tokens(31, 50))
    before = figures(client)
    ok(client.post("/reset_prefix_cache"))
    assert figures(client) == before
