"""The hit law and its guards, on vLLM's real scheduler over a simulated KV cache.

The law: cached tokens = min(longest common prefix with any cached sequence of the same identity,
prompt length - 1). `tests/helpers/scheduler_sim.py` compares every slot that is read.
"""

from __future__ import annotations

from typing import Any

import pytest
from vllm.lora.request import LoRARequest

from tests.helpers.scheduler_sim import Sim, make_sim
from vllm_xyserve.compat import block_copies


def tokens(seed: int, count: int) -> list[int]:
    """``count`` pseudo-random tokens; another seed differs in its first token."""
    return [100 + ((31 * i + 7 * seed + 17 * i * i) % 40000) for i in range(count)]


def another(token: int) -> int:
    return 100 + ((token - 100 + 1) % 40000)


@pytest.fixture(params=[(32, False), (128, False), (32, True)], ids=["32", "128", "async"])
def sim(request: pytest.FixtureRequest) -> Sim:
    block_size, asynchronous = request.param
    return make_sim(block_size, 2 + 8192 // block_size, asynchronous=asynchronous)


def test_token_level_hits_are_on(sim: Sim) -> None:
    assert sim.scheduler.xy_prefix_off == []
    assert type(sim.scheduler.kv_cache_manager).__name__ == "XyKVCacheManager"
    assert type(sim.scheduler.kv_cache_manager.block_pool).__name__ == "XyBlockPool"


def test_a_tail_off_the_block_grid_hits(sim: Sim) -> None:
    a = tokens(1, 35)
    sim.run("a", a)
    sim.run("b", [*a[:34], another(a[34]), 500])
    assert sim.cached["b"] == 34
    assert sim.num_copies == 1


def test_every_common_length(sim: Sim) -> None:
    a = tokens(2, 97)
    for length in range(98):
        assert sim.scheduler.reset_prefix_cache()
        sim.run(f"a{length}", a)
        first = another(a[length]) if length < 97 else 7
        sim.run(f"b{length}", [*a[:length], first, 8, 9, 10, 11])
        assert sim.cached[f"b{length}"] == length


@pytest.mark.parametrize("length", [31, 32, 33, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025])
def test_an_exact_repeat_computes_one_token(sim: Sim, length: int) -> None:
    a = tokens(3, length)
    sim.run("first", a)
    sim.add("second", a)
    output = sim.step()
    assert sim.cached["second"] == length - 1
    assert output.num_scheduled_tokens["second"] == 1


def test_three_ways_from_one_partial_block(sim: Sim) -> None:
    a = tokens(5, 45)
    sim.run("a", a)
    for name, prompt in {"b": [*a[:41], 800], "c": [*a[:41], 801], "d": a}.items():
        sim.add(name, prompt)
    sim.drain()
    assert (sim.cached["b"], sim.cached["c"], sim.cached["d"]) == (41, 41, 44)
    sim.run("e", a)
    assert sim.cached["e"] == 44


def test_generated_tokens_are_reused_turn_by_turn(sim: Sim) -> None:
    request = sim.run("turn0", tokens(6, 50), max_tokens=20)
    for turn in range(1, 7):
        total = request.num_tokens
        prompt = [*request.all_token_ids, *range(300 + 10 * turn, 307 + 10 * turn)]
        request = sim.run(f"turn{turn}", prompt, max_tokens=20)
        assert sim.cached[f"turn{turn}"] == total - 1


@pytest.mark.parametrize("shared", [1, 7, 31, 32, 33, 100])
def test_the_law_for_a_shared_system_prompt(sim: Sim, shared: int) -> None:
    head = tokens(7, shared)
    for i in range(8):
        sim.run(f"r{i}", [*head, 41000 + i, *tokens(50 + i, 49)])
    assert sum(sim.cached.values()) == 7 * shared
    counters = sim.scheduler.kv_cache_manager.xy.counters
    assert counters.block_hit_tokens + counters.sub_block_hit_tokens == 7 * shared
    assert counters.num_copies == sim.num_copies == (7 if shared % sim.block_size else 0)


def test_a_running_request_is_a_source_beyond_its_last_block(sim: Sim) -> None:
    a = tokens(8, 45)
    sim.add("runs", a, max_tokens=60)
    for _ in range(4):
        sim.step()
    assert sim.scheduler.requests["runs"].num_computed_tokens >= 45
    sim.add("joins", [*a, 900, 901])
    sim.step()
    assert sim.cached["joins"] == 45
    sim.drain()


def test_nothing_of_the_same_step_is_a_source(sim: Sim) -> None:
    a = tokens(9, 45)
    prompts = {"a": a, "b": a, "c": [*a[:44], 999], "d": [*a[:33], 998], "e": [*a[:20], 997]}
    for name, prompt in prompts.items():
        sim.add(name, prompt)
    sim.step()
    whole = 44 // sim.block_size * sim.block_size  # stock hits blocks that the same step fills
    assert sim.cached == {"a": 0, "b": whole, "c": whole, "d": whole, "e": 0}
    sim.drain()


def test_no_request_is_a_source_in_the_step_that_admits_it(
    sim: Sim, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = sim.scheduler.kv_cache_manager
    a = tokens(10, 45)
    sim.run("old", a)
    offered: list[set[str]] = []
    match = type(manager)._match

    def spy(self: Any, request: Any, num_tokens: int) -> Any:
        offered.append({request.request_id for request in self._xy_running[0]})
        return match(self, request, num_tokens)

    monkeypatch.setattr(type(manager), "_match", spy)
    for name in ("x", "y"):
        sim.add(name, [*a, 7, 8], max_tokens=4)
    sim.step()
    assert sim.cached["y"] >= 44
    assert offered == [set(), set()]
    sim.add("z", [*a, 7, 8, 9])
    sim.step()
    assert offered[2] == {"x", "y"}
    sim.drain()


def test_a_source_that_lost_its_blocks_is_not_offered(sim: Sim) -> None:
    manager = sim.scheduler.kv_cache_manager
    source = sim.add("source", tokens(11, 45), max_tokens=9)
    sim.step()
    probe = sim.add("probe", [*tokens(11, 45), 1])
    manager.new_step_starts()
    assert manager.get_computed_blocks(probe)[1] == 45
    sim.scheduler.running.remove(source)
    sim.scheduler._preempt_request(source, 0.0)
    sim.scheduler.prev_step_scheduled_req_ids.clear()  # as where vLLM preempts between steps
    assert manager.get_computed_blocks(probe)[1] == 44 // sim.block_size * sim.block_size
    sim.drain()


def test_chunked_prompts_and_their_same_step_neighbours() -> None:
    for order in ("abc", "bca", "cab"):
        sim = make_sim(32, 64, budget=64)
        a = tokens(9, 200)
        prompts = {"a": a, "b": [*a[:144], 999], "c": [*a[:33], 998]}
        for name in order:
            sim.add(name, prompts[name], max_tokens=3)
        sim.drain()


@pytest.mark.parametrize("place", [3, 64])
def test_a_salt_holds_for_the_whole_path(sim: Sim, place: int) -> None:
    a = tokens(16, 70)
    b = [*a[:place], another(a[place]), *a[place + 1 :]]
    cached = []
    for i, salt in enumerate(["a", "a", "b", None, "b"]):
        sim.run(f"r{i}", a, salt=salt)
        cached.append(sim.cached[f"r{i}"])
    assert cached == [0, 69, 0, 0, 69]
    for salt, expected in (("a", place), (None, place), ("new", 0)):
        name = f"other{salt}"
        sim.run(name, b, salt=salt)
        assert sim.cached[name] == expected


def test_an_adapter_and_a_salt_of_its_name_never_meet(sim: Sim) -> None:
    if not block_copies.is_native(sim.scheduler.kv_cache_manager):
        pytest.skip("vLLM 0.23 hashes a salt and an adapter of one name alike")
    a = tokens(17, 70)
    adapter = LoRARequest("K", 1, "/adapters/one")
    again = LoRARequest("K", 2, "/adapters/two")
    for name, kwargs in {
        "base": {},
        "lora": {"lora": adapter},
        "salt": {"salt": "K"},
        "reloaded": {"lora": again},
    }.items():
        sim.run(name, a, **kwargs)
        assert sim.cached[name] == 0
    sim.run("lora-again", a, lora=adapter)
    assert sim.cached["lora-again"] == 69


def test_prompt_logprobs_skip_the_cache_and_fill_it(sim: Sim) -> None:
    a = tokens(18, 33)
    sim.run("plain", a)
    sim.run("logprobs", a, prompt_logprobs=5)
    assert sim.cached["logprobs"] == 0
    sim.run("plain-again", a)
    assert sim.cached["plain-again"] == 32


def test_reset_forgets_everything(sim: Sim) -> None:
    a = tokens(19, 77)
    sim.run("a", a)
    assert sim.scheduler.reset_prefix_cache()
    sim.run("b", a)
    assert sim.cached["b"] == 0
    sim.add("busy", tokens(20, 77), max_tokens=9)
    sim.step()
    sim.scheduler.reset_prefix_cache()
    sim.drain()


def test_a_minimum_match_counts_whole_blocks_always() -> None:
    sim = make_sim(32, 64, options={"prefix": {"min_match_tokens": 8}})
    a = tokens(21, 60)
    sim.run("a", a)
    for length, expected in ((39, 32), (40, 40), (7, 0), (8, 8)):
        name = f"b{length}"
        sim.run(name, [*a[:length], another(a[length]), 5])
        assert sim.cached[name] == expected


def test_options_take_parts_out() -> None:
    a = tokens(22, 45)
    off = make_sim(32, 64, options={"prefix": {"token_level": False}})
    assert off.scheduler.xy_prefix_off == ["switched off"]
    no_tails = make_sim(32, 64, options={"prefix": {"reuse_tails": False}})
    for sim, expected in ((off, 32), (no_tails, 32)):
        sim.run("a", a)
        sim.run("b", [*a, 1])
        assert sim.cached["b"] == expected


def test_one_off_tails_do_not_evict_a_hot_prefix() -> None:
    sim = make_sim(32, 20)
    hot = tokens(15, 64)
    sim.run("hot", [*hot, 90])
    for i in range(50):
        sim.run(f"one-off{i}", [42000 + i, *tokens(100 + i, 32)])
        if i % 5 == 4:
            sim.run(f"hot{i}", [*hot, 43000 + i])
            assert sim.cached[f"hot{i}"] == 64
    assert sim.scheduler.reset_prefix_cache()
    sim.run("last", [*hot, 1])
    assert sim.cached["last"] == 0


def test_a_fresh_block_is_taken_before_a_tail() -> None:
    sim = make_sim(32, 20)
    a = tokens(23, 20)
    sim.run("a", a)
    for i in range(18):  # as many requests of a block as there are never-used blocks
        sim.run(f"b{i}", [44000 + i, *tokens(24, 10)])
    sim.run("again", a)
    assert sim.cached["again"] == 19


def test_a_request_that_needs_the_whole_pool_finishes_beside_a_tail() -> None:
    """Rule: a hit never makes a request inadmissible."""
    sim = make_sim(32, 5)  # four blocks for use
    sim.run("a", tokens(25, 20))
    sim.add("whole", [*tokens(25, 20), *tokens(26, 107)])
    sim.drain(most=20)
    assert sim.scheduler.kv_cache_manager.xy.counters.num_refused > 0


def test_preempted_requests_come_back_right() -> None:
    sim = make_sim(32, 8)
    prompts = {"a": tokens(27, 66), "b": tokens(28, 66)}
    requests = {name: sim.add(name, prompt, max_tokens=70) for name, prompt in prompts.items()}
    sim.drain()
    assert sum(r.num_preemptions for r in requests.values()) > 0
    assert all(r.num_output_tokens == 70 for r in requests.values())


def test_blocks_of_a_request_preempted_in_the_step_that_fills_them_are_not_cached() -> None:
    """Rule: a same-step preemption evicts every block that was hashed in that step.

    The long prompt takes five blocks in the first step and two in each further one. In step 5 it
    takes the pool's last two, then the other request, more urgent, needs its third block and
    preempts it. One of the two blocks goes to that request; the other stays, hashed and never
    computed, for the long prompt to hit.
    """
    sim = make_sim(32, 16, policy="priority", budget=160, long_prefill_token_threshold=64)
    if not block_copies.is_native(sim.scheduler.kv_cache_manager):
        pytest.skip("vLLM 0.23 admits the two in another order, and nothing is preempted")
    low = sim.add("low", tokens(29, 416), priority=5)
    sim.step()
    high = sim.add("high", tokens(30, 62), max_tokens=10, priority=0)
    for _ in range(4):
        assert low.num_preemptions == 0
        sim.step()
    assert low.num_preemptions == 1
    sim.drain(most=50)
    assert (high.num_output_tokens, low.num_output_tokens) == (10, 1)


def test_aborts_keep_the_pool_whole(sim: Sim) -> None:
    a = tokens(31, 200)
    for when in range(5):
        sim.add(f"a{when}", a, max_tokens=30)
        for _ in range(when):
            sim.step()
        sim.add(f"b{when}", [*a[:150], 7, 8], max_tokens=3)
        sim.abort(f"a{when}")
        sim.drain()
        sim.check_invariants()


def test_priorities_and_order_are_those_of_stock() -> None:
    """Hits change neither the order nor the fate of requests."""

    def order(xyserve: bool) -> list[Any]:
        sim = make_sim(32, 40, xyserve=xyserve, policy="priority", max_num_seqs=2)
        for i in range(6):
            sim.add(f"r{i}", [*tokens(32, 50), 400 + i], max_tokens=4, priority=-i)
        steps = []
        while sim.scheduler.has_unfinished_requests() and len(steps) < 200:
            steps.append(sorted(sim.step().num_scheduled_tokens))
        return steps

    assert order(True) == order(False)
