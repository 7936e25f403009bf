"""The engines that play the prefix-cache cases, and the one without a cache to compare with."""

from __future__ import annotations

from typing import Any

from tests.engine import prefix_cases
from tests.engine.prefix_cases import Case, essence, key
from tests.helpers import models
from tests.helpers.engine import Engine

SEED = 1
# Block size, and whether scheduling is asynchronous.
ENGINES = {"sync-32": (32, False), "sync-128": (128, False), "async-128": (128, True)}
# Usable blocks of the random run: two of its longer requests fill them.
POOL = {"sync-32": 10, "async-128": 4}
CASES = {name: {c.name: c for c in prefix_cases.cases(b)} for name, (b, _) in ENGINES.items()}
TRAFFIC = {name: prefix_cases.traffic(SEED, num_blocks) for name, num_blocks in POOL.items()}
SPECULATION = prefix_cases.speculation()
CHAINS = [prefix_cases.turns().chain(), SPECULATION.chain()]


def cold_requests() -> dict[str, dict[str, Any]]:
    """Each different request whose answer is compared, by `key`."""
    cases = [SPECULATION, *TRAFFIC.values(), *[c for some in CASES.values() for c in some.values()]]
    return {
        key(event): event
        for case in cases
        for event in case.requests()
        if event["name"] not in case.unchecked
    }


def cold_engine() -> Engine:
    """Without prefix caching: the n-th of `cold_requests` as ``c<n>`` in a step ``all``."""
    requests = enumerate(cold_requests().values())
    events = [{**essence(event), "name": f"c{i}"} for i, event in requests]
    everything = {"name": "all", "do": "prefix_steps.play", "ops": [{"drive": events}]}
    steps = [everything, *[_play(chain) for chain in CHAINS]]
    return Engine("cold", _llm(32, enable_prefix_caching=False), steps)


def warm_engines() -> dict[str, list[Engine]]:
    """The engines of each child on xyserve."""
    made = {}
    for name, (block_size, asynchronous) in ENGINES.items():
        cases = [*CASES[name].values(), *([TRAFFIC[name]] if name in TRAFFIC else ())]
        steps = [_play(case) for case in cases]
        made[name] = Engine(name, _llm(block_size), steps, asynchronous)
    lookup = {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    arguments = _llm(32, speculative_config={**lookup, "num_speculative_tokens": 4})
    # Last: what its JIT compiler leaves behind keeps vLLM from starting another engine.
    ngram = Engine("ngram", arguments, [_play(SPECULATION)])
    return {"128": [made["sync-128"], made["async-128"]], "32": [made["sync-32"], ngram]}


def _llm(block_size: int, **more: Any) -> dict[str, Any]:
    return {
        "model": str(models.smollm2()),
        "max_model_len": 512,
        "max_num_batched_tokens": prefix_cases.BUDGET,
        "max_num_seqs": 64,
        "block_size": block_size,
        "kv_cache_memory_bytes": 512 << 20,
        "disable_log_stats": False,
        **more,
    }


def _play(case: Case) -> dict[str, Any]:
    return {"name": case.name, "do": "prefix_steps.play", "ops": case.ops}
