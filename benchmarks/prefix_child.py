"""One engine of the prefix benchmark: ``python -m benchmarks.prefix_child ANSWER_FD``.

Commands come as JSON lines on standard input, each is answered with one on the given descriptor,
and the process ends with its input. Between commands it waits and takes no CPU time, so that an
engine of the other kind can run beside it. Engine core and worker are in this process, whose
scheduler can therefore be watched, and no time is lost or hidden between processes.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import prefix_loop, prefix_workloads
from benchmarks.prefix_loop import Progress
from benchmarks.prefix_workloads import Words

NUM_COPIES = 41
PREFILL_LENS = (33, 545)


class LLMEngine:
    """vLLM's engine, stepped by hand."""

    def __init__(self, llm: dict[str, Any], want_margins: bool) -> None:
        from vllm import LLM

        self._engine: Any = LLM(**llm).llm_engine
        self._core = self._engine.engine_core.engine_core
        self.scheduler = self._core.scheduler
        self.block_size: int = self._engine.vllm_config.cache_config.block_size
        self._want_margins = want_margins
        self._internal: dict[str, str] = {}

    def add(self, name: str, tokens: Sequence[int], num_generated: int) -> str:
        from vllm import SamplingParams

        params = SamplingParams(
            max_tokens=num_generated,
            ignore_eos=True,
            temperature=0.0,
            detokenize=False,
            logprobs=2 if self._want_margins else None,
        )
        prompt = {"prompt_token_ids": list(tokens)}
        self._internal[name] = self._engine.add_request(name, prompt, params)
        return self._internal[name]

    def step(self) -> list[Progress]:
        progresses = []
        for output in self._engine.step():
            (one,) = output.outputs
            margins = _margins(one.logprobs) if output.finished and one.logprobs else []
            name = self._internal[output.request_id]
            progresses.append(Progress(name, one.token_ids, output.finished, margins))
        return progresses

    def reset(self) -> None:
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("the prefix cache could not be reset: blocks are in use")

    def worker(self) -> Any:
        return self._core.model_executor.driver_worker.worker


def _margins(logprobs: Any) -> list[float]:
    """Per token, the best log probability less the second best."""
    margins = []
    for position in logprobs:
        best = sorted((entry.logprob for entry in position.values()), reverse=True)
        margins.append(best[0] - best[1])
    return margins


class Child:
    """Carries commands out; each method that is no helper is one."""

    engine: LLMEngine

    def start(self, llm: dict[str, Any], want_margins: bool) -> dict[str, Any]:
        """Start the engine; says what runs."""
        began = time.perf_counter()
        self.engine = LLMEngine(llm, want_margins)
        worker, scheduler = self.engine.worker(), self.engine.scheduler
        unit = getattr(scheduler, "xy_prefix_unit", None)
        report = getattr(worker, "xyserve_report", None)
        return {
            "start_s": time.perf_counter() - began,
            "scheduler": type(scheduler).__name__,
            "unit": unit() if unit else f"{self.engine.block_size} tokens",
            "worker": report().one_line() if report else type(worker).__name__,
        }

    def run(
        self, workload: str, concurrency: int, quick: bool, trace: str, brief: dict[str, int] | None
    ) -> dict[str, Any]:
        """One pass over a workload, from an empty cache. brief: arguments of `shortened`."""
        made = prefix_workloads.make(workload, quick, Path(trace))
        if brief is not None:
            made = prefix_workloads.shortened(made, **brief)
        self.engine.reset()
        result = prefix_loop.run(self.engine, made, concurrency)
        answers = result.answers if brief is not None else []
        return {
            "wall_s": result.wall_s,
            "ttft_s": result.ttft_s,
            "num_requests": made.num_requests,
            "prompt_tokens": result.num_prompt_tokens,
            "generated_tokens": result.num_generated_tokens,
            "hit_tokens": result.hit_tokens,
            "law_tokens": result.law_tokens,
            "block_law_tokens": result.block_law_tokens,
            "below_law": [f"{a.name}: {a.got} of {a.law}" for a in result.below_law[:5]],
            "decode_step_us": result.decode_step_us(concurrency),
            "answers": [
                [a.session, a.turn, a.generated, a.margins]
                for a in sorted(answers, key=lambda a: (a.session, a.turn))
            ],
        }

    def prefill(self) -> dict[str, float]:
        """Time to compute one prompt token more, from prompts of two lengths that hit nothing."""
        words = Words(int.from_bytes(os.urandom(4)))
        medians = []
        for length in PREFILL_LENS:
            times = []
            for number in range(8):
                self.engine.reset()
                self.engine.add(f"prefill{length}-{number}", words.draw(length), 1)
                began = time.perf_counter()
                while not any(p.finished for p in self.engine.step()):
                    pass
                times.append(time.perf_counter() - began)
            medians.append(statistics.median(times[1:]))
        num_tokens = PREFILL_LENS[1] - PREFILL_LENS[0]
        return {"us_per_token": (medians[1] - medians[0]) * 1e6 / num_tokens}

    def copy(self) -> dict[str, float]:
        """Time to copy one block of all layers, with what this engine's worker copies with."""
        from vllm.v1.worker import gpu_model_runner

        runner: Any = self.engine.worker().model_runner
        num_blocks = self.engine.scheduler.kv_cache_config.num_blocks
        copy = gpu_model_runner.copy_kv_cache_blocks_inplace
        times = []
        for number in range(NUM_COPIES):
            # A source that was not copied lately, as a cached block is.
            pair = [(1 + number, num_blocks - 1 - number)]
            began = time.perf_counter()
            copy(runner.kv_caches, num_blocks, pair)
            times.append(time.perf_counter() - began)
        self.engine.reset()
        return {
            "copy_us": statistics.median(times) * 1e6,
            "block_bytes": sum(c[0].nbytes * c.shape[0] // num_blocks for c in runner.kv_caches),
        }


def main(answer_fd: int, child: object | None = None) -> None:
    """Answer commands until the input ends, with the methods of ``child``."""
    child = child or Child()
    with os.fdopen(answer_fd, "w") as answers:
        for line in sys.stdin:
            command = json.loads(line)
            function: Callable[..., Any] = getattr(child, command.pop("do"))
            try:
                answer = {"answer": function(**command)}
            except Exception:
                answer = {"error": traceback.format_exc()}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
