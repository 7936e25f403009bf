"""A closed loop over an engine that is stepped by hand, with exact times and cached counts."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.prefix_law import Admission, Step, admissions
from benchmarks.prefix_workloads import Session, Workload


@dataclass(frozen=True, slots=True)
class Progress:
    """A request after a step: all tokens that it has generated, and whether it is finished.

    margins: per token, by how much its log probability exceeds the second best (if asked for).
    """

    name: str
    generated: Sequence[int]
    finished: bool
    margins: Sequence[float] = ()


class Engine(Protocol):
    """What the loop needs. ``scheduler`` is a vLLM scheduler in this process."""

    @property
    def scheduler(self) -> Any:
        """The scheduler."""

    @property
    def block_size(self) -> int:
        """Tokens of a KV block."""

    def add(self, name: str, tokens: Sequence[int], num_generated: int) -> str:
        """Queue a request; returns the name that the scheduler knows it by."""

    def step(self) -> Sequence[Progress]:
        """One step; the requests that it advanced, under the names of the scheduler."""


@dataclass(slots=True)
class Recorder:
    """Stands between an engine and its scheduler's ``schedule``, and notes each step."""

    scheduler: Any
    steps: list[Step] = field(default_factory=list)

    def __enter__(self) -> Recorder:
        scheduler, original = self.scheduler, self.scheduler.schedule

        def schedule(*args: Any, **kwargs: Any) -> Any:
            computed = {
                r.request_id: min(r.num_computed_tokens, r.num_tokens) for r in scheduler.running
            }
            began = time.perf_counter()
            output = original(*args, **kwargs)
            schedule_us = (time.perf_counter() - began) * 1e6
            admitted = [(new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs]
            scheduled = dict(output.num_scheduled_tokens)
            self.steps.append(Step(computed, scheduled, admitted, schedule_us))
            return output

        scheduler.schedule = schedule
        return self

    def __exit__(self, *_: object) -> None:
        del self.scheduler.schedule  # the class's own is below


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request was answered."""

    session: int
    turn: int
    generated: list[int]
    margins: list[float]


@dataclass(frozen=True, slots=True)
class Run:
    """One pass over a workload. Times in seconds unless named otherwise; lists are per request."""

    wall_s: float
    ttft_s: list[float]
    num_prompt_tokens: int
    num_generated_tokens: int
    hit_tokens: int
    law_tokens: int
    block_law_tokens: int
    below_law: list[Admission]
    step_us: list[float]
    steps: list[Step]
    answers: list[Answer]

    def decode_step_us(self, num_rows: int) -> float | None:
        """Median of the steps that hold just so many rows of one token each."""
        times = [
            us
            for us, step in zip(self.step_us, self.steps, strict=True)
            if len(step.scheduled) == num_rows and set(step.scheduled.values()) == {1}
        ]
        return statistics.median(times) if times else None


@dataclass(slots=True)
class _Going:
    """A session in flight."""

    number: int
    session: Session
    turn: int = -1
    history: list[int] = field(default_factory=list)
    asked_at: float = 0.0


class _Loop:
    """State of one pass."""

    def __init__(self, engine: Engine, workload: Workload) -> None:
        self.engine = engine
        self.waiting = list(enumerate(workload.sessions))[::-1]
        self.going: dict[str, _Going] = {}
        self.ttft_s: dict[str, float] = {}
        self.sequences: dict[str, list[int]] = {}
        self.prompt_lens: dict[str, int] = {}
        self.finished_in: dict[str, int] = {}
        self.answers: list[Answer] = []
        self.step_us: list[float] = []

    def ask(self, going: _Going) -> None:
        """Send a session's next turn."""
        going.turn += 1
        turn = going.session.turns[going.turn]
        going.history.extend(turn.tokens)
        going.asked_at = time.perf_counter()
        name = self.engine.add(
            f"s{going.number}t{going.turn}", list(going.history), turn.num_generated
        )
        self.prompt_lens[name] = len(going.history)
        self.going[name] = going

    def fill(self, concurrency: int) -> None:
        while self.waiting and len(self.going) < concurrency:
            self.ask(_Going(*self.waiting.pop()))

    def step(self) -> None:
        began = time.perf_counter()
        progresses = self.engine.step()
        now = time.perf_counter()
        self.step_us.append((now - began) * 1e6)
        for progress in progresses:
            name = progress.name
            if progress.generated and name not in self.ttft_s:
                self.ttft_s[name] = now - self.going[name].asked_at
            if progress.finished:
                self.finish(progress)

    def finish(self, progress: Progress) -> None:
        going = self.going.pop(progress.name)
        generated = list(progress.generated)
        going.history.extend(generated)
        self.sequences[progress.name] = list(going.history)
        self.finished_in[progress.name] = len(self.step_us) - 1
        self.answers.append(Answer(going.number, going.turn, generated, list(progress.margins)))
        if going.turn + 1 < len(going.session.turns):
            self.ask(going)


def run(engine: Engine, workload: Workload, concurrency: int, most_steps: int = 1_000_000) -> Run:
    """Answer all requests of a workload with ``concurrency`` of its sessions in flight.

    Raises:
        RuntimeError: it did not end within ``most_steps``, or a step was not recorded.
    """
    loop = _Loop(engine, workload)
    gc.collect()
    with Recorder(engine.scheduler) as recorder:
        began = time.perf_counter()
        loop.fill(concurrency)
        while loop.going:
            loop.step()
            loop.fill(concurrency)
            if len(loop.step_us) > most_steps:
                raise RuntimeError(f"{workload.name} is not done after {most_steps} steps")
        wall_s = time.perf_counter() - began
    if len(recorder.steps) != len(loop.step_us):
        raise RuntimeError(
            f"{len(loop.step_us)} engine steps called schedule() {len(recorder.steps)} times; the "
            "loop needs an engine that schedules synchronously in this process"
        )
    admitted = admissions(
        recorder.steps, loop.sequences, loop.prompt_lens, loop.finished_in, engine.block_size
    )
    return Run(
        wall_s=wall_s,
        ttft_s=list(loop.ttft_s.values()),
        num_prompt_tokens=sum(loop.prompt_lens.values()),
        num_generated_tokens=sum(len(answer.generated) for answer in loop.answers),
        hit_tokens=sum(a.got for a in admitted),
        law_tokens=sum(a.law for a in admitted),
        block_law_tokens=sum(a.block_law for a in admitted),
        below_law=[a for a in admitted if a.got < a.law],
        step_us=loop.step_us,
        steps=recorder.steps,
        answers=loop.answers,
    )
