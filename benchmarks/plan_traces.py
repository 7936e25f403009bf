"""Steps of a server that follows a trace: which rows stand together in a batch.

The server is always busy: the next request of the trace is admitted as soon as a place is free. Per
step every running request that has its prompt computed gets one token, and the rest of the token
budget goes to prompts in the order of admission, chunked. Nothing is random.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent / "data"
EXCERPTS = {name: DATA / f"azure_2023_{name}.csv" for name in ("code", "conv")}
MOONCAKE = DATA / "mooncake_conversations.jsonl"
MOONCAKE_BLOCK = 512  # tokens per hash id
PROMPT_COLUMN, OUTPUT_COLUMN = "ContextTokens", "GeneratedTokens"


@dataclass(frozen=True, slots=True)
class Step:
    """One batch: tokens of the step and context with them, per row."""

    query_lens: tuple[int, ...]
    key_lens: tuple[int, ...]


def load(path: Path) -> list[tuple[int, int]]:
    """Prompt and output tokens per request of an Azure LLM inference trace (CSV)."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if not {PROMPT_COLUMN, OUTPUT_COLUMN} <= set(reader.fieldnames or ()):
            raise SystemExit(
                f"{path} must be CSV with the columns {PROMPT_COLUMN} and {OUTPUT_COLUMN}, "
                f"has {reader.fieldnames}"
            )
        return [(max(1, int(row[PROMPT_COLUMN])), int(row[OUTPUT_COLUMN])) for row in reader]


def load_mooncake(path: Path) -> list[tuple[int, int, int]]:
    """Prompt, output and cached tokens per request of a Mooncake trace (JSON lines).

    Cached is what an earlier request's prompt shares with this one, in whole ids, if nothing were
    ever evicted.
    """
    seen: set[int] = set()
    requests = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            row = json.loads(line)
            missing = {"input_length", "output_length", "hash_ids"} - set(row)
            if missing:
                raise SystemExit(f"{path}:{number}: no Mooncake request, lacks {sorted(missing)}")
            ids = row["hash_ids"]
            shared = next((i for i, x in enumerate(ids) if x not in seen), len(ids))
            seen.update(ids)
            prompt = max(1, row["input_length"])
            cached = min(shared * MOONCAKE_BLOCK, prompt - 1)
            requests.append((prompt, row["output_length"], cached))
    return requests


def steps(requests: Sequence[tuple[int, ...]], budget: int, num_running: int) -> Iterator[Step]:
    """The steps while every place is taken: neither the start nor the end of the trace.

    requests: prompt, output and, optionally, cached tokens of each.
    """
    waiting = iter(requests)
    running: list[list[int]] = []  # computed, prompt, prompt and output
    started = False
    while True:
        running = [state for state in running if state[0] < state[2]]
        while len(running) < num_running and (request := next(waiting, None)) is not None:
            prompt, output, cached = (*request, 0)[:3]
            running.append([cached, prompt, prompt + max(output - 1, 0)])
        if len(running) < num_running:
            return
        step = _compose(running, budget)
        started = started or all(state[0] >= state[1] for state in running[: num_running // 2])
        if started:
            yield step


def _compose(running: list[list[int]], budget: int) -> Step:
    """Fill one step's budget and advance the requests."""
    query_lens, key_lens = [], []
    left = budget - sum(state[0] >= state[1] for state in running)
    for state in running:
        computed, prompt, _ = state
        count = 1 if computed >= prompt else min(prompt - computed, left)
        left -= count if computed < prompt else 0
        if count > 0:
            state[0] += count
            query_lens.append(count)
            key_lens.append(state[0])
    return Step(tuple(query_lens), tuple(key_lens))


def sample(every: list[Step], count: int) -> list[Step]:
    """`count` steps at equal distances."""
    count = min(count, len(every))
    return [every[i * len(every) // count] for i in range(count)]
