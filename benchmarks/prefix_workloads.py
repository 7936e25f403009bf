"""Workloads of the prefix benchmark: prompts that share prefixes, as token ids.

Token ids are drawn at random with a fixed seed, skewed as words are: nothing repeats that is not
meant to be shared, and two draws part at their first token.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

EXCERPT = Path(__file__).parent / "data" / "mooncake_conversations.jsonl"
AGENT_PROMPT_LENS = (100, 150, 200, 300, 500, 800, 1200, 2000)
AGENT_SPREAD = 17
QUESTION_LEN = 30
TRACE_BLOCK_LEN = 512
FIRST_TOKEN, VOCAB_SIZE = 64, 49152  # special tokens of SmolLM2 lie below


@dataclass(frozen=True, slots=True)
class Turn:
    """A request. tokens: what it adds to the session so far. num_generated: exact, no early end."""

    tokens: tuple[int, ...]
    num_generated: int


@dataclass(frozen=True, slots=True)
class Session:
    """Requests of one user, each sent when the one before is answered: the prompt of a turn is all
    earlier turns with their answers, and its own tokens."""

    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Sessions in the order in which they begin; a closed loop keeps some number of them going."""

    name: str
    sessions: tuple[Session, ...]

    @property
    def num_requests(self) -> int:
        return sum(len(session.turns) for session in self.sessions)


class Draws(Protocol):
    """Where the token ids of a workload come from."""

    def draw(self, num_tokens: int) -> tuple[int, ...]:
        """Ids that no other draw shares on purpose."""

    def len_between(self, least: int, most: int) -> int:
        """A length, both ends included."""

    def shuffled(self, count: int) -> list[int]:
        """``0 .. count - 1`` in random order."""


