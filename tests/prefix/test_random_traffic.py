"""Random arrivals, aborts, preemptions, evictions and resets against the law and the pool."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from vllm.v1.request import RequestStatus

from tests.helpers.scheduler_sim import Sim, make_sim, model_folder
from vllm_xyserve.prefix import common_prefix_len

FOLDER = model_folder()


class Traffic:
    """Drives a simulation, and knows which sequences are cached if nothing was evicted."""

    def __init__(self, seed: int, sim: Sim) -> None:
        self.rng = random.Random(seed)
        self.sim = sim
        self.requests: dict[str, Any] = {}
        self.finished: list[tuple[Any, list[int]]] = []
        self.stems = [[self.rng.randrange(100, 140) for _ in range(300)] for _ in range(4)]
        self.num_checked = 0

    def prompt(self) -> list[int]:
        known = self.stems + [tokens for _, tokens in self.finished]
        stem = self.rng.choice(known)
        cut = self.rng.randrange(len(stem) + 1)
        rest = [self.rng.randrange(100, 140) for _ in range(self.rng.randrange(1, 60))]
        return [*stem[:cut], *rest][:400]

    def act(self) -> None:
        rng, sim = self.rng, self.sim
        kind = rng.random()
        if kind < 0.5:
            name = f"r{len(self.requests)}"
            self.requests[name] = sim.add(
                name,
                self.prompt(),
                max_tokens=rng.choice([1, 2, 30]),
                priority=rng.randrange(3),
                salt=rng.choice([None, None, "salt"]),
            )
        elif kind < 0.58 and self.requests:
            name = rng.choice(list(self.requests))
            if name in sim.scheduler.requests:
                sim.abort(name)
        elif kind < 0.62 and sim.scheduler.reset_prefix_cache():
            self.finished.clear()
        self.collect()

    def collect(self) -> None:
        """Move what has ended to the finished sequences, with the tokens that were computed."""
        for name, request in list(self.requests.items()):
            if name not in self.sim.scheduler.requests and not getattr(request, "seen", False):
                request.seen = True
                length = min(request.num_computed_tokens, request.num_tokens - 1)
                self.finished.append((request.cache_salt, request.all_token_ids[:length]))

    def step(self, exact: bool) -> None:
        sim = self.sim
        before = [
            (r.cache_salt, r.all_token_ids[: min(r.num_computed_tokens, r.num_tokens)])
            for r in sim.scheduler.running
        ]
        known = self.finished + before
        admitted_before = set(sim.cached)
        output = sim.schedule()
        same_step = [
            (r.cache_salt, r.all_token_ids[: r.num_computed_tokens])
            for r in (sim.scheduler.requests[name] for name in output.num_scheduled_tokens)
        ]
        for name in set(sim.cached) - admitted_before:
            self.check(name, known, same_step, exact)
        sim.finish(output)
        sim.check_invariants()
        self.collect()

    def check(
        self,
        name: str,
        known: Sequence[tuple[Any, list[int]]],
        same_step: Sequence[tuple[Any, list[int]]],
        exact: bool,
    ) -> None:
        request, size = self.requests[name], self.sim.block_size
        prompt = request.all_token_ids[: request.num_prompt_tokens]

        def longest(sequences: Sequence[tuple[Any, list[int]]]) -> int:
            lengths = [
                common_prefix_len(t, prompt) for s, t in sequences if s == request.cache_salt
            ]
            return min(max(lengths, default=0), len(prompt) - 1)

        law, whole_of_same_step = longest(known), longest(same_step) // size * size
        assert self.sim.cached[name] <= max(law, whole_of_same_step)
        if exact:
            assert self.sim.cached[name] >= law, f"{name}: {self.sim.cached[name]=} {law=}"
        self.num_checked += 1


@settings(max_examples=12, deadline=None, derandomize=True, phases=[Phase.generate])
@given(st.integers(0, 2**32), st.sampled_from([16, 32]), st.booleans())
def test_the_law_holds_without_evictions(seed: int, block_size: int, asynchronous: bool) -> None:
    sim = make_sim(block_size, 4000, asynchronous=asynchronous, budget=256, folder=FOLDER)
    traffic = Traffic(seed, sim)
    for _ in range(150):
        traffic.act()
        traffic.step(exact=True)
    sim.drain()
    assert traffic.num_checked > 20
    assert sim.num_copies > 0


@settings(max_examples=12, deadline=None, derandomize=True, phases=[Phase.generate])
@given(st.integers(0, 2**32), st.sampled_from(["fcfs", "priority"]), st.integers(28, 34))
def test_nothing_is_lost_or_wrong_under_pressure(seed: int, policy: str, num_blocks: int) -> None:
    sim = make_sim(16, num_blocks, budget=64, policy=policy, max_num_seqs=8, folder=FOLDER)
    traffic = Traffic(seed, sim)
    for _ in range(200):
        traffic.act()
        traffic.step(exact=False)
    sim.drain()
    done = [r for r in traffic.requests.values() if r.status != RequestStatus.FINISHED_ABORTED]
    assert len(done) > 50
    assert all(r.num_output_tokens == r.max_tokens for r in done)
    assert sum(r.num_preemptions for r in traffic.requests.values()) > 0
