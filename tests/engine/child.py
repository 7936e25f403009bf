"""The child process of `tests.helpers.engine`: ``python -m tests.engine.child SPEC ANSWERS``."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.engine.prefix_steps import asynchronous_scheduling
from tests.helpers.engine import marker


def main(spec_path: str, answers_path: str) -> None:
    """Run every engine of the spec; an error ends an engine, not the child."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # vLLM collects nine times per engine, half a second each in a process that has imported it all.
    gc.collect = lambda *_: 0  # type: ignore[assignment]
    answers = {}
    for spec in json.loads(Path(spec_path).read_text()):
        print(f"\n{marker(spec['name'], 'begin')}", flush=True)
        started, used = time.monotonic(), time.process_time()
        answers[spec["name"]] = run_engine(spec)
        wall, cpu = time.monotonic() - started, time.process_time() - used
        print(f"took {wall:.1f} s, {cpu:.1f} s of this process's CPU time")
        print(f"\n{marker(spec['name'], 'end')}", flush=True)
    Path(answers_path).write_text(json.dumps(answers))


def run_engine(spec: dict[str, Any]) -> dict[str, Any]:
    """Start the engine, run its steps, and take it down."""
    from vllm import LLM

    mode = asynchronous_scheduling() if spec["asynchronous"] else contextlib.nullcontext()
    try:
        with mode:
            llm = LLM(**{"kv_cache_memory_bytes": 64 << 20, **spec["llm"]})
    except Exception:
        return {"error": traceback.format_exc(), "steps": {}}
    answers: dict[str, Any] = {}
    try:
        for step in spec["steps"]:
            used = time.process_time()
            answers[step["name"]] = answer = run_step(llm, dict(step))
            print(f"{step['name']} took {time.process_time() - used:.1f} s of CPU time", flush=True)
            if "error" in answer:  # requests of the failed step may still be in the engine
                break
        return {"steps": answers}
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        clean_up()


def run_step(llm: Any, step: dict[str, Any]) -> dict[str, Any]:
    """One step's answer, or its error."""
    del step["name"]
    module, _, name = step.pop("do").rpartition(".")
    function = getattr(importlib.import_module(f"tests.engine.{module or 'steps'}"), name)
    try:
        answer = function(llm, **step)
    except Exception:
        return {"error": traceback.format_exc()}
    return {"answer": json.loads(json.dumps(answer))}


def clean_up() -> None:
    """Make room for the next engine in this process."""
    from vllm.distributed import cleanup_dist_env_and_memory

    cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main(*sys.argv[1:])