class Words:
    """Random token ids: a draw of n is n ids, of which low ones are more frequent.

    The first id of a draw is never that of an earlier draw, so that two draws share nothing.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._firsts: set[int] = set()

    def draw(self, num_tokens: int) -> tuple[int, ...]:
        """``num_tokens`` ids.

        Raises:
            ValueError: fewer than one token, or more draws than there are first tokens.
        """
        if num_tokens < 1 or len(self._firsts) >= VOCAB_SIZE - FIRST_TOKEN:
            raise ValueError(f"cannot draw {num_tokens} tokens after {len(self._firsts)} draws")
        first = self._rng.randrange(FIRST_TOKEN, VOCAB_SIZE)
        while first in self._firsts:
            first = self._rng.randrange(FIRST_TOKEN, VOCAB_SIZE)
        self._firsts.add(first)
        return (first, *(self._word() for _ in range(num_tokens - 1)))

    def len_between(self, least: int, most: int) -> int:
        return self._rng.randint(least, most)

    def shuffled(self, count: int) -> list[int]:
        return self._rng.sample(range(count), count)

    def _word(self) -> int:
        # Density 1 / (2 * sqrt(x)): frequent words and a long tail.
        return FIRST_TOKEN + int((VOCAB_SIZE - FIRST_TOKEN) * self._rng.random() ** 2)


def agent(
    num_rounds: int,
    num_generated: int = 64,
    seed: int = 1,
    *,
    words: Draws | None = None,
    prompt_lens: Sequence[int] = AGENT_PROMPT_LENS,
) -> Workload:
    """Each round asks each of eight agents one question; an agent is a system prompt with tools."""
    words = words or Words(seed)
    prompts = [
        words.draw(length + words.len_between(-AGENT_SPREAD, AGENT_SPREAD))
        for length in prompt_lens
    ]
    sessions = [
        Session((Turn((*prompts[i], *words.draw(QUESTION_LEN)), num_generated),))
        for _ in range(num_rounds)
        for i in words.shuffled(len(prompts))
    ]
    return Workload("agent", tuple(sessions))


def multi_turn(
    num_conversations: int,
    num_turns: int = 6,
    num_generated: int = 48,
    seed: int = 2,
    *,
    words: Draws | None = None,
) -> Workload:
    """Conversations behind one system prompt of 75 tokens; a turn adds a question of 20 to 90."""
    words = words or Words(seed)
    system = words.draw(75)
    sessions = []
    for _ in range(num_conversations):
        questions = [words.draw(words.len_between(20, 90)) for _ in range(num_turns)]
        questions[0] = (*system, *questions[0])
        sessions.append(Session(tuple(Turn(q, num_generated) for q in questions)))
    return Workload("multi-turn", tuple(sessions))


def few_shot(num_questions: int, num_generated: int = 16, seed: int = 3) -> Workload:
    """Four tasks with 5 to 20 examples of 45 to 85 tokens; questions of 25 to 60 tokens."""
    words = Words(seed)
    tasks = [
        tuple(token for _ in range(shots) for token in words.draw(words.len_between(45, 85)))
        for shots in (5, 8, 12, 20)
    ]
    sessions = [
        Session((Turn((*tasks[i], *words.draw(words.len_between(25, 60))), num_generated),))
        for _ in range(num_questions)
        for i in words.shuffled(len(tasks))
    ]
    return Workload("few-shot", tuple(sessions))


def unique(num_requests: int, num_generated: int = 32, seed: int = 4) -> Workload:
    """Nothing is shared: prompts of 100 to 400 tokens. What token-level matching costs."""
    words = Words(seed)
    sessions = [
        Session((Turn(words.draw(words.len_between(100, 400)), num_generated),))
        for _ in range(num_requests)
    ]
    return Workload("unique", tuple(sessions))


def mooncake(
    num_conversations: int,
    path: Path = EXCERPT,
    tokens_per_id: int = 32,
    max_prompt_len: int = 4000,
    seed: int = 5,
    *,
    words: Draws | None = None,
) -> Workload:
    """Requests of a trace in its order, each when there is room, at ``tokens_per_id / 512`` scale.

    A hash id becomes ``tokens_per_id`` tokens, the same for the same id, so the prefix structure
    is the trace's: prompts that share k ids share exactly ``k * tokens_per_id`` tokens (or all of
    the shorter one). What a prompt repeats of an earlier answer, the trace does not tell.

    Args:
        num_conversations: the first so many are taken, whole; their rows share the second id.
        path: JSON lines with ``input_length``, ``output_length`` and ``hash_ids``.
        tokens_per_id: scale.
        max_prompt_len: longer prompts are cut, to fit the model.
        seed: of the token ids.
        words: other token ids than random ones.
    """
    words = words or Words(seed)
    content: dict[int, tuple[int, ...]] = {}
    sessions = []
    for row in _first_conversations(_rows(path), num_conversations):
        prompt: list[int] = []
        for hash_id in row["hash_ids"]:
            if hash_id not in content:
                content[hash_id] = words.draw(tokens_per_id)
            prompt.extend(content[hash_id])
        scale = tokens_per_id / TRACE_BLOCK_LEN
        length = min(max(2, round(row["input_length"] * scale)), max_prompt_len, len(prompt))
        num_generated = max(1, round(row["output_length"] * scale))
        sessions.append(Session((Turn(tuple(prompt[:length]), num_generated),)))
    return Workload("mooncake", tuple(sessions))


def _rows(path: Path) -> Iterator[dict]:
    with path.open() as stream:
        for number, line in enumerate(stream, 1):
            row = json.loads(line)
            missing = {"input_length", "output_length", "hash_ids"} - set(row)
            if missing or not row["hash_ids"]:
                raise ValueError(f"{path}:{number}: no Mooncake row; {missing=}, got {line[:80]!r}")
            yield row


def _first_conversations(rows: Iterator[dict], count: int) -> list[dict]:
    """All rows of the first ``count`` conversations, in their order."""
    known: set[tuple[int, ...]] = set()
    taken = []
    for row in rows:
        key = tuple(row["hash_ids"][:2])
        if key not in known and len(known) >= count:
            continue
        known.add(key)
        taken.append(row)
    return taken


def shortened(
    workload: Workload, num_sessions: int, num_turns: int, num_generated: int
) -> Workload:
    """The first sessions and turns, with fewer generated tokens."""
    sessions = [
        Session(
            tuple(
                Turn(turn.tokens, min(turn.num_generated, num_generated))
                for turn in islice(session.turns, num_turns)
            )
        )
        for session in workload.sessions[:num_sessions]
    ]
    return Workload(workload.name, tuple(sessions))


NAMES: Sequence[str] = ("agent", "multi-turn", "few-shot", "mooncake", "unique")


def make(name: str, quick: bool, trace: Path = EXCERPT) -> Workload:
    """A workload by name, in the size of the full or the quick run."""
    if name == "agent":
        return agent(num_rounds=2 if quick else 5)
    if name == "multi-turn":
        return multi_turn(8, num_turns=3, num_generated=16) if quick else multi_turn(8)
    if name == "few-shot":
        return few_shot(num_questions=3 if quick else 8)
    if name == "mooncake":
        return mooncake(6 if quick else 16, trace)
    if name == "unique":
        return unique(8 if quick else 24)
    raise ValueError(f"unknown workload {name!r}; known: {', '.join(NAMES)}")
