"""Token-level hits on 0.23's real managers, with vllm-ascend's patches on them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_xyserve.compat import block_copies

pytestmark = pytest.mark.usefixtures("npu")


@pytest.fixture
def sim() -> Any:
    from tests.ascend_plugin import world
    from tests.helpers.scheduler_sim import make_sim

    with world.using(world.make_config()):
        yield make_sim(128, 66)


def tokens(seed: int, count: int) -> list[int]:
    return [100 + ((31 * i + 7 * seed + 17 * i * i) % 40000) for i in range(count)]


def test_on_with_the_schedulers_that_vllm_ascend_puts_in(sim: Any) -> None:
    assert sim.scheduler.xy_prefix_off == []
    names = [cls.__name__ for cls in type(sim.scheduler).__mro__]
    assert names[1:3] == ["XySchedulerMixin", "BalanceScheduler"]
    assert not block_copies.is_native(sim.scheduler.kv_cache_manager)


def test_a_hit_within_a_block_is_copied(sim: Any) -> None:
    prompt = tokens(1, 300)
    sim.run("first", prompt)
    sim.add("second", [*prompt[:290], 7, 8, 9])
    output = sim.step()
    (copy,) = getattr(output, block_copies.ATTRIBUTE)
    assert copy.src_block_id != copy.dst_block_id
    assert sim.cached["second"] == 290
    sim.drain()


def test_statistics_count_an_admission_once(sim: Any) -> None:
    manager = sim.scheduler.kv_cache_manager
    prompt = tokens(2, 300)
    sim.run("first", prompt)
    manager.make_prefix_cache_stats()
    for _ in range(3):  # lookups of a request that waits
        manager.get_computed_blocks(sim.add("waiting", prompt))
        sim.abort("waiting")
    assert manager.make_prefix_cache_stats().requests == 0
    sim.add("second", prompt)
    output = sim.schedule()
    stats = manager.make_prefix_cache_stats()  # before the scheduler hands it out with the step
    assert (stats.requests, stats.queries, stats.hits) == (1, 300, 299)
    sim.finish(output)


def test_a_worker_that_cannot_copy_keeps_token_level_hits_off(sim: Any) -> None:
    config = SimpleNamespace(parallel_config=SimpleNamespace(worker_cls="another.Worker"))
    manager = SimpleNamespace(
        coordinator=SimpleNamespace(
            single_type_managers=[
                sim.scheduler.kv_cache_manager.coordinator.single_type_managers[0]
            ]
        ),
        get_computed_blocks=sim.scheduler.kv_cache_manager.get_computed_blocks,
        allocate_slots=sim.scheduler.kv_cache_manager.allocate_slots,
    )
    reason = block_copies.reason_against(manager, config)
    assert reason == "the worker another.Worker copies no KV blocks"
