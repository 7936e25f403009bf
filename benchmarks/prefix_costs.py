"""What token-level matching costs the scheduler, on real vLLM schedulers without a model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks import prefix_loop
from benchmarks.harness import Case, Options, Row, measure
from benchmarks.prefix_loop import Progress
from benchmarks.prefix_workloads import Words, Workload
from tests.helpers.scheduler_sim import Sim, make_sim

BLOCK_SIZE = 128
LOOKUP_LEN = 4000
NUM_CHILDREN = 10_000
ROOMY = 4000


@dataclass(slots=True)
class SimEngine:
    """A scheduler that gets made-up tokens, for `prefix_loop.run`."""

    sim: Sim
    block_size: int = BLOCK_SIZE
    requests: dict[str, Any] = field(default_factory=dict)

    @property
    def scheduler(self) -> Any:
        return self.sim.scheduler

    def add(self, name: str, tokens: Sequence[int], num_generated: int) -> str:
        self.requests[name] = self.sim.add(name, tokens, max_tokens=num_generated)
        return name

    def step(self) -> list[Progress]:
        output = self.scheduler.schedule()
        self.sim.finish(output)
        progresses = []
        for name in output.num_scheduled_tokens:
            request = self.requests[name]
            progresses.append(Progress(name, request.output_token_ids, request.is_finished()))
        return progresses


def lookup(options: Options, num_children: int = NUM_CHILDREN) -> tuple[float, list[Row]]:
    """Time that `get_computed_blocks` takes longer than stock's, in microseconds: the worse of two
    families of children. Stock's is measured on a pool with the same traffic.
    """
    added, rows = [], []
    for shared, what in ((0, "children part from the query at once"), (30, "at its last token")):
        sims = [lookup_sim(xyserve, shared, num_children) for xyserve in (True, False)]
        query = next(iter(sims[0].scheduler.waiting))
        least = query.num_tokens // BLOCK_SIZE * BLOCK_SIZE
        calls = [partial(look_up, sim) for sim in sims]

        def check(calls: Any = calls, least: int = least, shared: int = shared) -> None:
            got = tuple(call()[1] for call in calls)
            if got != (least + shared, least):
                raise AssertionError(f"hits are {got}, not {(least + shared, least)}")

        case = Case(
            name="lookup",
            check=check,
            ours=calls[0],
            peer=calls[1],
            facts={"prompt": LOOKUP_LEN, "children": num_children, "worst": what},
        )
        timing, row = measure(case, options)
        assert timing.peer_us is not None
        added.append(timing.ours_us - timing.peer_us)
        rows.append({**row, "added_us": added[-1]})
    return max(added), rows


def look_up(sim: Sim) -> Any:
    """The first lookup of a step, which includes the snapshot of the running requests."""
    manager = sim.scheduler.kv_cache_manager
    manager.new_step_starts()
    return manager.get_computed_blocks(next(iter(sim.scheduler.waiting)))


def lookup_sim(xyserve: bool, shared: int, num_children: int) -> Sim:
    """A scheduler in whose pool ``num_children`` blocks continue one prefix of 31 blocks, eight
    requests running, and one waiting that goes on behind the prefix, ``shared`` tokens with each
    child.
    """
    num_running = 8
    sim = make_sim(
        BLOCK_SIZE, num_children + 200, xyserve=xyserve, budget=8192, max_num_seqs=num_running + 1
    )
    words = Words(6)
    prefix = words.draw(LOOKUP_LEN // BLOCK_SIZE * BLOCK_SIZE)
    rest = words.draw(LOOKUP_LEN - len(prefix))
    tails = [(*rest[:shared], *words.draw(40 - shared)) for _ in range(num_children)]
    for i, tail in enumerate(tails):
        sim.add(f"child{i}", (*prefix, *tail))
        sim.finish(sim.scheduler.schedule())
    for i in range(num_running):
        sim.add(f"running{i}", words.draw(200), max_tokens=1000)
        sim.finish(sim.scheduler.schedule())
    if xyserve:
        index = sim.scheduler.kv_cache_manager.xy.index
        if len(index) < num_children:
            raise AssertionError(f"the index holds {len(index)} blocks, not {num_children}")
    sim.add("query", (*prefix, *rest))
    return sim


@dataclass(frozen=True, slots=True)
class StepCost:
    """Mean microseconds per step, without the slowest fiftieth, of stock's scheduler and of ours.

    schedule: composing the step; update: taking its tokens in, which frees what has finished.
    steps_per_request: a new request comes every so many steps; 0: none comes.
    """

    num_decodes: int
    steps_per_request: int
    stock_schedule_us: float
    ours_schedule_us: float
    stock_update_us: float
    ours_update_us: float

    @property
    def stock_us(self) -> float:
        return self.stock_schedule_us + self.stock_update_us

    @property
    def ours_us(self) -> float:
        return self.ours_schedule_us + self.ours_update_us

    def row(self) -> Row:
        return {
            "name": "scheduler step without a hit",
            "decodes": self.num_decodes,
            "steps_per_request": self.steps_per_request,
            "ours_us": self.ours_us,
            "peer_us": self.stock_us,
            "ratio": self.stock_us / self.ours_us,
            "ours_schedule_us": self.ours_schedule_us,
            "peer_schedule_us": self.stock_schedule_us,
            "added_us": self.ours_us - self.stock_us,
        }


def step_cost(num_decodes: int, num_steps: int, steps_per_request: int) -> StepCost:
    """Steps of running decodes, and now and then a new request that hits nothing and ends at once.

    Both schedulers take turns step by step, over the same requests.
    """
    sides = [_StepTimer(xyserve, num_decodes) for xyserve in (False, True)]
    for number in range(num_steps):
        for side in sides if number % 2 else sides[::-1]:
            if steps_per_request and number % steps_per_request == 0:
                side.add(number)
            side.step()
    stock, ours = sides
    for side in sides:
        if side.hit_tokens:
            raise AssertionError(f"{side.hit_tokens} tokens were hits where nothing is shared")
    return StepCost(
        num_decodes,
        steps_per_request,
        _mean(stock.schedule_us),
        _mean(ours.schedule_us),
        _mean(stock.update_us),
        _mean(ours.update_us),
    )


def _mean(times: Sequence[float]) -> float:
    # A mean, since steps with a new request are few and dear; what interrupts a step is left out.
    return statistics.fmean(sorted(times)[: max(1, len(times) * 49 // 50)])


class _StepTimer:
    def __init__(self, xyserve: bool, num_decodes: int) -> None:
        self.sim = make_sim(
            BLOCK_SIZE, ROOMY, xyserve=xyserve, budget=8192, max_num_seqs=num_decodes + 1
        )
        self.words = Words(7)
        self.schedule_us: list[float] = []
        self.update_us: list[float] = []
        self.hit_tokens = 0
        for i in range(num_decodes):
            self.sim.add(f"decode{i}", self.words.draw(200), max_tokens=7000)
        for _ in range(3):
            self.sim.finish(self.sim.scheduler.schedule())

    def add(self, number: int) -> None:
        self.sim.add(f"new{number}", self.words.draw(300))

    def step(self) -> None:
        outputs: list[Any] = []
        seconds = _timed(lambda: outputs.append(self.sim.scheduler.schedule()))
        self.schedule_us.append(seconds * 1e6)
        self.hit_tokens += sum(new.num_computed_tokens for new in outputs[0].scheduled_new_reqs)
        seconds = _timed(lambda: self.sim.finish(outputs[0]))
        self.update_us.append(seconds * 1e6)


def _timed(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def small_pool(workload: Workload, concurrency: int) -> Row:
    """Hit tokens of both schedulers under a pool of a quarter of the workload's working set.

    The working set is the blocks that are cached at the end where nothing was evicted. The pool
    always holds the longest request and one block to copy.
    """
    roomy = SimEngine(make_sim(BLOCK_SIZE, ROOMY))
    whole = prefix_loop.run(roomy, workload, concurrency)
    state = roomy.scheduler.kv_cache_manager.xy
    working_set = len(state.index)
    longest = max(len(r.all_token_ids) for r in roomy.requests.values())
    num_blocks = 1 + max(working_set // 4, -(-longest // BLOCK_SIZE) + 2)
    hits = {}
    for xyserve in (True, False):
        sim = make_sim(BLOCK_SIZE, num_blocks, xyserve=xyserve)
        hits[xyserve] = prefix_loop.run(SimEngine(sim), workload, concurrency).hit_tokens
    return {
        "name": "quarter pool",
        "workload": workload.name,
        "concurrency": concurrency,
        "blocks": num_blocks - 1,
        "working_set": working_set,
        "prompt_tokens": whole.num_prompt_tokens,
        "roomy_hit_tokens": whole.hit_tokens,
        "ours_hit_tokens": hits[True],
        "peer_hit_tokens": hits[False],
    }
