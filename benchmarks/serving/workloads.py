"""Workloads of the serving benchmark: what is asked, when, and how many tokens are answered.

The lengths of *coding* and *conversation* and their arrival times are those of Azure's traces, the
prefix structure of *mooncake* that of its trace's hash ids; all are scaled to a small model on few
cores (`SCALES`). *agent* and *multi-turn* share prefixes that end anywhere in a block.
*prefill-heavy* and *decode-heavy* have the lengths of vLLM's nightly Sonnet benchmarks, *mixed*
deals from all others in turn. Token ids come from real text (`text.Text`).
"""

from __future__ import annotations

import csv
import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, pairwise, zip_longest
from pathlib import Path

from benchmarks import plan_traces, prefix_workloads
from benchmarks.prefix_workloads import Session, Turn
from benchmarks.serving.text import Kind, Text

NAMES = (
    "coding",
    "conversation",
    "agent",
    "multi-turn",
    "mooncake",
    "prefill-heavy",
    "decode-heavy",
    "mixed",
)
# Tokens of ours per token of the source. On two cores a prompt of the chat trace at full length
# takes a second and its answer another two, so that a cell would hold a handful of requests.
SCALES = {
    "coding": 1 / 4,
    "conversation": 1 / 4,
    "agent": 1 / 2,
    "multi-turn": 2 / 3,
    "mooncake": 1 / 16,
    "prefill-heavy": 1.0,
    "decode-heavy": 1 / 2,
}
SONNET_PREFIX, SONNET_PROMPT = 200, 462
SONNET_ANSWERS = {"prefill-heavy": 16, "decode-heavy": 256}
_ARRIVAL_COLUMN = "TIMESTAMP"


