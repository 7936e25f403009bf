"""Do both servers answer the same? One request at a time, float32, greedy.

Under load not even stock equals stock: the batch that a row stands in changes the order of its
sums. Alone and in float32 it must be equal, up to tokens whose log probabilities lie closer
together than rounding moves them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.serving.servers import VARIANTS, Server, Settings, Variant, started
from benchmarks.serving.workloads import Traffic

# Two orders of float32 sums move a log probability of this model by up to 1e-5; a wrong key or
# value moves it by more than this.
TIE_LOGPROB = 1e-3


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token at which two answers part.

    margin: by how much stock preferred its own token, in log probability.
    """

    request: int
    place: int
    margin: float

    @property
    def is_tie(self) -> bool:
        return self.margin < TIE_LOGPROB


@dataclass(frozen=True, slots=True)
class Agreement:
    """Answers of a server against stock's. hit_tokens: that its prefix cache served meanwhile."""

    variant: str
    num_requests: int
    num_tokens: int
    differences: tuple[Difference, ...]
    hit_tokens: float

    @property
    def num_wrong(self) -> int:
        """Answers that differ where stock was sure."""
        return sum(not difference.is_tie for difference in self.differences)

    def as_json(self) -> dict[str, Any]:
        equal = self.num_requests - len(self.differences)
        return {**asdict(self), "num_equal": equal, "num_wrong": self.num_wrong}


class WrongAnswer(RuntimeError):
    """A server answers other tokens than stock where stock is sure: its speed means nothing."""


def float32(settings: Settings) -> Settings:
    """The same servers for the comparison."""
    return replace(settings, dtype="float32", kv_cache_bytes=512 << 20)


def agreement(
    variant: Variant, settings: Settings, traffic: Traffic, num_tokens: int, folder: Path
) -> Agreement:
    """Start stock and a variant together and ask both the opening requests of a workload."""
    prompts = [session.turns[0].tokens for session in traffic.sessions]
    with contextlib.ExitStack() as stack:
        pair = [
            stack.enter_context(started(v, settings, folder / f"answers-{v.name}.log"))
            for v in (VARIANTS["stock"], variant)
        ]
        for server in pair:
            server.wait_ready()
        stock, ours = ([_answer(server, p, num_tokens) for p in prompts] for server in pair)
        differences = [
            Difference(number, place, _margin(pair[0], prompts[number], stock[number], place))
            for number in range(len(prompts))
            if (place := parting(stock[number], ours[number])) is not None
        ]
        hits = pair[1].counters()["hit_tokens"]
    total = len(prompts) * num_tokens
    return Agreement(variant.name, len(prompts), total, tuple(differences), hits)


def parting(one: Sequence[int], two: Sequence[int]) -> int | None:
    """The first place at which two answers differ, None if they are equal."""
    for place, (x, y) in enumerate(zip(one, two, strict=False)):
        if x != y:
            return place
    return None if len(one) == len(two) else min(len(one), len(two))


def _answer(server: Server, prompt: Sequence[int], num_tokens: int) -> list[int]:
    body = {"prompt": list(prompt), "max_tokens": num_tokens, "temperature": 0}
    answer = server.ask({**body, "ignore_eos": True, "return_token_ids": True})
    return list(answer["choices"][0]["token_ids"])


def _margin(server: Server, prompt: Sequence[int], answer: Sequence[int], place: int) -> float:
    """How much more likely a server finds its token at a place than the next best one."""
    body = {"prompt": [*prompt, *answer[:place]], "max_tokens": 1, "temperature": 0, "logprobs": 2}
    top = server.ask({**body, "ignore_eos": True})["choices"][0]["logprobs"]["top_logprobs"][0]
    best, second = sorted(top.values(), reverse=True)[:2]
    return float(best - second)
