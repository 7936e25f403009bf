"""Prefix-cache cases for a real engine: what is sent, and how many tokens must be cached.

Most lengths lie at the edges of blocks of 32 and of 128 tokens, so that both block sizes get the
same prompts and one engine without prefix caching answers for all.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

NUM_TOKENS = 4
BUDGET = 640

Event = dict[str, Any]
Op = dict[str, Any]


@dataclass(slots=True)
class Case:
    """Operations of `tests.engine.prefix_steps.play`, and what is known beforehand.

    Attributes:
        cached: number of cached tokens by request; requests that are not named may have any.
        unchecked: requests whose answers nobody compares.
    """

    name: str
    ops: list[Op] = field(default_factory=lambda: [{"reset": True}])
    cached: dict[str, int] = field(default_factory=dict)
    unchecked: set[str] = field(default_factory=set)

    def send(self, *events: Event) -> None:
        """Send requests (of `ask`) at once, unless they say at which step, and await them."""
        self.ops.append({"drive": list(events)})

    def op(self, kind: str, argument: Any = True) -> None:
        """Another operation."""
        self.ops.append({kind: argument})

    def ask(self, name: str, tokens: list[int], cached: int | None = None, **more: Any) -> Event:
        """A request, and its number of cached tokens if that is certain."""
        assert name not in self.cached
        if cached is not None:
            self.cached[name] = cached
        return {"name": name, "add": tokens, **GREEDY, **more}

    def requests(self) -> list[Event]:
        """All requests whose prompts are known beforehand."""
        return [event for event in self._added() if "after" not in event]

    def chain(self) -> Case:
        """The requests that follow another one's answer, and those that they follow, in turn."""
        added = {event["name"]: event for event in self._added()}
        names = {event["after"] for event in added.values() if "after" in event}
        names |= {name for name, event in added.items() if "after" in event}
        drives: list[Op] = [{"drive": [event]} for name, event in added.items() if name in names]
        return Case(f"{self.name}-chain", drives)

    def _added(self) -> list[Event]:
        events = [event for op in self.ops for event in op.get("drive", ())]
        return [event for event in events if "add" in event]


GREEDY: dict[str, Any] = {
    "temperature": 0.0,
    "max_tokens": NUM_TOKENS,
    "ignore_eos": True,
    "logprobs": 2,
}


def prompt(seed: int, length: int) -> list[int]:
    """Prompts of no pattern; two seeds differ in their first token."""
    return [100 + (31 * i + 7 * seed + 17 * i * i) % 40_000 for i in range(length)]


def other(token: int) -> int:
    """Another token."""
    return 100 + (token - 99) % 40_000


def essence(event: Event) -> dict[str, Any]:
    """What decides the answer of a request: its prompt and its sampling parameters."""
    return {k: v for k, v in event.items() if k not in ("name", "at", "salt")}


def key(event: Event) -> str:
    """The same as a text."""
    return json.dumps(essence(event), sort_keys=True)


def cases(block_size: int) -> list[Case]:
    """All of them; each starts with an empty cache."""
    return [
        off_the_grid(),
        every_length(),
        repeats(),
        forks(),
        turns(),
        beside_its_owner(),
        shared_beginnings(),
        same_step(block_size),
        chunks(),
        samples(),
        preemption(block_size),
        hot_prefix(block_size),
        reset_while_running(),
        salts(),
        prompt_logprobs(),
    ]


def off_the_grid() -> Case:
    case = Case("off-the-grid")
    owners = {length: prompt(20 + length, length) for length in (35, 131)}
    case.send(*[case.ask(f"owner-{n}", owner, 0) for n, owner in owners.items()])
    tails = {n: [*owner[:-1], other(owner[-1]), 500] for n, owner in owners.items()}
    case.send(*[case.ask(f"tail-{n}", tail, n - 1) for n, tail in tails.items()])
    return case


def every_length() -> Case:
    """Common prefixes of many lengths, all side by side: only the owner is a source."""
    case = Case("every-length")
    owner = prompt(2, 161)
    case.send(case.ask("owner", owner, 0))
    lengths = (0, 1, 31, 32, 33, 100, 127, 128, 129, 160)
    forks = [[*owner[:n], other(owner[n]), 501 + n, 500, 500, 500] for n in lengths]
    asked = [case.ask(f"cut-{n}", fork, n) for n, fork in zip(lengths, forks, strict=True)]
    case.send(*asked, case.ask("cut-none", [*owner, 40_200, 500, 500], 161))
    return case


def repeats() -> Case:
    case = Case("repeats")
    prompts = {n: prompt(300 + n, n) for n in (2, 31, 32, 33, 127, 128, 129, 257)}
    case.send(*[case.ask(f"first-{n}", tokens, 0) for n, tokens in prompts.items()])
    case.send(*[case.ask(f"again-{n}", tokens, n - 1) for n, tokens in prompts.items()])
    return case


