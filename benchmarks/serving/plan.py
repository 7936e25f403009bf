"""Which cells a run has, how large they are, and how long it will take.

Sizes follow from how fast each server computes prompts and generates (`Speed`, measured first), so
that the whole run fits into its minutes on any machine: cells get as many requests as the time
allows, and at least `MIN_REQUESTS`; if even that is too long, all lengths are scaled down
(`LENGTHS`), and then the last cells of the list are left out. The report says both. The quick run
knows no speeds: it goes on to the next cell of its list for as long as there is time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.serving.client import Load
from benchmarks.serving.workloads import Traffic

HEADLINE_USERS = 8
MIN_REQUESTS = 16
MAX_REQUESTS = 120
# The most telling first: a light load takes as long as a machine's stock server is slow.
RATE_FRACTIONS = (1.0, 0.5, 0.75, 0.25)
# Of all prompts and answers, on top of the workloads' own scales; the longest that fits is taken.
LENGTHS = (1.0, 1 / 2, 1 / 3, 1 / 5)
RATE_WORKLOADS = ("conversation", "coding")
USER_WORKLOADS = ("mixed", "conversation")
OTHER_USERS = (1, 32)
_SAMPLE_REQUESTS = 40


@dataclass(frozen=True, slots=True)
class Speed:
    """Of a server, in tokens per second: of prompts, and generated for eight users together."""

    prefill: float
    decode: float

    def seconds(self, traffic: Traffic, load: Load) -> float:
        """About how long a workload takes.

        Generation gains less than proportionally from more users: one alone gets about a fifth of
        what eight get together (measured on two cores), 32 about 1.5 times that.
        """
        if load.sessions_per_s:
            asked = len(traffic.sessions) / load.sessions_per_s
            return max(asked, self.seconds(traffic, Load(num_users=HEADLINE_USERS)))
        gain = {1: 0.2, 32: 1.5}.get(load.num_users or 0, 1.0)
        return traffic.num_new_tokens / self.prefill + traffic.num_generated / (self.decode * gain)


@dataclass(frozen=True, slots=True)
class Cell:
    """A workload of ``num_requests`` or a few more under a load."""

    workload: str
    load: Load
    num_requests: int

    @property
    def name(self) -> str:
        return f"{self.workload} {self.load.name}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Cell:
        """Back from `as_json`."""
        return Cell(value["workload"], Load(**value["load"]), value["num_requests"])


@dataclass(frozen=True, slots=True)
class Budget:
    """A plan.

    seconds: about how long its cells take in all; dropped: names of cells left out; lengths: that
    all prompts and answers are multiplied by.
    """

    cells: tuple[Cell, ...]
    ablation_cells: tuple[Cell, ...]
    seconds_per_cell: float
    seconds: float
    dropped: tuple[str, ...]
    lengths: float = 1.0


def headline(workload: str, num_requests: int) -> Cell:
    """The cell whose ratios the summary shows."""
    return Cell(workload, Load(num_users=HEADLINE_USERS), num_requests)


def quick(workloads: Sequence[str]) -> tuple[Cell, ...]:
    """The headline cells in the least size."""
    return tuple(headline(name, MIN_REQUESTS) for name in _in_order(workloads))


def fitting(whole: Callable[[float], Budget]) -> Budget:
    """The plan with the longest of `LENGTHS` with which no cell is left out.

    Args:
        whole: the plan for lengths that are multiplied by its argument.
    """
    for lengths in LENGTHS:
        found = replace(whole(lengths), lengths=lengths)
        if not found.dropped:
            break
    return found


def full(
    workloads: Sequence[str],
    make: Callable[[str, int], Traffic],
    speeds: Mapping[str, Speed],
    ablation: int,
    repeats: int,
    seconds: float,
) -> Budget:
    """The cells of a full run.

    Args:
        workloads: names.
        make: a workload of so many requests.
        speeds: of the servers that run all cells, stock's under "stock".
        ablation: how many further servers run the ablation's cells.
        repeats: of every server.
        seconds: for all cells of all servers in all repeats.
    """
    per_request = _costs(workloads, make)
    shapes = _shapes(workloads, per_request, speeds["stock"])
    # Ablation takes parts from the slowest of ours.
    slowest = min(speeds.values(), key=lambda speed: speed.prefill)

    def sized(seconds_per_cell: float, shapes: list[tuple[str, Load]]) -> Budget:
        cells = [
            Cell(name, load, _size(per_request[name], load, speeds["stock"], seconds_per_cell))
            for name, load in shapes
        ]
        extra = [c for c in cells if c.workload == "mixed" and c.load.num_users == HEADLINE_USERS]
        total = sum(
            _seconds(per_request[c.workload], c, speed) for c in cells for speed in speeds.values()
        )
        total += ablation * sum(_seconds(per_request[c.workload], c, slowest) for c in extra)
        return Budget(tuple(cells), tuple(extra), seconds_per_cell, total * repeats, ())

    left, dropped = list(shapes), []
    while len(left) > 1 and sized(0.0, left).seconds > seconds:
        dropped.append(left.pop())
    low, high = 0.0, 60.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if sized(middle, left).seconds <= seconds else (low, middle)
    found = sized(low, left)
    names = tuple(f"{name} {load.name}" for name, load in dropped)
    return Budget(found.cells, found.ablation_cells, low, found.seconds, names)


def _in_order(workloads: Sequence[str]) -> list[str]:
    """The one that holds something of all others first: the last ones may be left out."""
    return sorted(workloads, key=lambda name: name != "mixed")


@dataclass(frozen=True, slots=True)
class _PerRequest:
    """Means of a workload: prompt tokens to compute, tokens to generate, requests per session."""

    new: float
    generated: float
    per_session: float


def _costs(workloads: Sequence[str], make: Callable[[str, int], Traffic]) -> dict[str, _PerRequest]:
    found = {}
    for name in workloads:
        traffic = make(name, _SAMPLE_REQUESTS)
        count = traffic.num_requests
        found[name] = _PerRequest(
            traffic.num_new_tokens / count,
            traffic.num_generated / count,
            count / len(traffic.sessions),
        )
    return found


def _shapes(
    workloads: Sequence[str], costs: Mapping[str, _PerRequest], stock: Speed
) -> list[tuple[str, Load]]:
    """Workloads and loads, the most important first."""
    shapes = [(name, Load(num_users=HEADLINE_USERS)) for name in _in_order(workloads)]
    driven = [name for name in USER_WORKLOADS if name in workloads]
    users = [(name, Load(num_users=number)) for name in driven for number in OTHER_USERS]
    shapes += users[: len(OTHER_USERS)]
    for name in RATE_WORKLOADS:
        for fraction in RATE_FRACTIONS:
            if name in workloads:
                cost = costs[name]
                seconds = cost.new / stock.prefill + cost.generated / stock.decode
                rate = fraction / (seconds * cost.per_session)
                shapes.append((name, Load(sessions_per_s=round(rate, 3))))
    return shapes + users[len(OTHER_USERS) :]


def _seconds(cost: _PerRequest, cell: Cell, speed: Speed) -> float:
    """As `Speed.seconds`, from means."""
    count = max(cell.num_requests, (cell.load.num_users or 1) * cost.per_session)
    gain = {1: 0.2, 32: 1.5}.get(cell.load.num_users or 0, 1.0)
    busy = count * (cost.new / speed.prefill + cost.generated / (speed.decode * gain))
    rate = cell.load.sessions_per_s
    return max(busy, count / cost.per_session / rate) if rate else busy


def _size(cost: _PerRequest, load: Load, speed: Speed, seconds: float) -> int:
    """Requests that take a server about ``seconds``, within bounds."""
    one = _seconds(cost, Cell("", load, 1), speed)
    least = max(MIN_REQUESTS, (load.num_users or 0) + HEADLINE_USERS)
    least = MIN_REQUESTS // 2 if load.num_users == 1 else least
    return max(least, min(MAX_REQUESTS, round(seconds / one)))
