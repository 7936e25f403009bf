"""Carries a plan out: servers one after the other, cells one after the other, each kept at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.serving import answers, plan
from benchmarks.serving.client import Client, Load
from benchmarks.serving.plan import Budget, Cell, Speed
from benchmarks.serving.servers import VARIANTS, Server, Settings, Variant, running
from benchmarks.serving.state import State
from benchmarks.serving.statistics import Objective, figures
from benchmarks.serving.workloads import Maker, Traffic

# How long a server takes to stop, and what its cells lose between one another.
_STOP_S = 5.0
_CALIBRATION_REQUESTS = 8
# Speeds are measured with lengths as the quick run's: on a slow machine whole ones take minutes.
_CALIBRATION_LENGTHS = 1 / 3


@dataclass(frozen=True, slots=True)
class Scope:
    """What a run covers.

    variants: servers that run all cells; ablation: those that run a few. seconds: that the whole
    run may take.
    """

    quick: bool
    workloads: tuple[str, ...]
    variants: Mapping[str, Variant]
    ablation: Mapping[str, Variant]
    repeats: int
    seconds: float
    with_answers: bool

    @property
    def compared(self) -> list[Variant]:
        """Servers whose answers have to be stock's."""
        return [v for v in self.variants.values() if v.options is not None]


