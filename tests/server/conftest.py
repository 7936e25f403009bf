"""One server for all feature tests, since a start costs 40 s on two idle cores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.helpers import models
from tests.helpers.server import Server, serve
from tests.server.asking import MODEL

MAX_MODEL_LEN = 1024


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and give each the time of a server start."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.server)
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def model() -> Path:
    """The real model; a machine without it fails the tests."""
    return models.smollm2()


@pytest.fixture(scope="session")
def profile_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server writes its profiles."""
    return tmp_path_factory.mktemp("profile")


@pytest.fixture(scope="session")
def server(
    model: Path, profile_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server on the xyserve platform with all that the tests need switched on."""
    profiler = {
        "profiler": "torch",
        "torch_profiler_dir": str(profile_dir),
        "torch_profiler_with_stack": False,
    }
    arguments = [
        *(model, "--platform", "xyserve", "--served-model-name", MODEL),
        *("--enforce-eager", "--dtype", "float32", "--max-model-len", str(MAX_MODEL_LEN)),
        *("--kv-cache-memory-bytes", str(2**28), "--enable-prompt-tokens-details"),
        *("--enable-lora", "--max-loras", "2", "--profiler-config", json.dumps(profiler)),
    ]
    environ = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": "1"}
    with serve(arguments, tmp_path_factory.mktemp("server") / "log", environ) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[httpx.Client]:
    """Plain HTTP to the server. The first request that asks for logprobs compiles for a while."""
    with httpx.Client(base_url=server.url, timeout=300, trust_env=False) as http:
        yield http


@pytest.fixture(scope="session")
def api(server: Server) -> Iterator[openai.OpenAI]:
    """The OpenAI client, as users have it."""
    with (
        httpx.Client(timeout=300, trust_env=False) as http,
        openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=http
        ) as made,
    ):
        yield made
