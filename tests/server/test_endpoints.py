"""Health, version, metrics, tokens, sleep, profiling; and what the server says it runs."""

from __future__ import annotations

import gzip
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.server import Server
from tests.server.asking import MODEL, complete, metric, ok, text_of, wait_idle, wait_until


def worker_report(client: httpx.Client) -> dict[str, Any]:
    (report,) = ok(client.post("/collective_rpc", json={"method": "xyserve_report"}))["results"]
    assert isinstance(report, dict)
    return report


def test_start_up_log_names_every_part_once(server: Server, model: Path) -> None:
    num_layers = json.loads((model / "config.json").read_text())["num_hidden_layers"]
    (summary,) = server.log_lines("xyserve: family=")
    assert re.search(
        r"family=cpu isa=(scalar|avx2|avx512|avx512_bf16|none \(.+\)) scheduler=sync "
        r"attention=\w+.* linear=\w+.* prefix_unit=\d+ tokens?",
        summary,
    ), summary
    (scheduler,) = server.log_lines("xyserve: engine core runs")
    assert "XyScheduler on vllm.v1.core.sched.scheduler.Scheduler" in scheduler
    (worker,) = server.log_lines("xyserve: worker runs")
    found = re.search(r"attention (\w+)/(\w+)\[(\w+)\] x(\d+); linear \S+ x\d+", worker)
    assert found, worker
    assert found.groups()[:2] == ("MetaAttentionBackend", "MetaAttentionImpl")
    assert f"attention={found[3]}" in summary
    assert int(found[4]) == num_layers


def test_worker_runs_our_classes(client: httpx.Client, model: Path) -> None:
    num_layers = json.loads((model / "config.json").read_text())["num_hidden_layers"]
    before = worker_report(client)
    assert (before["platform"], before["worker"]) == ("XyCpuPlatform", "XyCPUWorker")
    (name,) = before["attention"]
    path = re.fullmatch(r"MetaAttentionBackend/MetaAttentionImpl\[(\w+)\]", name)
    assert path, name
    complete(client, max_tokens=5, ignore_eos=True)
    calls = f"attention[{path[1]}]"
    # One call per layer and step: the prompt's step gives the first of five tokens.
    assert worker_report(client)["calls"][calls] - before["calls"][calls] == 5 * num_layers


def test_server_is_a_family_of_processes(server: Server) -> None:
    """The check for orphans after a server's end looks at these, so it has to see them."""
    names = " ".join(" ".join(member.cmdline()) for member in server.members())
    assert "EngineCore" in names, names
    assert "Worker" in names, names


def test_health_and_version(client: httpx.Client, server: Server) -> None:
    assert client.get("/health").status_code == 200
    version = ok(client.get("/version"))["version"]
    assert server.log_lines(f"version {version}")


def test_metrics_count_tokens(client: httpx.Client) -> None:
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    wait_idle(client)
    before = [metric(client, name) for name in names]
    usage = complete(client, max_tokens=7, ignore_eos=True)["usage"]
    wait_idle(client)
    after = [metric(client, name) for name in names]
    assert usage["completion_tokens"] == 7
    assert after[0] - before[0] == usage["prompt_tokens"]
    assert after[1] - before[1] == 7
    assert metric(client, "vllm:num_requests_waiting") == 0


def test_tokenize_and_back(client: httpx.Client) -> None:
    text = "Grüße aus Zürich, 1234 times.\n"
    tokens = ok(client.post("/tokenize", json={"model": MODEL, "prompt": text}))
    assert tokens["count"] == len(tokens["tokens"]) > 5
    back = ok(client.post("/detokenize", json={"model": MODEL, "tokens": tokens["tokens"]}))
    assert back["prompt"] == text
    assert complete(client, prompt=text)["usage"]["prompt_tokens"] == tokens["count"]


def test_sleep_holds_requests_until_wake_up(client: httpx.Client, server: Server) -> None:
    """vLLM's CPU worker cannot give memory back and says so; the scheduler does pause."""
    expected = text_of(complete(client))
    assert ok(client.get("/is_sleeping")) == {"is_sleeping": False}
    assert ok(client.post("/sleep", params={"level": 1})) == {"status": "sleeping", "level": 1}
    assert ok(client.get("/is_sleeping")) == {"is_sleeping": True}
    assert client.get("/health").status_code == 200
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(complete, client)
        try:
            with pytest.raises(TimeoutError):
                asked.result(timeout=1.5)  # never answered while it sleeps
        finally:
            answer = client.post("/wake_up")
        assert ok(answer)["status"] == "awake"
        assert text_of(asked.result()) == expected
    assert ok(client.get("/is_sleeping")) == {"is_sleeping": False}
    assert text_of(complete(client)) == expected
    assert server.log_lines("sleep mode is not supported on CPU")


def test_profile_holds_our_steps(client: httpx.Client, profile_dir: Path) -> None:
    expected = text_of(complete(client, max_tokens=3))
    assert not list(profile_dir.iterdir())
    assert client.post("/start_profile").status_code == 200
    assert text_of(complete(client, max_tokens=3)) == expected
    assert client.post("/stop_profile").status_code == 200

    wait_until(lambda: bool(list(profile_dir.glob("rank0.*.json.gz"))), "the worker's trace")
    (trace,) = profile_dir.glob("rank0.*.json.gz")
    with gzip.open(trace, "rt") as stream:
        names = {event.get("name", "") for event in json.load(stream)["traceEvents"]}
    # The parent's or ours: which one `auto` takes depends on the CPU.
    attention = ("cpu_attention_with_kv_cache", "meta_attention")
    assert any(kernel in name for name in names for kernel in attention), sorted(names)[:50]
    assert text_of(complete(client, max_tokens=3)) == expected
