"""Cached tokens of the answers, vLLM's prefix statistics and our counters agree to the token."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.helpers.scheduler_sim import Sim, make_sim
from vllm_xyserve import metrics
from vllm_xyserve.scheduler.prefix_state import PrefixCounters


class Accounts:
    """Sums over a simulation: what its answers say, and what vLLM's statistics say."""

    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self.cached: dict[str, int] = {}
        """Usage of each request: what an answer shows as ``cached_tokens``."""
        self.prompts: dict[str, int] = {}
        self.hits = self.queries = self.preempted_hits = self.requests = 0

    def step(self) -> None:
        """One step, with its outputs and statistics taken as vLLM's engine core takes them."""
        scheduler = self.sim.scheduler
        update = scheduler.update_from_output

        def watched(*args: Any) -> Any:
            outputs = update(*args)
            for client in outputs.values():
                for one in client.outputs:
                    if one.prefill_stats is not None:
                        assert one.request_id not in self.cached
                        self.cached[one.request_id] = one.prefill_stats.num_cached_tokens
                        self.prompts[one.request_id] = one.prefill_stats.num_prompt_tokens
                if client.scheduler_stats is not None:
                    self._add(client.scheduler_stats.prefix_cache_stats)
            return outputs

        scheduler.update_from_output = watched
        try:
            self.sim.step()
        finally:
            del scheduler.update_from_output

    def drain(self) -> None:
        for _ in range(5000):
            if not self.sim.scheduler.has_unfinished_requests():
                break
            self.step()
        else:
            raise AssertionError("requests wait for ever")
        stats = self.sim.scheduler.make_stats()
        self._add(stats.prefix_cache_stats)

    def _add(self, stats: Any) -> None:
        self.hits += stats.hits
        self.queries += stats.queries
        self.preempted_hits += stats.preempted_hits
        self.requests += stats.requests

    @property
    def counters(self) -> PrefixCounters:
        counters: PrefixCounters = self.sim.scheduler.kv_cache_manager.xy.counters
        return counters

    def check(self) -> None:
        """All agree, and there is something to agree on."""
        ours = self.counters
        assert ours.block_hit_tokens + ours.sub_block_hit_tokens == self.hits
        assert self.hits == sum(self.cached.values()) > 0
        assert ours.num_prompt_tokens == self.queries == sum(self.prompts.values())
        assert ours.resumed_hit_tokens == self.preempted_hits
        assert ours.num_copies == self.sim.num_copies
        assert (
            ours.copied_bytes == ours.num_copies * self.sim.scheduler.kv_cache_manager.xy.page_bytes
        )
        assert self.requests == len(self.cached)
        assert ours.num_lookups >= self.requests


def tokens(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(100, 40_000), k=count)


