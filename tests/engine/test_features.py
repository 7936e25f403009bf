"""Rows of docs/features.md: each feature on xyserve, beside stock vLLM where it has an answer.

``ours`` is first xyserve without any option, then with both parts ours.
"""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from tests.engine import features
from tests.helpers.engine import Run
from vllm_xyserve.ops.isa import cpu_info

# Sums of 64 to 160 products in fp32, in another order; answers are of order 1 to 10.
LOGPROB_ATOL = 1e-3
COSINE_ATOL = 1e-5


def tokens(answers: list[dict[str, Any]]) -> list[list[list[int]]]:
    """Per request and output; nothing empty."""
    found = [[output["tokens"] for output in answer["outputs"]] for answer in answers]
    assert found
    assert all(one and all(output for output in one) for one in found)
    return found


def same_tokens(run: Run, other: Run, engine: str, step: str) -> list[list[list[int]]]:
    """The tokens of both runs, which must be equal."""
    got = tokens(run[engine, step])
    assert got == tokens(other[engine, step]), f"{engine}/{step} differs"
    return got


def cached(answers: list[dict[str, Any]]) -> list[int]:
    return [answer["num_cached_tokens"] for answer in answers]


def test_tiny_models_answer_in_many_ways(stock: Run) -> None:
    """Equal answers to different questions would make every comparison here an easy one."""
    for engine in ("decoder", "gemma2", "bloom", "gpt-oss"):
        answers = tokens(stock[engine, "greedy"])
        assert len({tuple(answer[0]) for answer in answers}) == len(features.PROMPTS), engine
        assert max(len(set(answer[0])) for answer in answers) > 5, engine


def test_chunked_prefill(stock: Run, ours: Run) -> None:
    """A budget of 64 tokens per step, and prompts of up to 106 of them."""
    assert ours["decoder", "greedy"][0]["num_prompt_tokens"] > 64
    same_tokens(ours, stock, "decoder", "greedy")


def test_prefix_cache_obeys_the_told_unit(stock: Run, ours: Run) -> None:
    """Exact repeats are cached up to their last token, in the unit of the start-up line."""
    found = re.search(r"prefix_unit=(\d+) token", ours.log_lines("prefix_unit=", "decoder")[0])
    assert found
    unit = int(found[1])
    for answer in ours["decoder", "warm"]:
        expected = (answer["num_prompt_tokens"] - 1) // unit * unit
        assert answer["num_cached_tokens"] == expected
    assert max(cached(ours["decoder", "warm"])) >= 3 * features.BLOCK
    cold = same_tokens(ours, stock, "decoder", "cold")
    assert tokens(ours["decoder", "warm"]) == cold


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ("gemma2", "the model has 2 KV cache groups"),
        ("gpt-oss", "the model has 2 KV cache groups"),
        ("encoder", "prefix caching is off"),
    ],
)
def test_reason_against_token_level_hits_is_told(ours: Run, engine: str, reason: str) -> None:
    """In the start-up line, beside the unit of vLLM's own hits."""
    (line,) = ours.log_lines("prefix_unit=", engine)
    assert line.partition("prefix_unit=")[2] == f"{features.BLOCK} tokens ({reason})"


def test_prompt_logprobs(stock: Run, ours: Run) -> None:
    """Every position, long and short prompts with a common beginning, behind a warm cache."""
    same_tokens(ours, stock, "decoder", "prompt-logprobs")
    pairs = list(
        zip(stock["decoder", "prompt-logprobs"], ours["decoder", "prompt-logprobs"], strict=True)
    )
    assert len(pairs) == 3
    for want, have in pairs:
        assert have["num_cached_tokens"] == 0, "prompt logprobs need every position computed"
        assert len(have["prompt_logprobs"]) == have["num_prompt_tokens"]
        assert have["prompt_logprobs"][0] is None
        same_logprobs(want["prompt_logprobs"][1:], have["prompt_logprobs"][1:], least=5)
        same_logprobs(want["outputs"][0]["logprobs"], have["outputs"][0]["logprobs"], least=3)


