"""What a child does with an in-process engine to drive its scheduler step by step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

MOST_STEPS = 5000


@contextlib.contextmanager
def asynchronous_scheduling() -> Iterator[None]:
    """Engines made in here schedule asynchronously, which vLLM's CPU platform does not offer.

    The flag is set between worker and scheduler: a worker that knew of it would want CUDA streams,
    and needs none, since it runs steps in the order in which they were composed. The engine core
    then composes each step before it reads the one before.
    """
    from vllm.v1.engine.core import EngineCore

    original = EngineCore._initialize_kv_caches

    def switch_on(core: Any, vllm_config: Any) -> Any:
        result = original(core, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True
        return result

    EngineCore._initialize_kv_caches = switch_on
    try:
        yield
    finally:
        EngineCore._initialize_kv_caches = original


def play(llm: Any, ops: list[dict[str, Any]]) -> list[Any]:
    """Carry out operations in turn; each has one key, its kind, and gets one answer.

    drive: events, see `drive`. reset: forget all cached prefixes. budget: tokens per step from now
    on. hold: take free blocks away until so many are left; release: give them back. state: see
    `state`.
    """
    core = llm.llm_engine.engine_core.engine_core
    scheduler = core.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    budget, held, answers = scheduler.max_num_scheduled_tokens, [], []
    known: dict[str, list[int]] = {}
    for op in ops:
        ((kind, argument),) = op.items()
        answer: Any = None
        if kind == "drive":
            answer = drive(llm, argument, known)
        elif kind == "reset":
            answer = llm.reset_prefix_cache()
        elif kind == "budget":
            scheduler.max_num_scheduled_tokens = argument or budget
        elif kind == "hold":
            held += pool.get_new_blocks(pool.get_num_free_blocks() - argument)
        elif kind == "release":
            pool.free_blocks(held)
            held = []
        else:
            assert kind == "state", op
            answer = state(llm)
        answers.append(answer)
    scheduler.max_num_scheduled_tokens = budget
    pool.free_blocks(held)
    return answers


def drive(llm: Any, events: list[dict[str, Any]], known: dict[str, list[int]]) -> dict[str, Any]:
    """Run the engine until all is done, with events before their steps (``at``, from 0).

    An event has ``add`` (the prompt's tokens, behind all tokens of the request that ``after``
    names), a ``name``, sampling arguments and perhaps a ``salt``; or ``abort`` (a name); or
    ``reset``. While nothing runs, later events come at once. ``known`` takes the tokens of each
    finished request.

    Returns:
        answers by name, without aborted requests; what each reset said; the number of steps.
    """
    engine, core = llm.llm_engine, llm.llm_engine.engine_core.engine_core
    answers: dict[str, Any] = {}
    resets: list[bool] = []
    aborted: list[str] = []
    waiting = sorted(events, key=lambda event: event.get("at", 0))
    step = num_steps = 0
    while waiting or _busy(core):
        if waiting and not _busy(core):
            step = max(step, waiting[0].get("at", 0))
        while waiting and waiting[0].get("at", 0) <= step:
            event = waiting.pop(0)
            if "add" in event:
                _add(engine, event, known)
            elif "abort" in event:
                if event["abort"] not in answers:
                    engine.abort_request([event["abort"]])
                    aborted.append(event["abort"])
            else:
                resets.append(llm.reset_prefix_cache())
        for output in engine.step():
            if output.finished:
                answers[output.request_id] = _answer(output)
                known[output.request_id] = [*output.prompt_token_ids, *output.outputs[0].token_ids]
        step, num_steps = step + 1, num_steps + 1
        assert num_steps < MOST_STEPS, f"unfinished after {MOST_STEPS} steps"
    for name in aborted:
        answers.pop(name, None)
    return {"answers": answers, "resets": resets, "aborted": aborted, "num_steps": num_steps}


def state(llm: Any) -> dict[str, Any]:
    """The scheduler, what its block pool holds, and its counters; the index is checked too."""
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    manager.xy.index.check()
    counters = manager.xy.counters
    return {
        "scheduler": [cls.__name__ for cls in type(scheduler).__mro__],
        "num_blocks": len(pool.blocks) - 1,  # without the null block
        "num_free": pool.get_num_free_blocks(),
        "num_indexed": len(manager.xy.index),
        "counters": {name: getattr(counters, name) for name in type(counters).__slots__},
        "metrics": _metrics(llm),
    }


def _busy(core: Any) -> bool:
    return bool(core.scheduler.has_requests() or core.batch_queue)


def _add(engine: Any, event: dict[str, Any], known: dict[str, list[int]]) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    apart = ("at", "add", "after", "name", "salt")
    kwargs = {k: v for k, v in event.items() if k not in apart}
    params = SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **kwargs)
    before = known[event["after"]] if "after" in event else []
    prompt: dict[str, Any] = {"prompt_token_ids": before + event["add"]}
    if event.get("salt"):
        prompt["cache_salt"] = event["salt"]
    engine.add_request(event["name"], prompt, params)


def _answer(output: Any) -> dict[str, Any]:
    from tests.engine.steps import _request_answer

    return _request_answer(output)


def _metrics(llm: Any) -> dict[str, float]:
    from tests.engine.steps import metrics

    return metrics(llm)