def forks() -> Case:
    """Three ways from one partly filled block, which has to stay as it was."""
    case = Case("forks")
    owners = {length: prompt(5 + length, length) for length in (45, 141)}
    case.send(*[case.ask(f"owner-{n}", owner, 0) for n, owner in owners.items()])
    ways = []
    for n, owner in owners.items():
        left, right = [*owner[: n - 4], 800], [*owner[: n - 4], 801]
        ways += [case.ask(f"left-{n}", left, n - 4), case.ask(f"right-{n}", right, n - 4)]
        ways.append(case.ask(f"same-{n}", owner, n - 1))
    case.send(*ways)
    case.send(*[case.ask(f"again-{n}", owner, n - 1) for n, owner in owners.items()])
    return case


def turns() -> Case:
    """Each turn's prompt is the last one, its answer and 13 tokens more; 50 to 135 tokens."""
    case = Case("turns")
    total, length = 50, NUM_TOKENS
    case.send(case.ask("turn-0", prompt(6, total), 0))
    for turn in range(1, 6):
        more = [300 + 20 * turn + i for i in range(13)]
        event = case.ask(f"turn-{turn}", more, total + length - 1)
        case.send({**event, "after": f"turn-{turn - 1}"})
        total += length + len(more)
    return case


def beside_its_owner() -> Case:
    """An exact repeat and a fork while the owner still generates."""
    case = Case("beside-its-owner")
    owner = prompt(12, 133)
    case.send(
        case.ask("owner", owner, 0, max_tokens=9),
        case.ask("again", owner, 132, at=4, max_tokens=9),
        case.ask("fork", [*owner[:130], other(owner[130]), 500], 130, at=5),
    )
    return case


def shared_beginnings() -> Case:
    """Three prompts one after the other that share so many tokens: 2 * shared are cached."""
    case = Case("shared-beginnings")
    case.op("state")
    for i in range(3):
        asked = []
        for shared in (1, 33, 131):
            tail = [40_110 + i, *prompt(700 + 5 * shared + i, 7)]
            tokens = prompt(70 + shared, shared) + tail
            asked.append(case.ask(f"{shared}-{i}", tokens, shared * (i > 0)))
        case.send(*asked)
    case.op("state")
    return case


def same_step(block_size: int) -> Case:
    """Equal and nearly equal prompts in one step: only whole blocks of each other are hit."""
    case = Case("same-step")

    def whole(length: int) -> int:
        return length // block_size * block_size

    twins = {n: near_equal(n)[0][0] for n in (45, 141)}
    firsts = [case.ask(f"one-{n}", twin, 0) for n, twin in twins.items()]
    case.send(*firsts, *[case.ask(f"two-{n}", twin, whole(n - 1)) for n, twin in twins.items()])
    for order in range(3):
        case.op("reset")
        asked = []
        for n in twins:
            prompts = near_equal(n)[order]
            for i, tokens in enumerate(prompts):
                cached = max([whole(common(tokens, one)) for one in prompts[:i]], default=0)
                asked.append(case.ask(f"near-{n}-{order}-{i}", tokens, cached))
        case.send(*asked)
    return case


def near_equal(length: int) -> list[list[list[int]]]:
    """Three prompts that part at their last token and inside a block, in three orders."""
    base, cut = prompt(9 + length, length), 100 if length > 100 else 20
    near, far = [*base[:-1], 999], [*base[:cut], 998, *prompt(900, length - cut - 1)]
    return [[base, near, far], [far, near, base], [near, base, far]]