def same_logprobs(want: list[dict[str, float]], have: list[dict[str, float]], least: int) -> None:
    assert len(want) == len(have) > 0
    for one, other in zip(want, have, strict=True):
        assert len(one) >= least
        # Tokens at the end of the list may change places with one that just missed it.
        for token in one.keys() & other.keys():
            assert other[token] == pytest.approx(one[token], abs=LOGPROB_ATOL)
        assert len(one.keys() & other.keys()) >= least - 1


def test_seeded_samples(stock: Run, ours: Run) -> None:
    """n = 4: sample by sample as stock, and the same behind a warm prefix cache."""
    (samples,) = same_tokens(ours, stock, "lora", "n-cold")
    assert len(samples) == 4
    assert len({tuple(sample) for sample in samples}) == 4, "four equal samples show nothing"
    assert tokens(ours["lora", "n-warm"]) == [samples]
    assert cached(ours["lora", "n-warm"])[0] > 0


def test_beam_search(stock: Run, ours: Run) -> None:
    want, have = (run["decoder", "beam_search"] for run in (stock, ours))
    assert len(have) == 2
    for expected, got in zip(want, have, strict=True):
        assert [beam["tokens"] for beam in got] == [beam["tokens"] for beam in expected]
        assert len(got) == 3
        logprobs = [beam["logprob"] for beam in got]
        assert logprobs == sorted(logprobs, reverse=True)
        assert logprobs == pytest.approx([b["logprob"] for b in expected], abs=8 * LOGPROB_ATOL)


def test_structured_choice(stock: Run, ours: Run) -> None:
    same_tokens(ours, stock, "decoder", "choice")
    texts = [answer["outputs"][0]["text"] for answer in ours["decoder", "choice"]]
    assert len(texts) == len(features.PROMPTS)
    assert set(texts) <= set(features.CHOICES)


def test_prompt_embeddings(ours: Run) -> None:
    """Vectors looked up from tokens answer as those tokens, and share no cached prefix."""
    from_tokens = tokens(ours["decoder", "tokens"])
    from_embeds = ours["decoder", "generate_from_embeds"]
    assert tokens(from_embeds) == from_tokens
    assert from_tokens[0] != from_tokens[1]
    assert cached(from_embeds) == [0, 0]


def test_adapters(stock: Run, ours: Run) -> None:
    first, second, base, again = tokens(ours["lora", "greedy"])
    # Without row 2: in a mixed batch vLLM's CPU build gives base rows an adapter, ours does not.
    expected = tokens(stock["lora", "greedy"])
    assert [first, second, again] == [expected[0], expected[1], expected[3]]
    assert first == again
    assert first != second
    assert base not in (first, second)
    assert [base] == tokens(ours["decoder", "greedy"])[:1], "the base model changed"
    assert tokens(ours["lora", "warm"]) == [first, second, base, again]
    assert min(cached(ours["lora", "warm"])) >= features.BLOCK


def test_adapters_keep_our_base_layers(reference: Run) -> None:
    """With adapters the base layers' products are still ours."""
    linears = reference["lora", "look"]["linears"]
    assert linears.get("vllm_xyserve.linear.method.SmoothGemmLinear", 0) >= 4 * 2
    assert reference["lora", "look"]["paths"] == {"reference": 2}


def test_ngram_speculation(stock: Run, ours: Run) -> None:
    for step in ("greedy", "prefix", "tails", "short"):
        speculated = tokens(ours["ngram", step])
        assert speculated == tokens(stock["no-ngram", step]), step
    assert min(cached(ours["ngram", "tails"])) >= 3 * features.BLOCK
    metrics = ours["ngram", "metrics"]
    drafted = metrics["vllm:spec_decode_num_draft_tokens"]
    accepted = metrics["vllm:spec_decode_num_accepted_tokens"]
    assert 0 < accepted < drafted, "both right and wrong guesses have to occur"