@pytest.mark.parametrize(("block_size", "asynchronous"), [(32, False), (128, False), (32, True)])
def test_without_preemption(block_size: int, asynchronous: bool) -> None:
    sim = make_sim(block_size, 1 + 16_384 // block_size, asynchronous=asynchronous)
    accounts = Accounts(sim)
    head = tokens(0, 300)
    shared = [0, 1, 31, 100, 128, 150, 256, 300, 300]
    for i, count in enumerate(shared):
        sim.add(f"r{i}", [*head[:count], 41_000 + i, *tokens(i + 1, 40)], max_tokens=3)
        accounts.drain()
    assert [accounts.cached[f"r{i}"] for i in range(9)] == [0, 0, 1, 31, 100, 128, 150, 256, 300]
    accounts.check()
    assert accounts.counters.block_hit_tokens == sum(
        cached // block_size * block_size for cached in accounts.cached.values()
    )
    assert accounts.counters.num_refused == accounts.counters.resumed_hit_tokens == 0


def test_requests_at_once() -> None:
    sim = make_sim(32, 1024, budget=128)
    accounts = Accounts(sim)
    head = tokens(50, 77)
    for i in range(40):
        sim.add(f"r{i}", [*head[: 2 * i], *tokens(51 + i, 90)], max_tokens=1 + i % 7)
        if i % 3 == 0:
            accounts.step()
    accounts.drain()
    accounts.check()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("asynchronous", [False, True])
def test_resumed_tokens_are_no_hits_of_a_user(seed: int, asynchronous: bool) -> None:
    """A pool too small for the running requests; they share prefixes and are preempted."""
    sim = make_sim(32, 20, asynchronous=asynchronous)
    accounts = Accounts(sim)
    head = tokens(100 + seed, 70)
    for i in range(14):
        sim.add(f"r{i}", [*head[: 5 * i], 42_000 + i, *tokens(i, 30)], max_tokens=80)
        accounts.step()
    accounts.drain()
    accounts.check()
    assert accounts.counters.resumed_hit_tokens > 0


def test_a_refused_hit_is_counted_once_and_is_no_hit() -> None:
    """The second request needs the whole pool, so it is not given the block beside the tail."""
    sim = make_sim(32, 5)  # four blocks for use
    accounts = Accounts(sim)
    head = tokens(200, 20)
    sim.add("a", head)
    accounts.drain()
    sim.add("whole", [*head, *tokens(201, 107)])
    accounts.drain()
    assert accounts.cached == {"a": 0, "whole": 0}
    assert accounts.counters.num_refused == 1
    assert accounts.counters.block_hit_tokens + accounts.counters.sub_block_hit_tokens == 0


def test_a_request_that_waits_and_gets_its_hit_was_not_refused() -> None:
    """It is looked up anew in every step, and refused as long as there is no room for it."""
    sim = make_sim(32, 6)  # five blocks for use
    accounts = Accounts(sim)
    head = tokens(210, 20)
    sim.add("tail", head)
    accounts.drain()
    sim.add("runs", tokens(211, 33), max_tokens=20)
    accounts.step()
    sim.add("waits", [*head, *tokens(212, 107)])
    accounts.step()
    assert sim.scheduler.kv_cache_manager._xy_refused == "waits"
    accounts.drain()
    assert accounts.counters.num_lookups > 10
    assert accounts.cached["waits"] == 20
    assert accounts.counters.num_refused == 0
    accounts.check()


def test_requests_that_skip_the_cache_are_not_counted() -> None:
    sim = make_sim(32, 64)
    accounts = Accounts(sim)
    prompt = tokens(220, 70)
    sim.add("a", prompt)
    accounts.drain()
    sim.add("b", prompt, prompt_logprobs=1)
    accounts.drain()
    assert accounts.counters.num_prompt_tokens == accounts.queries == 70
    sim.add("c", prompt)
    accounts.drain()
    assert accounts.cached == {"a": 0, "b": 0, "c": 69}
    assert accounts.counters.block_hit_tokens + accounts.counters.sub_block_hit_tokens == 69


def test_a_step_publishes_what_it_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its outputs are known, so that no answer is ahead of its figures."""
    monkeypatch.delenv(metrics.ENV_MULTIPROC_DIR, raising=False)
    monkeypatch.setenv(metrics.ENV_DIR, str(tmp_path))
    registry = CollectorRegistry()
    registry.register(metrics.FigureCollector(tmp_path))
    sim = make_sim(32, 64)
    sim.scheduler.xy_start_report()
    sim.run("a", tokens(230, 45))
    sim.add("b", tokens(230, 45))
    sim.schedule()
    labels = {"engine": "0", "kind": "sub_block"}
    assert registry.get_sample_value("xyserve_prefix_hit_tokens_total", labels) == 12
    labels["kind"] = "block"
    assert registry.get_sample_value("xyserve_prefix_hit_tokens_total", labels) == 32
    assert registry.get_sample_value("xyserve_prefix_copies_total", {"engine": "0"}) == 1
    sim.scheduler.shutdown()


def test_an_engine_without_token_level_hits_reports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(metrics.ENV_MULTIPROC_DIR, raising=False)
    monkeypatch.setenv(metrics.ENV_DIR, str(tmp_path))
    sim = make_sim(32, 64, options={"prefix": {"token_level": False}})
    sim.scheduler.xy_start_report()
    sim.run("a", tokens(240, 45))
    assert list(tmp_path.iterdir()) == []
    sim.scheduler.shutdown()


def test_figures_carry_the_data_parallel_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where vLLM has set the engine's own rank to 0, as for a dense model."""
    monkeypatch.delenv(metrics.ENV_MULTIPROC_DIR, raising=False)
    monkeypatch.setenv(metrics.ENV_DIR, str(tmp_path))
    sim = make_sim(32, 64)
    parallel = sim.scheduler.vllm_config.parallel_config
    parallel.data_parallel_index, parallel.data_parallel_rank = 2, 0
    sim.scheduler.xy_start_report()
    sim.run("a", tokens(250, 45))
    registry = CollectorRegistry()
    registry.register(metrics.FigureCollector(tmp_path))
    name = "xyserve_prefix_prompt_tokens_total"
    assert registry.get_sample_value(name, {"engine": "2"}) == 45
    sim.scheduler.shutdown()
