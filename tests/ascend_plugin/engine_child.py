"""Runs the prefix cases A to C on a real vLLM 0.23.0 engine, a CPU model, and prints what came.

`python -m tests.ascend_plugin.engine_child FILE MODEL`. The family is `cpu`, with vLLM's own
kernels: what is under test is the scheduler part and the copies that the worker carries out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

BLOCK = 32


def tokens(seed: int, count: int) -> list[int]:
    return [10 + ((31 * i + 7 * seed + 17 * i * i) % 480) for i in range(count)]


def another(token: int) -> int:
    return 10 + (token - 10 + 1) % 480


class Engine:
    """An engine with random weights, and what it answers."""

    def __init__(self, model: str, num_blocks: int, max_model_len: int = 512) -> None:
        from vllm import LLM, SamplingParams

        self._params = SamplingParams
        self.llm = LLM(
            model=model,
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype="float32",
            block_size=BLOCK,
            max_model_len=max_model_len,
            max_num_batched_tokens=256,
            num_gpu_blocks_override=num_blocks,
            enforce_eager=True,
            seed=0,
            disable_log_stats=False,
        )

    def ask(self, *prompts: list[int], salt: str | None = None, **params: Any) -> list[Any]:
        """Answers and numbers of cached tokens of prompts that are sent at once."""
        arguments = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, "detokenize": False}
        wanted = self._params(**(arguments | params))
        sent = [{"prompt_token_ids": p, **({"cache_salt": salt} if salt else {})} for p in prompts]
        outputs = self.llm.generate(sent, wanted, use_tqdm=False)
        return [(list(o.outputs[0].token_ids), o.num_cached_tokens) for o in outputs]

    def cold(self, *prompts: list[int], **params: Any) -> list[list[int]]:
        """Answers with an empty cache, one by one."""
        answers = []
        for prompt in prompts:
            assert self.llm.reset_prefix_cache()
            answers.append(self.ask(prompt, **params)[0][0])
        assert self.llm.reset_prefix_cache()
        return answers


def cases(engine: Engine) -> dict[str, Any]:
    """By case: ``[[answer, cold answer, cached, expected], ...]``."""
    facts: dict[str, Any] = {}

    def check(name: str, prompts: list[list[int]], cached: list[int], **params: Any) -> None:
        warm = [engine.ask(prompt, **params)[0] for prompt in prompts]
        cold = engine.cold(*prompts, **params)
        facts[name] = [
            [got, want, hit, expected]
            for (got, hit), want, expected in zip(warm, cold, cached, strict=True)
        ]

    a = tokens(1, 35)
    check("A1 off-grid tail", [a, [*a[:34], another(a[34]), 500]], [0, 34])
    for length in (31, 32, 33, 64, 65, 129):
        check(f"A3 exact repeat {length}", [tokens(3, length)] * 2, [0, length - 1])
    a = tokens(2, 97)
    for length in (0, 1, 31, 33, 63, 64, 70, 96):
        fork = [*a[:length], another(a[length]), 8, 9]
        check(f"A2 common {length}", [a, fork], [0, length])
    a = tokens(5, 45)
    engine.ask(a)
    together = [[*a[:41], 400], [*a[:41], 401], a]
    warm = engine.ask(*together)
    cold = engine.cold(*together)
    facts["A5 three ways"] = [
        [got, want, hit, expected]
        for (got, hit), want, expected in zip(warm, cold, (41, 41, 44), strict=True)
    ]
    first = engine.ask(tokens(6, 50), max_tokens=20)[0][0]
    following = [*tokens(6, 50), *first, 300, 301]
    got, hit = engine.ask(following)[0]
    facts["A6 generated"] = [[got, engine.cold(following)[0], hit, 69]]
    same = [tokens(8, 45), tokens(8, 45), [*tokens(8, 44), 499]]
    warm = engine.ask(*same)
    facts["B10 same step"] = [
        [got, want, hit, None] for (got, hit), want in zip(warm, engine.cold(*same), strict=True)
    ]
    a = tokens(16, 70)
    hits = [engine.ask(a, salt=salt)[0][1] for salt in ("a", "a", "b", None, "b")]
    facts["C18 salts"] = hits
    assert engine.llm.reset_prefix_cache()
    return facts


def pressure(engine: Engine) -> dict[str, Any]:
    """More than the pool holds: answers are those of requests alone."""
    prompts = [tokens(20 + i, 66) for i in range(3)] + [tokens(20, 90)]
    together = [answer for answer, _ in engine.ask(*prompts, max_tokens=70)]
    return {"together": together, "alone": engine.cold(*prompts, max_tokens=70)}


def main(file: Path, model: str) -> None:
    engine = Engine(model, 80)
    scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    facts: dict[str, Any] = {
        "scheduler": [cls.__name__ for cls in type(scheduler).__mro__],
        "off": scheduler.xy_prefix_off,
        "worker": engine.llm.llm_engine.vllm_config.parallel_config.worker_cls,
        "cases": cases(engine),
        "copies": scheduler.kv_cache_manager.xy.counters.num_copies,
    }
    small = Engine(model, 9, max_model_len=192)
    facts["pressure"] = pressure(small)
    core = small.llm.llm_engine.engine_core.engine_core
    facts["free"] = core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    file.write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
