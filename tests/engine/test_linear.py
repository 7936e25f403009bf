"""Native linear layers in bfloat16 and int8 beside vLLM's: answers, perplexity, what is fused."""

from __future__ import annotations

import math
from concurrent.futures import Future
from typing import Any

import pytest

from tests.engine import features
from tests.helpers.engine import Run
from vllm_xyserve.ops.isa import cpu_info

# Log probabilities of a bfloat16 model are known to a few hundredths: its logits are rounded to
# 1 part in 256, and so is what goes into the last layer.
BF16_TIE = 0.15


@pytest.fixture(scope="module")
def linear_run(linear_child: Future[Run]) -> Run:
    return linear_child.result()


def perplexity(answers: list[dict[str, Any]]) -> float:
    logprobs = [
        value
        for answer in answers
        for position in answer["prompt_logprobs"][1:]
        for value in position.values()
    ]
    assert len(logprobs) > 2000
    return math.exp(-sum(logprobs) / len(logprobs))


def test_perplexity_in_bfloat16(linear_run: Run) -> None:
    stock, ours = (perplexity(linear_run[name, "read"]) for name in ("upstream", "native"))
    assert 5 < stock < 200, "not a language model's perplexity on prose"
    assert ours == pytest.approx(stock, rel=0.005)


def test_perplexity_in_int8(linear_run: Run) -> None:
    names = ("upstream", "upstream-int8", "native-int8")
    plain, stock, ours = (perplexity(linear_run[name, "read"]) for name in names)
    assert stock != plain, "the int8 model computes as if it were not rounded"
    assert ours != plain, "ours computes as if it were not rounded"
    assert ours == pytest.approx(plain, rel=0.05)
    # Without VNNI, oneDNN adds byte products with saturation: stock's answers are wrong there.
    if cpu_info().avx_vnni or "avx512_bf16" in cpu_info().isas:
        assert ours == pytest.approx(stock, rel=0.02)


def test_same_tokens_in_bfloat16(linear_run: Run) -> None:
    """Equal up to the first near tie."""
    compared = 0
    for want, have in zip(
        linear_run["upstream", "greedy"], linear_run["native", "greedy"], strict=True
    ):
        one, other = want["outputs"][0], have["outputs"][0]
        for token, got, best in zip(one["tokens"], other["tokens"], one["logprobs"], strict=True):
            if got != token:
                first, second = sorted(best.values(), reverse=True)[:2]
                assert first - second < BF16_TIE, (token, got, best)
                break
            compared += 1
    assert compared >= 16, "too few tokens before the first tie"


def test_what_ran(linear_run: Run) -> None:
    layers = 30
    linear = {name: linear_run[name, "report"]["linear"] for name in ("native", "native-int8")}
    assert linear["native"] == {"SmoothGemmLinear[native]": 4 * layers + 2}
    assert linear["native-int8"] == {
        "SmoothGemmInt8Linear[native]": 4 * layers,
        "SmoothGemmLinear[native]": 2,
    }
    kernels = linear_run["native", "report"]["kernels"]
    assert sum(n for name, n in kernels.items() if name.startswith("linear_bf16")) > 4 * layers
    norms = sum(n for name, n in kernels.items() if name.startswith("rms_norm_bf16"))
    assert norms > 2 * layers
    assert norms % (2 * layers + 1) == 0
    upstream = linear_run["upstream", "report"]["kernels"]
    assert not [name for name, n in upstream.items() if n and name.startswith("rms_norm")]
    kernels = linear_run["native-int8", "report"]["kernels"]
    assert sum(n for name, n in kernels.items() if name.startswith("linear_int8")) > 4 * layers


def tokens(answers: list[dict[str, Any]]) -> list[list[int]]:
    return [answer["outputs"][0]["tokens"] for answer in answers]


def test_fused_silu_answers_as_stock_also_after_a_reload(linear_run: Run, stock: Run) -> None:
    assert linear_run["fused-reload", "report"]["linear"] == {
        "SmoothGemmLinear[native silu_and_mul]": 2,
        "SmoothGemmLinear[native]": 8,
    }
    assert tokens(linear_run["fused-reload", "before"]) == tokens(stock["reload", "before"])
    assert tokens(linear_run["fused-reload", "after"]) == tokens(stock["other", "greedy"])


def test_the_reference_answers_as_stock(linear_run: Run, stock: Run) -> None:
    report = linear_run["reference", "report"]
    assert report["linear"] == {"SmoothGemmLinear[reference]": 10}
    assert report["calls"]["linear[reference]"] >= 9 * features.GREEDY["max_tokens"]
    assert tokens(linear_run["reference", "before"]) == tokens(stock["reload", "before"])