def common(one: list[int], other: list[int]) -> int:
    """Length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def chunks() -> Case:
    """The same under a budget of 64 tokens per step."""
    case = Case("chunks")
    case.op("budget", 64)
    for n in (45, 141):
        case.send(*[case.ask(f"{n}-{i}", tokens) for i, tokens in enumerate(near_equal(n)[0])])
    case.op("budget", None)
    return case


def samples() -> Case:
    """Four seeded samples, cold and behind a hit."""
    case = Case("samples")
    sampling = {"n": 4, "temperature": 0.8, "seed": 7, "max_tokens": 8}
    case.send(case.ask("cold", prompt(11, 45), **sampling))
    case.send(case.ask("warm", prompt(11, 45), 44, **sampling))
    return case


def preemption(block_size: int) -> Case:
    """Two requests that grow by a block each where the pool has one more."""
    case = Case("preemption")
    length = 126
    case.op("hold", 2 * -(-length // block_size) + 1)
    case.op("state")
    asked = [case.ask(f"request-{i}", prompt(500 + i, length), 0, max_tokens=8) for i in (0, 1)]
    case.send(*asked)
    case.op("state")
    case.op("release")
    return case


def hot_prefix(block_size: int) -> Case:
    """One-off prompts in a small pool do not push a hot prefix out; a reset does."""
    case = Case("hot-prefix")
    hot = prompt(15, 128)
    case.op("hold", len(hot) // block_size + 5)
    case.send(case.ask("hot", hot, 0))
    for i in range(9):
        if i % 3 == 2:
            case.send(case.ask(f"hot-{i}", [*hot, 40_300 + i], len(hot)))
        else:
            once = prompt(1500 + i, block_size + 1)
            case.unchecked.add(f"once-{i}")
            case.send(case.ask(f"once-{i}", once, 0, max_tokens=1))
    case.op("release")
    case.op("reset")
    case.send(case.ask("after-reset", [*hot, 40_302], 0))
    return case


def reset_while_running() -> Case:
    """It is refused, and takes nothing from what runs or comes after."""
    case = Case("reset-while-running")
    tokens = prompt(17, 70)
    case.send(case.ask("running", tokens, 0), {"reset": True, "at": 2})
    case.send(case.ask("again", tokens, 69))
    return case


def salts() -> Case:
    """A salt holds for the whole path, wherever two prompts part."""
    case = Case("salts")
    length = 140
    a = prompt(16, length)
    end = [*a[:-6], *prompt(2000, 6)]
    start = [*a[:3], *prompt(2001, length - 3)]
    case.send(case.ask("a", a, 0, salt="a"))
    case.send(
        case.ask("a-again", a, length - 1, salt="a"),
        case.ask("b", a, 0, salt="b"),
        case.ask("none", a, 0),
        case.ask("c", end, 0, salt="c"),
    )
    case.send(
        case.ask("b-again", a, length - 1, salt="b"),
        case.ask("none-again", a, length - 1),
        case.ask("a-end", end, length - 6, salt="a"),
        case.ask("c-start", start, 3, salt="c"),
        case.ask("d-start", start, 0, salt="d"),
    )
    return case


def prompt_logprobs() -> Case:
    """They skip the cache and fill it, beside overlapping prompts."""
    case = Case("prompt-logprobs")
    base = prompt(18, 131)
    case.send(case.ask("plain", base[:33], 0))
    for name, length in (("same", 33), ("long", 131), ("short", 20), ("long-again", 131)):
        case.send(case.ask(name, base[:length], 0, prompt_logprobs=5, max_tokens=2))
    case.send(case.ask("plain-again", base[:33], 32), case.ask("plain-long", base[:130], 129))
    return case


def traffic(seed: int, num_blocks: int, num_requests: int = 60) -> Case:
    """Requests from a small tree of prefixes, some aborted, in a pool that is far too small."""
    rng = random.Random(seed)
    case = Case(f"traffic-{seed}")
    stems = []
    for root in range(3):
        trunk = prompt(5000 + root, rng.randrange(50, 110))
        for _ in range(3):
            cut = rng.randrange(20, len(trunk) + 1)
            stems.append(trunk[:cut] + [rng.randrange(100, 40_000) for _ in range(30)])
    events: list[Event] = []
    asked: list[tuple[list[int], int]] = []
    step = 0
    for i in range(num_requests):
        stem = rng.choice(stems)
        cut = rng.choice([len(stem), rng.randrange(1, len(stem) + 1)])
        tail = [rng.randrange(100, 40_000) for _ in range(rng.randrange(0, 9))]
        asked.append((stem[:cut] + tail, rng.choice([2, 4, 12])))
        if i > 5 and rng.random() < 0.4:
            asked[-1] = rng.choice(asked)
        tokens, max_tokens = asked[-1]
        events.append(case.ask(f"r{i}", tokens, max_tokens=max_tokens, at=step))
        if rng.random() < 0.12:
            events.append({"abort": f"r{i}", "at": step + rng.randrange(1, 6)})
        step += rng.choice([0, 0, 1, 1, 2])
    case.op("state")
    case.op("hold", num_blocks)
    case.send(*events)
    case.op("release")
    case.op("state")
    case.op("reset")
    return case


def speculation() -> Case:
    """Tails of 1 to 9 tokens behind a cached prefix, where 5 looks like a verified draft of 4."""
    case = Case("speculation")
    case.op("state")
    prefix = prompt(19, 45)
    case.send(case.ask("prefix", prefix, 0))
    tails = {n: prefix + prompt(2100 + n, n) for n in range(1, 10)}
    for some in ([5], [1, 2, 3, 4], [6, 7, 8, 9]):
        case.send(*[case.ask(f"tail-{n}", tails[n], 45) for n in some])
    case.send(*[case.ask(f"uniform-{i}", prefix + prompt(2200 + i, 5), 45) for i in range(3)])
    case.send(case.ask("again", prefix, 44))
    loop = prompt(2300, 12) * 6
    case.send(case.ask("loop", loop, 0, max_tokens=10))
    case.send({**case.ask("loop-turn", [300, 301], 72 + 10 - 1), "after": "loop"})
    case.send(
        case.ask("beside-loop", loop, 71, max_tokens=10),
        case.ask("again-beside", prefix, 44, at=2),
        case.ask("tail-beside", tails[5], 49, at=2),
        case.ask("new-tail-beside", prefix + prompt(2400, 5), 45, at=3),
        case.ask("loop-beside", loop, 71, at=3),
    )
    case.op("reset")
    case.send(*[case.ask(f"short-{n}", prompt(2500 + n, n), 0) for n in range(1, 10)])
    case.op("state")
    return case
