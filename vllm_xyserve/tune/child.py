"""Measures in a process of its own: ``python -m vllm_xyserve.tune.child JSON``.

The argument is a `Job`. Each line on standard output is a JSON object about the next of its tasks,
so that what was reached is known if the process crashes or hangs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from vllm_xyserve.linear.tuned import set_table
from vllm_xyserve.ops import linear as ops
from vllm_xyserve.ops import linear_tuned, registry
from vllm_xyserve.plan.tuning import RULE, Tiling, TunedEntry
from vllm_xyserve.tune import search

# In a model a layer's weight was last read a step ago: copies, so that it comes from where it does
# there, and not from the second-level cache.
_WEIGHT_BYTES: Final = 32 << 20
_MAX_COPIES: Final = 16
_SAMPLE_SECONDS: Final = 3e-3
_SEARCH_ROUNDS: Final = 5
_CONFIRM_ROUNDS: Final = 15


@dataclass(frozen=True, slots=True)
class Job:
    """What a child does: search for each task, or measure a given choice for each once more."""

    dtype: str
    tasks: list[search.Task]
    tilings: list[Tiling] | None = None

    def to_json(self) -> str:
        """For the child's command line."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        """From the child's command line."""
        data = json.loads(text)
        tilings = data["tilings"]
        return Job(
            dtype=data["dtype"],
            tasks=[search.Task(**task) for task in data["tasks"]],
            tilings=None if tilings is None else [Tiling(**tiling) for tiling in tilings],
        )


class Bench:
    """Times choices for one layer against the rule."""

    def __init__(self, n: int, k: int, dtype: str, threads: int, rounds: int) -> None:
        self.n, self.k, self.threads, self.rounds = n, k, threads, rounds
        self.dtype = registry.DTYPES[dtype]
        self.kernel = registry.chosen("linear", self.dtype)
        num_bytes = n * k * self.dtype.itemsize
        copies = min(_MAX_COPIES, max(1, -(-_WEIGHT_BYTES // num_bytes)))
        weight = torch.randn(n, k).to(self.dtype)
        first = ops.linear_pack(weight)
        self.packed = [first, *(first.clone() for _ in range(copies - 1))]

    def ratios(self, tiling: Tiling, row_counts: Sequence[int]) -> tuple[list[float], list[float]]:
        """Time of a choice over the rule's at each M, and the rule's time in microseconds."""
        found, times = [], []
        for m in row_counts:
            x = torch.randn(m, self.k).to(self.dtype)
            self._check(x, tiling)
            count = self._calls_per_sample(x)
            pairs = []
            for turn in range(self.rounds):
                order = (RULE, tiling) if turn % 2 == 0 else (tiling, RULE)
                seconds = {i: self._sample(x, choice, count) for i, choice in enumerate(order)}
                pairs.append((seconds[turn % 2], seconds[1 - turn % 2]))
            found.append(statistics.median(ours / rule for rule, ours in pairs))
            times.append(statistics.median(rule for rule, _ in pairs) * 1e6)
        return found, times

    def _check(self, x: torch.Tensor, tiling: Tiling) -> None:
        """Raise unless a choice gives the bits of the rule, and is really looked up."""
        self._choose(RULE)
        expected = self._call(x, 0)
        self._choose(tiling)
        before = linear_tuned.tuned_calls()
        if not torch.equal(self._call(x, 0), expected):
            raise AssertionError(f"{tiling} changes the result of {self.n}x{self.k} at M={len(x)}")
        if linear_tuned.tuned_calls() == before and tiling != RULE:
            raise AssertionError("the kernel did not look the choice up")

    def _calls_per_sample(self, x: torch.Tensor) -> int:
        copies = len(self.packed)
        once = self._sample(x, RULE, copies)
        return copies * max(1, round(_SAMPLE_SECONDS / (once * copies)))

    def _sample(self, x: torch.Tensor, tiling: Tiling, count: int) -> float:
        """Seconds per call."""
        self._choose(tiling)
        self._call(x, -1)  # wakes the threads
        start = time.perf_counter()
        for i in range(count):
            self._call(x, i)
        return (time.perf_counter() - start) / count

    def _call(self, x: torch.Tensor, i: int) -> torch.Tensor:
        packed = self.packed[i % len(self.packed)]
        out: torch.Tensor = torch.ops.xyserve.linear.default(x, packed, None, self.n)
        return out

    def _choose(self, tiling: Tiling) -> None:
        if tiling == RULE:
            set_table([])
            return
        key: dict[str, Any] = {"n": self.n, "k": self.k, "dtype": self.kernel.dtype}
        key |= {"isa": self.kernel.isa, "threads": self.threads, "m_first": 1, "m_last": 1 << 30}
        set_table([TunedEntry(**key, tiling=tiling, measured_m=1, measured_us=1, rule_us=1)])


def run_task(job: Job, index: int) -> dict[str, Any]:
    """What the child says about a task."""
    task = job.tasks[index]
    torch.set_num_threads(task.threads)
    rounds = _SEARCH_ROUNDS if job.tilings is None else _CONFIRM_ROUNDS
    bench = Bench(task.n, task.k, job.dtype, task.threads, rounds)
    row_counts = task.row_counts()
    answer: dict[str, Any] = {"index": index, "isa": bench.kernel.isa}
    if job.tilings is None:
        found = search.search(task, lambda tiling: bench.ratios(tiling, row_counts)[0])
        return answer | {"found": dataclasses.asdict(found)}
    noise = search.noise_of(bench.ratios(RULE, row_counts)[0])
    ratios, times = bench.ratios(job.tilings[index], row_counts)
    return answer | {"ratios": ratios, "noise": noise, "m": row_counts, "rule_us": times}


def main(text: str) -> None:
    """Work through a job; whatever is printed on the way goes to standard error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    torch.manual_seed(0)
    job = Job.from_json(text)
    for index in range(len(job.tasks)):
        out.write(json.dumps(run_task(job, index)) + "\n")
        out.flush()


if __name__ == "__main__":
    main(sys.argv[1])