def test_preemption(stock: Run, ours: Run) -> None:
    assert ours["tight", "metrics"]["vllm:num_preemptions"] > 0
    assert stock["roomy", "metrics"]["vllm:num_preemptions"] == 0
    roomy = tokens(stock["roomy", "greedy"])
    assert same_tokens(ours, stock, "tight", "greedy") == roomy
    assert [len(answer[0]) for answer in roomy] == [70, 70]


def test_embeddings_of_a_decoder(stock: Run, ours: Run) -> None:
    look = ours["pooling", "look"]
    assert set(look["backends"]) == {"vllm_xyserve.attention.backend.MetaAttentionBackend"}
    same_vectors(stock["pooling", "embed"], ours["pooling", "embed"])


def test_embeddings_of_an_encoder(stock: Run, ours: Run) -> None:
    """Its attention is the parent's on every setting."""
    assert ours["encoder", "look"]["paths"] == {"upstream": 2}
    same_vectors(stock["encoder", "embed"], ours["encoder", "embed"])


def same_vectors(want: list[list[float]], have: list[list[float]]) -> None:
    assert len(want) == len(have) == len(features.PROMPTS)
    for one, other in zip(want, have, strict=True):
        assert len(one) == len(other) == 64
        assert cosine(one, other) == pytest.approx(1.0, abs=COSINE_ATOL)
    for i, one in enumerate(have):
        for other in have[:i]:
            assert cosine(one, other) < 1 - 100 * COSINE_ATOL, "the vectors say nothing"


def cosine(one: list[float], other: list[float]) -> float:
    return dot(one, other) / math.sqrt(dot(one, one) * dot(other, other))


def test_fp8_kv_cache_is_the_parents(stock: Run, ours: Run) -> None:
    if "avx512" not in cpu_info().isas:
        for run in (stock, ours):
            assert "FP8 KV cache on CPU requires" in run.answers["fp8-kv"]["error"]
        return
    assert ours["fp8-kv", "look"]["paths"] == {"upstream": 2}
    same_tokens(ours, stock, "fp8-kv", "greedy")


@pytest.mark.parametrize(
    ("engine", "reason"), [("fp8-kv", "KV cache dtype fp8"), ("encoder", "encoder_only attention")]
)
def test_fallback_is_said_once(reference: Run, engine: str, reason: str) -> None:
    lines = reference.log_lines("attention layer takes the parent's path", engine)
    assert len(lines) == 1, lines
    assert reason in lines[0]


@pytest.mark.parametrize("engine", ["gemma2", "bloom", "gpt-oss"])
def test_more_than_causal_attention(stock: Run, ours: Run, engine: str) -> None:
    same_tokens(ours, stock, engine, "greedy")


def test_layers_had_what_they_were_made_for(reference: Run) -> None:
    looks = {engine: reference[engine, "look"] for engine in ("gemma2", "bloom", "gpt-oss")}
    for engine, look in looks.items():
        assert look["paths"] == {"reference": 2}, engine
    assert sorted(looks["gemma2"]["windows"]) == [-1, 24]
    assert looks["gemma2"]["softcaps"] == [2.0, 2.0]
    assert looks["bloom"]["alibi"] == [True, True]
    assert sorted(looks["gpt-oss"]["windows"]) == [-1, 24]
    assert looks["gpt-oss"]["sinks"] == [True, True]


@pytest.mark.parametrize("without", ["gemma2-wide", "gemma2-flat"])
def test_window_and_soft_cap_matter(stock: Run, without: str) -> None:
    assert tokens(stock["gemma2", "greedy"])[0] != tokens(stock[without, "greedy"])[0]


def test_weight_reload(stock: Run, ours: Run) -> None:
    before = same_tokens(ours, stock, "reload", "before")
    after = tokens(ours["reload", "after"])
    assert after != before
    assert after == tokens(stock["other", "greedy"]), "not the answers of the new weights"


def test_stock_still_needs_the_repacking(stock: Run) -> None:
    """Fails once vLLM reloads a tied output layer itself: ours can then go from the worker."""
    assert tokens(stock["reload", "after"]) != tokens(stock["other", "greedy"])


def dot(one: list[float], other: list[float]) -> float:
    return sum(x * y for x, y in zip(one, other, strict=True))
