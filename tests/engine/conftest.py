"""Engine runs that several tests read; each is one child process, made when first asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.engine import features
from tests.helpers import models
from tests.helpers.engine import ROOT, Engine, Run, Setting, run

UPSTREAM = {"attention": "upstream", "linear": "upstream"}
# Attention in plain torch, linear layers through our kernels.
REFERENCE = {"attention": "reference", "linear": "native"}
NUM_TOKENS = 20
TOKEN_BUDGET = 512
TIMEOUT = 1100.0  # seconds, for a machine that has other things to do; idle it is two minutes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test's time includes the run that it is the first to ask for: minutes on a busy machine."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="session")
def prompts() -> dict[str, list[int]]:
    """The tokens of 32 prompts, by name."""
    from transformers import AutoTokenizer

    data = json.loads((ROOT / "tests" / "data" / "prompts.json").read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(models.smollm2())
    tokens = {}
    for prompt in data["prompts"]:
        parts = prompt["parts"]
        text = "".join(data["passages"][p[1:]] if p.startswith("@") else p for p in parts)
        tokens[prompt["name"]] = _tokenize(tokenizer, text, prompt["chat"])
    return tokens


@pytest.fixture(scope="session")
def smollm2_stock(prompts: dict[str, list[int]], folder: Path) -> Run:
    """SmolLM2 on stock vLLM."""
    return _smollm2_run("stock", None, prompts, folder)


@pytest.fixture(scope="session")
def smollm2_upstream(prompts: dict[str, list[int]], folder: Path) -> Run:
    """SmolLM2 on xyserve with every part upstream."""
    return _smollm2_run("upstream", UPSTREAM, prompts, folder)


@pytest.fixture(scope="session")
def smollm2_reference(prompts: dict[str, list[int]], folder: Path) -> Run:
    """SmolLM2 on xyserve with both parts ours."""
    return _smollm2_run("reference", REFERENCE, prompts, folder)


@pytest.fixture(scope="session")
def made(folder: Path) -> features.Models:
    """The tiny models."""
    return features.make_models(folder / "models")


@pytest.fixture(scope="session")
def feature_runs(made: features.Models, folder: Path) -> Iterator[dict[str, Future[Run]]]:
    """The features on three settings, two at a time: each child keeps one core busy."""
    engines = features.engines(made)
    with ThreadPoolExecutor(max_workers=2) as pool:

        def start(setting: Setting, these: list[Engine]) -> Future[Run]:
            where = folder / f"features-{setting.name}"
            return pool.submit(run, setting, these, where, timeout=TIMEOUT)

        yield {
            "stock": start(Setting("stock", None), [*features.yardsticks(made), *engines]),
            "default": start(Setting("default", {}), engines),
            "reference": start(Setting("reference", REFERENCE), engines),
        }


@pytest.fixture(scope="session")
def stock(feature_runs: dict[str, Future[Run]]) -> Run:
    """The features on stock vLLM."""
    return feature_runs["stock"].result()


@pytest.fixture(scope="session")
def default(feature_runs: dict[str, Future[Run]]) -> Run:
    """The features on xyserve without any option."""
    return feature_runs["default"].result()


@pytest.fixture(scope="session")
def reference(feature_runs: dict[str, Future[Run]]) -> Run:
    """The features on xyserve with both parts ours."""
    return feature_runs["reference"].result()


@pytest.fixture(scope="session", params=["default", "reference"])
def ours(request: pytest.FixtureRequest) -> Run:
    """Each of the two runs on xyserve."""
    answer: Run = request.getfixturevalue(request.param)
    return answer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models, logs and answers of this session lie."""
    return tmp_path_factory.mktemp("engine")


def _smollm2_run(
    name: str, options: dict[str, Any] | None, prompts: dict[str, list[int]], folder: Path
) -> Run:
    llm = {
        "model": str(models.smollm2()),
        "max_model_len": 1024,
        "max_num_batched_tokens": TOKEN_BUDGET,
        "block_size": 32,
        "kv_cache_memory_bytes": 512 << 20,  # all 32 requests at once
        "disable_log_stats": False,
    }
    sampling = {"temperature": 0.0, "max_tokens": NUM_TOKENS, "ignore_eos": True, "logprobs": 2}
    steps: list[dict[str, Any]] = [
        {"name": "generate", "do": "generate", "prompts": list(prompts.values()), **sampling},
        {"name": "look", "do": "look"},
        {"name": "metrics", "do": "metrics"},
    ]
    if options is not None:
        steps.append({"name": "report", "do": "report"})
    setting = Setting(name, options, processes=True)
    return run(
        setting, [Engine("smollm2", llm, steps)], folder / f"smollm2-{name}", timeout=TIMEOUT
    )


def _tokenize(tokenizer: Any, text: str, chat: bool) -> list[int]:
    if not chat:
        return list(tokenizer(text).input_ids)
    messages = [{"role": "user", "content": text}]
    encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    return list(encoded["input_ids"])
