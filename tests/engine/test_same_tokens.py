"""32 real prompts through SmolLM2: the tokens of stock vLLM, by the classes that we claim."""

from __future__ import annotations

import re
from concurrent.futures import Future
from itertools import pairwise
from typing import Any

import pytest

from tests.engine.conftest import NUM_TOKENS, TOKEN_BUDGET
from tests.helpers.engine import Run

NUM_LAYERS = 30
# Four per layer, and the tied table twice: as input embedding and as output layer.
NUM_LINEAR = 4 * NUM_LAYERS + 2
BACKEND = "vllm_xyserve.attention.backend.MetaAttentionBackend"
IMPL = "vllm_xyserve.attention.impl.MetaAttentionImpl"
LINEAR = "vllm_xyserve.linear.method.SmoothGemmLinear"
# The paths add up in different orders; over these prompts their logprobs were seen to differ by
# 8e-5 at most. Greedy tokens are comparable where the best two lie further apart than both may
# move.
LOGPROB_ATOL = 3e-4
LEAST_GAP = 2 * LOGPROB_ATOL


@pytest.fixture(params=["upstream", "reference", "native"])
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def linear(path: str) -> str:
    """The linear path beside an attention path."""
    return "native" if path == "reference" else path


@pytest.fixture
def ours(smollm2_runs: dict[str, Future[Run]], path: str) -> Run:
    return smollm2_runs[path].result()


def answers(run: Run) -> list[dict[str, Any]]:
    return [answer["outputs"][0] for answer in run["smollm2", "generate"]]


def test_prompts_are_varied(prompts: dict[str, list[int]]) -> None:
    lengths = sorted(len(tokens) for tokens in prompts.values())
    assert len(prompts) == 32
    assert lengths[0] == 1
    assert lengths[-1] > TOKEN_BUDGET, "no prompt is too long for one step"
    assert sum(lengths) > 4 * TOKEN_BUDGET, "too little for steps that mix prefill and decode"
    assert len({tuple(tokens) for tokens in prompts.values()}) == 30, "two prompts come twice"


def test_stock_answers_are_comparable(smollm2_stock: Run) -> None:
    """No near tie in the stock answers, so that equal tokens can be asked for."""
    gaps = []
    for answer in answers(smollm2_stock):
        assert len(answer["tokens"]) == len(answer["logprobs"]) == NUM_TOKENS
        for position in answer["logprobs"]:
            best, second = sorted(position.values(), reverse=True)[:2]
            gaps.append(best - second)
    assert len(gaps) == 32 * NUM_TOKENS
    assert min(gaps) > LEAST_GAP
    assert len({tuple(answer["tokens"]) for answer in answers(smollm2_stock)}) >= 28


def test_same_tokens_as_stock(smollm2_stock: Run, ours: Run, prompts: dict[str, Any]) -> None:
    expected, got = answers(smollm2_stock), answers(ours)
    assert len(expected) == len(got) == 32
    for name, want, have in zip(prompts, expected, got, strict=True):
        assert have["tokens"] == want["tokens"], f"{name}: {have['text']!r}, {want['text']!r}"
        assert len(have["tokens"]) == NUM_TOKENS


def test_same_logprobs_as_stock(smollm2_stock: Run, ours: Run) -> None:
    for want, have in zip(answers(smollm2_stock), answers(ours), strict=True):
        for token, one, other in zip(
            want["tokens"], want["logprobs"], have["logprobs"], strict=True
        ):
            assert other[str(token)] == pytest.approx(one[str(token)], abs=LOGPROB_ATOL)


def test_prefix_cache_was_met(smollm2_stock: Run, ours: Run) -> None:
    """The equal answers include some behind a prefix hit, at least as many as in stock."""
    expected, got = (
        [answer["num_cached_tokens"] for answer in run["smollm2", "generate"]]
        for run in (smollm2_stock, ours)
    )
    assert sum(hits > 0 for hits in expected) >= 3, f"too few prefix hits: {expected}"
    assert all(have >= want for want, have in zip(expected, got, strict=True)), (expected, got)