@dataclass(frozen=True, slots=True)
class Traces:
    """Files of the traces: excerpts that come with the benchmarks unless others are given."""

    coding: Path = plan_traces.EXCERPTS["code"]
    conversation: Path = plan_traces.EXCERPTS["conv"]
    mooncake: Path = prefix_workloads.EXCERPT


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of a workload.

    sessions: in the order of their arrival; the requests of one follow one another, each when the
    one before is answered. arrivals: when each session comes at a mean rate of one session per
    second, from 0. scale: tokens per token of the source.
    """

    name: str
    sessions: tuple[Session, ...]
    arrivals: tuple[float, ...]
    scale: float

    def __post_init__(self) -> None:
        if len(self.sessions) != len(self.arrivals) or not self.sessions:
            raise ValueError(
                f"{self.name}: as many arrivals as sessions, at least one; got "
                f"{len(self.arrivals)} and {len(self.sessions)}"
            )

    @property
    def num_requests(self) -> int:
        return sum(len(session.turns) for session in self.sessions)

    @property
    def num_generated(self) -> int:
        """Tokens that are answered."""
        return sum(turn.num_generated for session in self.sessions for turn in session.turns)

    @property
    def num_new_tokens(self) -> int:
        """Prompt tokens that an unbounded token-level cache would leave to compute."""
        opening = sorted(session.turns[0].tokens for session in self.sessions)
        shared = sum(_common(one, two) for one, two in pairwise(opening))
        later = sum(len(t.tokens) for session in self.sessions for t in session.turns[1:])
        return sum(map(len, opening)) - shared + later

    def digest(self) -> str:
        """A hash of all that is asked and when; equal digests mean the same requests."""
        sha = hashlib.sha256()
        for session, arrival in zip(self.sessions, self.arrivals, strict=True):
            turns = [(turn.tokens, turn.num_generated) for turn in session.turns]
            sha.update(repr((round(arrival, 6), turns)).encode())
        return sha.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes workloads for one model.

    tokenizer_file: the model's. max_len: longest prompt with its answer. shrink: lengths are
    multiplied by it on top of `SCALES` (the quick run).
    """

    tokenizer_file: Path
    max_len: int
    shrink: float = 1.0
    traces: Traces = field(default_factory=Traces)

    def for_users(self, name: str, num_requests: int, num_users: int) -> Traffic:
        """A workload with a session for each of ``num_users`` at least."""
        traffic = self.make(name, num_requests)
        while len(traffic.sessions) < num_users:
            num_requests += num_users - len(traffic.sessions)
            traffic = self.make(name, num_requests)
        return traffic

    def make(self, name: str, num_requests: int, seed: int = 0) -> Traffic:
        """A workload of at least ``num_requests`` requests (whole sessions and rounds).

        Raises:
            ValueError: unknown name, or more requests than trace or text hold.
        """
        makers: dict[str, Callable[[int, int], Traffic]] = {
            "coding": self._coding,
            "conversation": self._conversation,
            "agent": self._agent,
            "multi-turn": self._multi_turn,
            "mooncake": self._mooncake,
            "prefill-heavy": lambda n, s: self._sonnet("prefill-heavy", n, s),
            "decode-heavy": lambda n, s: self._sonnet("decode-heavy", n, s),
            "mixed": self._mixed,
        }
        if name not in makers or num_requests < 1:
            raise ValueError(f"{num_requests} requests of {name!r}; known: {', '.join(NAMES)}")
        return makers[name](num_requests, seed)

    def _coding(self, num_requests: int, seed: int) -> Traffic:
        return self._azure("coding", self.traces.coding, "code", num_requests, 10 + seed)

    def _conversation(self, num_requests: int, seed: int) -> Traffic:
        path = self.traces.conversation
        return self._azure("conversation", path, "prose", num_requests, 20 + seed)

    def _azure(self, name: str, path: Path, kind: Kind, num_requests: int, seed: int) -> Traffic:
        lens, times = plan_traces.load(path), arrivals_of(path)
        if num_requests > len(lens):
            raise ValueError(f"{path} has {len(lens)} requests, asked for {num_requests}")
        text, scale = self._text(kind, seed), SCALES[name] * self.shrink
        sessions = []
        for prompt_len, num_answered in lens[:num_requests]:
            num_generated = max(1, round(num_answered * scale))
            length = min(max(2, round(prompt_len * scale)), self.max_len - num_generated)
            sessions.append(Session((Turn(text.draw(length), num_generated),)))
        return Traffic(name, tuple(sessions), per_second(times[:num_requests]), scale)

    def _agent(self, num_requests: int, seed: int) -> Traffic:
        scale = SCALES["agent"] * self.shrink
        lens = [
            max(prefix_workloads.AGENT_SPREAD + 1, round(n * scale))
            for n in prefix_workloads.AGENT_PROMPT_LENS
        ]
        workload = prefix_workloads.agent(
            -(-num_requests // len(lens)),
            num_generated=max(1, round(64 * scale)),
            words=self._text("prose", 30 + seed),
            prompt_lens=lens,
        )
        return self._poisson("agent", workload.sessions, 30 + seed)

    def _multi_turn(self, num_requests: int, seed: int) -> Traffic:
        scale = SCALES["multi-turn"] * self.shrink
        num_turns = max(2, round(6 * scale))
        workload = prefix_workloads.multi_turn(
            -(-num_requests // num_turns),
            num_turns,
            num_generated=max(1, round(48 * scale)),
            words=self._text("prose", 40 + seed),
        )
        return self._poisson("multi-turn", workload.sessions, 40 + seed)

    def _mooncake(self, num_requests: int, seed: int) -> Traffic:
        scale = SCALES["mooncake"] * self.shrink
        # Whole conversations, as few as do: the first rows of the trace repeat hardly anything,
        # since a follow-up comes minutes after its conversation's first request.
        for num_conversations in range(max(1, num_requests // 3), num_requests + 1):
            workload = prefix_workloads.mooncake(
                num_conversations,
                self.traces.mooncake,
                tokens_per_id=max(2, round(prefix_workloads.TRACE_BLOCK_LEN * scale)),
                max_prompt_len=self.max_len // 2,
                words=self._text("prose", 50 + seed),
            )
            if workload.num_requests >= num_requests:
                return self._poisson("mooncake", workload.sessions, 50 + seed)
        raise ValueError(f"{self.traces.mooncake} has fewer than {num_requests} requests")

    def _sonnet(self, name: str, num_requests: int, seed: int) -> Traffic:
        text, scale = self._text("prose", 60 + seed), SCALES[name] * self.shrink
        prefix = text.draw(round(SONNET_PREFIX * scale))
        own_len = round((SONNET_PROMPT - SONNET_PREFIX) * scale)
        num_generated = max(1, round(SONNET_ANSWERS[name] * scale))
        sessions = [
            Session((Turn((*prefix, *text.draw(own_len)), num_generated),))
            for _ in range(num_requests)
        ]
        return self._poisson(name, tuple(sessions), 60 + seed)

    def _mixed(self, num_requests: int, seed: int) -> Traffic:
        others = [name for name in NAMES if name != "mixed"]
        each = -(-num_requests // len(others))
        # Another seed than alone: else the parts would be prompts of the other workloads again.
        dealt = zip_longest(*(self.make(name, each, seed + 100).sessions for name in others))
        sessions, count = [], 0
        for session in filter(None, chain.from_iterable(dealt)):
            if count >= num_requests:
                break
            sessions.append(session)
            count += len(session.turns)
        return self._poisson("mixed", tuple(sessions), 70 + seed)

    def _poisson(self, name: str, sessions: Sequence[Session], seed: int) -> Traffic:
        rng = random.Random(seed)
        times, now = [], 0.0
        for _ in sessions:
            times.append(now)
            now += rng.expovariate(1.0)
        scale = SCALES.get(name, 1.0) * self.shrink
        return Traffic(name, tuple(sessions), per_second(times), scale)

    def _text(self, kind: Kind, seed: int) -> Text:
        return Text(self.tokenizer_file, kind, seed)


def arrivals_of(path: Path) -> list[float]:
    """Seconds from the first request of an Azure trace to each.

    Raises:
        SystemExit: the file has no arrival times.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if _ARRIVAL_COLUMN not in (reader.fieldnames or ()):
            raise SystemExit(f"{path} must have the column {_ARRIVAL_COLUMN}: {reader.fieldnames}")
        times = [datetime.fromisoformat(row[_ARRIVAL_COLUMN]).timestamp() for row in reader]
    return [time - times[0] for time in times]


def per_second(times: Sequence[float]) -> tuple[float, ...]:
    """Arrival times with the same pattern, stretched to one arrival per second on average."""
    span = times[-1] - times[0]
    if len(times) < 2 or span <= 0:
        return tuple(float(i) for i in range(len(times)))
    factor = (len(times) - 1) / span
    return tuple((time - times[0]) * factor for time in times)


def _common(one: Sequence[int], two: Sequence[int]) -> int:
    for place, (x, y) in enumerate(zip(one, two, strict=False)):
        if x != y:
            return place
    return min(len(one), len(two))