class Run:
    """A run. folder: of the logs."""

    def __init__(
        self,
        scope: Scope,
        settings: Settings,
        maker: Maker,
        objective: Objective,
        state: State,
        folder: Path,
    ) -> None:
        self._scope, self._settings, self._maker = scope, settings, maker
        self._objective, self._state, self._folder = objective, state, folder
        self._traffic: dict[tuple[str, int, int], Traffic] = {}
        self._began = self._cells_began = time.monotonic()
        self._done, self._total, self._num_servers = 0, 0, 0

    def whole(self) -> None:
        """Everything that the state does not hold yet."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._state.is_resumed:
            self._say(f"going on with {self._state.path}")
        if self._scope.with_answers:
            for variant in self._scope.compared:
                self._answers(variant)
        cells, few = self._plan()
        work = [
            (variant, repeat, cells if variant.name in self._scope.variants else few)
            for repeat in range(self._scope.repeats)
            for variant in self._order(repeat)
        ]
        self._cells_began = time.monotonic()
        self._total = sum(len(self._missing(*item)) for item in work)
        self._num_servers = len(work)
        for variant, repeat, wanted in work:
            if missing := self._missing(variant, repeat, wanted):
                self._server(variant, repeat, missing)

    def _order(self, repeat: int) -> list[Variant]:
        """Stock first, stock again last, ours between them; every other repeat backwards."""
        first = list(self._scope.variants.values())
        last = [v for v in first if v.name == "stock-again"]
        order = [v for v in first if v not in last] + list(self._scope.ablation.values()) + last
        return order if repeat % 2 == 0 else order[::-1]

    def _missing(self, variant: Variant, repeat: int, cells: Sequence[Cell]) -> list[Cell]:
        key = {"variant": variant.name, "repeat": repeat}
        wanted = [c for c in cells if c.name not in self.left_out]
        return [c for c in wanted if self._state.get("cell", cell=c.name, **key) is None]

    @property
    def left_out(self) -> list[str]:
        """Names of the cells for which the time did not do."""
        planned = self._state.get("plan") or {}
        return [*planned.get("left_out", ()), *(self._state.get("left_out") or ())]

    def _answers(self, variant: Variant) -> None:
        if self._state.get("answers", variant=variant.name) is not None:
            return
        self._say(f"answers of {variant.name}, one at a time in float32, beside stock's")
        settings = answers.float32(self._settings)
        count, num_tokens = (10, 12) if self._scope.quick else (32, 48)
        traffic = self._maker.make("mixed", count, seed=3)
        found = answers.agreement(variant, settings, traffic, num_tokens, self._folder)
        if found.num_wrong:
            raise answers.WrongAnswer(f"{variant.name} differs from stock: {found.differences}")
        self._state.add("answers", found.as_json(), variant=variant.name)
        self._say(
            f"  {found.num_requests - len(found.differences)} of {found.num_requests} equal, "
            f"the others part at a tie; {found.hit_tokens:.0f} hit tokens"
        )

    def _plan(self) -> tuple[tuple[Cell, ...], tuple[Cell, ...]]:
        """The cells of the run, for all servers and for those of the ablation."""
        if (known := self._state.get("plan")) is None:
            known = self._new_plan()
            self._state.add("plan", known)
        self._maker = replace(self._maker, shrink=known["lengths_times"])
        cells = tuple(Cell.from_json(cell) for cell in known["cells"])
        few = tuple(Cell.from_json(cell) for cell in known["ablation"])
        digests = {cell.name: self._requests(cell).digest() for cell in cells}
        if digests != known["digests"]:
            raise RuntimeError(
                "the requests differ from those that the unfinished run measured (another Python "
                "or tokenizer?); use --fresh"
            )
        return cells, few

    def _new_plan(self) -> dict[str, Any]:
        if self._scope.quick:
            known: dict[str, Any] = {"lengths_times": self._maker.shrink}
            cells, few = plan.quick(self._scope.workloads), tuple[Cell, ...]()
        else:
            known, cells, few = self._fitted_plan()
        self._maker = replace(self._maker, shrink=known["lengths_times"])
        digests = {cell.name: self._requests(cell).digest() for cell in cells}
        sizes = {cell.name: self._requests(cell).num_requests for cell in cells}
        return {
            "cells": [cell.as_json() for cell in cells],
            "ablation": [cell.as_json() for cell in few],
            "digests": digests,
            "requests": sizes,
            **known,
        }

    def _fitted_plan(self) -> tuple[dict[str, Any], tuple[Cell, ...], tuple[Cell, ...]]:
        """What is known of it, its cells, and those of the ablation."""
        scope = self._scope
        runs = scope.repeats * (len(scope.variants) + len(scope.ablation))
        measured = {name: self._speed(v) for name, v in self._timed_variants().items()}
        speeds = {name: speed for name, (speed, _) in measured.items()}
        start_s = sum(start for _, start in measured.values()) / len(measured) + _STOP_S
        spent = time.monotonic() - self._began
        # Stock runs twice in each repeat and was timed once.
        all_speeds = {n: speeds.get(n, speeds["stock"]) for n in scope.variants}

        def whole(lengths: float) -> Budget:
            return plan.full(
                scope.workloads,
                replace(self._maker, shrink=lengths).make,
                all_speeds,
                len(scope.ablation),
                scope.repeats,
                scope.seconds - spent - runs * start_s,
            )

        budget = plan.fitting(whole)
        known = {
            "lengths_times": budget.lengths,
            "speeds": {name: asdict(speed) for name, speed in speeds.items()},
            "server_runs": runs,
            "start_s": start_s,
            "seconds_per_cell": budget.seconds_per_cell,
            "seconds_of_cells": budget.seconds,
            "left_out": list(budget.dropped),
        }
        self._say(
            f"plan: {runs} server runs of {start_s:.0f} s and {budget.seconds / 60:.0f} min of "
            f"cells ({budget.seconds_per_cell:.0f} s each on stock), lengths times "
            f"{budget.lengths:.2g}; left out: {', '.join(budget.dropped) or 'nothing'}"
        )
        return known, budget.cells, budget.ablation_cells

    def _timed_variants(self) -> dict[str, Variant]:
        variants = {**self._scope.variants}
        variants.pop("stock-again", None)
        return {"stock": VARIANTS["stock"], **variants}

    def _speed(self, variant: Variant) -> tuple[Speed, float]:
        """How fast a server is, and seconds to start it and warm it up; measured once."""
        known = self._state.get("speed", variant=variant.name)
        if known is None:
            self._say(f"speed of {variant.name}")
            log = self._folder / f"speed-{variant.name}.log"
            maker = replace(self._maker, shrink=_CALIBRATION_LENGTHS)
            with running(variant, self._settings, log) as server:
                start_s = server.startup_s + self._warm_up(server, maker)
                prompts = maker.make("prefill-heavy", _CALIBRATION_REQUESTS, seed=5)
                decodes = maker.make("multi-turn", 2 * _CALIBRATION_REQUESTS, seed=5)
                one = self._client(server).run(prompts, Load(num_users=1), 300)[1]
                prefill = prompts.num_new_tokens / one
                users = Load(num_users=plan.HEADLINE_USERS)
                two = self._client(server).run(decodes, users, 300)[1]
            left = max(two - decodes.num_new_tokens / prefill, two / 4)
            rates = {"prefill": prefill, "decode": decodes.num_generated / left}
            known = {"speed": rates, "start_s": start_s}
            self._state.add("speed", known, variant=variant.name)
        speed = Speed(**known["speed"])
        self._say(
            f"  {variant.name}: {speed.prefill:.0f} prompt tokens/s, {speed.decode:.0f} "
            "generated tokens/s"
        )
        return speed, known["start_s"]

    def _server(self, variant: Variant, repeat: int, cells: Sequence[Cell]) -> None:
        where = f"{variant.name}, repeat {repeat + 1} of {self._scope.repeats}"
        self._say(f"starting {where}")
        log = self._folder / f"{variant.name}-{repeat}.log"
        with running(variant, self._settings, log) as server:
            self._say(f"  ready after {server.startup_s:.1f} s; warming up")
            ready_s = server.startup_s + self._warm_up(server, self._maker)
            took_s: list[float] = []
            for cell in cells:
                if self._is_late(ready_s, took_s):
                    names = [c.name for c in cells[len(took_s) :]]
                    self._say(f"  no time left for {', '.join(names)}")
                    self._state.add("left_out", names)
                    self._total -= self._num_servers * len(names)
                    break
                found = self._cell(server, cell)
                self._state.add("cell", found, variant=variant.name, repeat=repeat, cell=cell.name)
                took_s.append(found["duration_s"])
                self._progress(where, cell, found)
            if self._state.get("server", variant=variant.name, repeat=repeat) is None:
                facts = {
                    "startup_s": server.startup_s,
                    "phases": server.phases,
                    "startup_line": server.startup_line,
                    "peak_bytes": server.cost().peak_bytes,
                }
                self._state.add("server", facts, variant=variant.name, repeat=repeat)

    def _is_late(self, ready_s: float, took_s: Sequence[float]) -> bool:
        """Whether a quick run had better not begin another cell, as its first server finds.

        Every server is taken to need as long as this one: ``ready_s`` until it is warm, and
        ``took_s`` for the cells so far; the next cell as long as their mean.
        """
        if not self._scope.quick or not took_s or self._done > len(took_s):
            return False
        cells_s = sum(took_s) * (1 + 1 / len(took_s))
        others_s = (self._num_servers - 1) * (ready_s + _STOP_S + cells_s)
        spent_s = time.monotonic() - self._began + took_s[-1]
        return spent_s + others_s > self._scope.seconds

    def _warm_up(self, server: Server, maker: Maker) -> float:
        """A few requests of every kind, thrown away: the first ones set kernels and pools up.

        Returns:
            How many seconds that took.
        """
        traffic = maker.make("mixed", plan.HEADLINE_USERS, seed=9)
        return self._client(server).run(traffic, Load(num_users=plan.HEADLINE_USERS), 300)[1]

    def _cell(self, server: Server, cell: Cell) -> dict[str, float]:
        traffic = self._requests(cell)
        server.reset_prefix_cache()
        counters, cost = server.counters(), server.cost()
        samples, duration_s = self._client(server).run(traffic, cell.load, self._deadline(cell))
        after, cost_after = server.counters(), server.cost()
        rise = {key: after[key] - counters[key] for key in counters}
        return figures(samples, duration_s, self._objective, rise, cost_after.cpu_s - cost.cpu_s)

    def _deadline(self, cell: Cell) -> float:
        """Far beyond any planned time: it ends a run whose server hangs."""
        traffic = self._requests(cell)
        slow = Speed(prefill=50, decode=10).seconds(traffic, cell.load)
        return 60 + slow

    def _requests(self, cell: Cell) -> Traffic:
        users = cell.load.num_users or 1
        key = (cell.workload, cell.num_requests, users)
        if key not in self._traffic:
            self._traffic[key] = self._maker.for_users(*key)
        return self._traffic[key]

    def _client(self, server: Server) -> Client:
        return Client(server.url, self._maker.tokenizer_file)

    def _progress(self, where: str, cell: Cell, found: Mapping[str, float]) -> None:
        self._done += 1
        left = (time.monotonic() - self._cells_began) / self._done * (self._total - self._done)
        self._say(
            f"  [{self._done}/{self._total}] {where}: {cell.name}: {found['num_requests']:.0f} "
            f"requests in {found['duration_s']:.1f} s, first token {found['ttft_p50'] * 1e3:.0f} ms"
            f"; about {left / 60:.0f} min left"
        )

    @staticmethod
    def _say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)