def test_stock_is_stock(smollm2_stock: Run) -> None:
    look = smollm2_stock["smollm2", "look"]
    assert look["platform"] == "vllm.platforms.cpu.CpuPlatform"
    assert look["worker"] == "vllm.v1.worker.cpu_worker.CPUWorker"
    assert look["backends"] == {
        "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend": NUM_LAYERS
    }
    assert look["dispatch_wrapped"] is False
    assert LINEAR not in look["linears"]
    assert sum(look["linears"].values()) == NUM_LINEAR
    parts = ("attention", "linear", "worker", "scheduler", "platform.common", "platform.cpu")
    loaded = [m for m in look["ours_loaded"] if m.removeprefix("vllm_xyserve.") in parts]
    assert loaded == []
    assert smollm2_stock.log_lines("xyserve: ") == []


def test_worker_runs_our_classes(ours: Run, path: str) -> None:
    look = ours["smollm2", "look"]
    assert look["platform"] == "vllm_xyserve.platform.cpu.XyCpuPlatform"
    assert "vllm.platforms.cpu.CpuPlatform" in look["platform_bases"]
    assert look["worker"] == "vllm_xyserve.worker.cpu.XyCPUWorker"
    assert look["backends"] == {BACKEND: NUM_LAYERS}
    assert look["impls"] == {IMPL: NUM_LAYERS}
    assert look["paths"] == {path: NUM_LAYERS}
    num_ours = NUM_LINEAR if path == "reference" else 0
    assert look["linears"].get(LINEAR, 0) == num_ours
    assert sum(look["linears"].values()) == NUM_LINEAR


def test_report_tells_the_same(ours: Run, path: str, linear: str) -> None:
    """What the plugin says of itself is what a look at the worker found."""
    report = ours["smollm2", "report"]
    assert report["platform"] == "XyCpuPlatform"
    assert report["worker"] == "XyCPUWorker"
    attention = f"MetaAttentionBackend/MetaAttentionImpl[{path}]"
    assert report["attention"] == {attention: NUM_LAYERS}
    name = "upstream" if linear == "upstream" else f"SmoothGemmLinear[{linear}]"
    assert report["linear"] == {name: NUM_LINEAR}
    assert len(ours.log_lines(f"worker runs attention {attention} x{NUM_LAYERS}")) == 1


def test_paths_were_executed(ours: Run, path: str, linear: str) -> None:
    """Every layer once per step, and at least as many steps as tokens were made."""
    report = ours["smollm2", "report"]
    calls = report["calls"]
    num_steps, rest = divmod(calls.pop(f"attention[{path}]"), NUM_LAYERS)
    assert rest == 0
    assert num_steps >= NUM_TOKENS
    # The input embedding looks up instead of multiplying.
    num_products = num_steps * (NUM_LINEAR - 1)
    assert calls == ({} if linear == "upstream" else {f"linear[{linear}]": num_products})
    ran = sum(count for name, count in report["kernels"].items() if name.startswith("linear_f32"))
    assert ran == 0 if linear == "upstream" else ran >= num_products, report["kernels"]


def test_memory_is_that_of_stock(smollm2_stock: Run, ours: Run) -> None:
    """Weights are packed once and the originals freed; RSS moves by about 1 % between runs."""
    stock, mine = (run["smollm2", "look"]["rss"] for run in (smollm2_stock, ours))
    assert mine <= 1.03 * stock, f"{mine / 2**20:.0f} MiB, stock {stock / 2**20:.0f}"


def test_engine_core_runs_our_scheduler(ours: Run) -> None:
    (line,) = ours.log_lines("xyserve: engine core runs ")
    assert "XyScheduler on vllm.v1.core.sched.scheduler.Scheduler" in line
    process = re.search(r"\(EngineCore pid=(\d+)\)", line)
    assert process, line
    assert int(process[1]) != ours["smollm2", "look"]["pid"]


def test_start_up_line(ours: Run, path: str, linear: str) -> None:
    (line,) = ours.log_lines("xyserve: family=")
    told = line.partition("xyserve: ")[2]
    fields = ["family=cpu", "isa=", "scheduler=", f"attention={path}", f"linear={linear}"]
    for name, following in pairwise([*fields, "prefix_unit="]):
        assert told.index(name) < told.index(following), line
