"""A LoRA adapter is loaded while the server runs, answers beside the base model, and goes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.helpers import models
from tests.server.asking import MODEL, cached_tokens, complete, error, ok, text_of

LONG_PROMPT = "Count the ships: " + ", ".join(f"ship {i}" for i in range(70))


def load(client: httpx.Client, name: str, path: Path) -> httpx.Response:
    body = {"lora_name": name, "lora_path": str(path)}
    return client.post("/v1/load_lora_adapter", json=body)


def unload(client: httpx.Client, name: str) -> httpx.Response:
    return client.post("/v1/unload_lora_adapter", json={"lora_name": name})


def served(client: httpx.Client) -> set[str]:
    return {card["id"] for card in ok(client.get("/v1/models"))["data"]}


@pytest.fixture(scope="module")
def adapters(
    client: httpx.Client, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[str]]:
    """Two adapters with different weights, loaded; gone after the module."""
    folder = tmp_path_factory.mktemp("lora")
    names = ["adapter-1", "adapter-2"]
    for seed, name in enumerate(names):
        answer = load(client, name, models.lora_adapter(folder / name, model, seed))
        assert answer.status_code == 200, answer.text
    yield names
    for name in served(client) & set(names):
        assert unload(client, name).status_code == 200


def test_adapters_are_listed_with_their_base(client: httpx.Client, adapters: list[str]) -> None:
    cards = ok(client.get("/v1/models"))["data"]
    assert {c["id"]: c["parent"] for c in cards} == {MODEL: None} | dict.fromkeys(adapters, MODEL)


def test_each_adapter_answers_in_its_own_way(client: httpx.Client, adapters: list[str]) -> None:
    base = text_of(complete(client))
    texts = [text_of(complete(client, model=name)) for name in adapters]
    assert len({base, *texts}) == 3
    assert [text_of(complete(client, model=name)) for name in adapters] == texts
    assert text_of(complete(client)) == base


def test_base_and_adapters_in_one_batch(client: httpx.Client, adapters: list[str]) -> None:
    names = [MODEL, *adapters, MODEL]
    alone = [text_of(complete(client, model=name)) for name in names]
    with ThreadPoolExecutor(len(names)) as pool:
        together = [pool.submit(complete, client, model=name) for name in names]
        assert [text_of(future.result()) for future in together] == alone


def test_adapter_does_not_use_the_prefix_of_the_base(
    client: httpx.Client, adapters: list[str]
) -> None:
    name = adapters[0]
    assert ok(client.post("/reset_prefix_cache"))["success"]
    cold = complete(client, model=name, prompt=LONG_PROMPT)
    assert ok(client.post("/reset_prefix_cache"))["success"]
    complete(client, prompt=LONG_PROMPT)
    after_base = complete(client, model=name, prompt=LONG_PROMPT)
    assert cached_tokens(after_base) == 0
    assert text_of(after_base) == text_of(cold)
    warm = complete(client, model=name, prompt=LONG_PROMPT)
    assert cached_tokens(warm) > 0
    assert text_of(warm) == text_of(cold)


def test_bad_adapters_are_refused(
    client: httpx.Client, adapters: list[str], tmp_path: Path
) -> None:
    assert "/no/such/adapter" in error(load(client, "new", Path("/no/such/adapter")), 404)
    assert "already been loaded" in error(load(client, adapters[0], tmp_path), 400)
    assert "base model" in error(load(client, MODEL, tmp_path), 400)
    assert "cannot be found" in error(unload(client, "new"), 404)
    assert served(client) == {MODEL, *adapters}


def test_unloaded_adapter_is_unknown_and_the_base_stays(
    client: httpx.Client, model: Path, tmp_path: Path
) -> None:
    base = text_of(complete(client))
    path = models.lora_adapter(tmp_path / "short-lived", model, seed=9)
    assert load(client, "short-lived", path).status_code == 200
    assert text_of(complete(client, model="short-lived")) != base
    assert unload(client, "short-lived").status_code == 200
    body = {"model": "short-lived", "prompt": "Hello", "max_tokens": 1}
    assert "short-lived" in error(client.post("/v1/completions", json=body), 404)
    assert text_of(complete(client)) == base
