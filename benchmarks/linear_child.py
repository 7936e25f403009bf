"""One engine of `benchmarks.linear_end_to_end`: ``python -m benchmarks.linear_child FD``.

With ``ONEDNN_MAX_CPU_ISA`` below AMX, vLLM's other kernels are also built as on a CPU without it:
its Python side asks torch, which answers no then.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks import prefix_child
from benchmarks.prefix_workloads import Words

PROMPT_LEN = 64
WARM_STEPS = 4


class Child:
    """Carries commands out; each method that is no helper is one."""

    engine: prefix_child.LLMEngine

    def start(self, llm: dict[str, Any], want_margins: bool) -> dict[str, Any]:
        """Start the engine; says what runs and what it holds."""
        self.engine = prefix_child.LLMEngine(llm, want_margins)
        self._words = Words(1)
        self._count = 0
        self._is_eager = bool(llm["enforce_eager"])
        report = getattr(self.engine.worker(), "xyserve_report", None)
        linears = [m.cpu_linear for m in self._modules() if "cpu_linear" in vars(m)]
        return {
            "linear": report().linear if report else {"stock": len(linears)},
            "rss_bytes": _rss_bytes(),
        }

    def answers(self, seed: int, num_prompts: int, num_tokens: int) -> list[dict[str, Any]]:
        """Greedy tokens of prompts that every engine draws alike, with their margins."""
        words = Words(seed)
        for number in range(num_prompts):
            self._add(words.draw(PROMPT_LEN), num_tokens, f"answer{seed}-{number}")
        return [{"tokens": list(p.generated), "margins": list(p.margins)} for p in self._drain()]

    def decode(self, batch: int, num_steps: int) -> dict[str, float]:
        """Median step of ``batch`` rows that each add a token to about a hundred."""
        self.engine.reset()
        for _ in range(batch):
            self._add(self._words.draw(PROMPT_LEN), WARM_STEPS + num_steps + 1)
        while len(self.engine.scheduler.waiting) or self._any_prefill():
            self.engine.step()
        for _ in range(WARM_STEPS - 1):
            self.engine.step()
        with _timed(self._watched()) as linear:
            times = [self._step() for _ in range(num_steps)]
        self._drain()
        step_s = statistics.median(times)
        return {"step_s": step_s, "linear_share": linear[0] / sum(times)}

    def prefill(self, num_tokens: int) -> dict[str, float]:
        """One prompt that hits nothing, in one step."""
        self.engine.reset()
        self._add(self._words.draw(num_tokens), 1)
        with _timed(self._watched()) as linear:
            step_s = self._step()
        self._drain()
        return {"step_s": step_s, "linear_share": linear[0] / step_s}

    def set_norms(self, providers: list[str]) -> None:
        """Who computes norms from here on, first come first."""
        from vllm import ir

        from vllm_xyserve.platform.norms import OPS

        for name in OPS:
            getattr(ir.ops, name).set_default(providers)

    def rss(self) -> int:
        """Resident bytes of this process now."""
        return _rss_bytes()

    def _any_prefill(self) -> bool:
        return any(r.num_output_tokens == 0 for r in self.engine.scheduler.running)

    def _add(self, tokens: tuple[int, ...], num_generated: int, name: str = "") -> None:
        self._count += 1
        self.engine.add(name or f"r{self._count}", tokens, num_generated)

    def _step(self) -> float:
        began = time.perf_counter()
        self.engine.step()
        return time.perf_counter() - began

    def _drain(self) -> list[Any]:
        finished = []
        while self.engine.scheduler.has_unfinished_requests():
            finished += [progress for progress in self.engine.step() if progress.finished]
        return sorted(finished, key=lambda progress: progress.name)

    def _watched(self) -> list[Any]:
        # Compiled code reads tensors out of the callables that it was traced with.
        return self._modules() if self._is_eager else []

    def _modules(self) -> list[Any]:
        return list(self.engine.worker().model_runner.get_model().modules())


@contextmanager
def _timed(modules: list[Any]) -> Iterator[list[float]]:
    """Seconds within ``cpu_linear`` of the modules."""
    total = [0.0]

    def timed(linear: Any) -> Any:
        def call(*args: Any) -> Any:
            began = time.perf_counter()
            out = linear(*args)
            total[0] += time.perf_counter() - began
            return out

        return call

    kept = [(m, m.cpu_linear) for m in modules if "cpu_linear" in vars(m)]
    for module, linear in kept:
        module.cpu_linear = timed(linear)
    try:
        yield total
    finally:
        for module, linear in kept:
            module.cpu_linear = linear


def _rss_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    if "AMX" not in os.environ.get("ONEDNN_MAX_CPU_ISA", "AMX"):
        import torch

        torch.cpu._is_amx_tile_supported = lambda: False
    prefix_child.main(int(sys.argv[1]), Child())
