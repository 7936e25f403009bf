"""Times linear layers in a process of its own: ``python -m benchmarks.gemm_child JSON``.

A process of its own, since oneDNN reads ONEDNN_MAX_CPU_ISA once, before its first use. Prints one
JSON object as the last line of standard output.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.harness import Row
from vllm_xyserve.ops import native

Call = Callable[[], torch.Tensor]
LONG_CALL_S = 0.3  # fewer rounds above it
NUM_UNSEEN = 200


@dataclass(frozen=True, slots=True)
class Plan:
    """What to time. shapes: (layer, N, K). seconds: time per measured point."""

    shapes: list[tuple[str, int, int]]
    row_counts: list[int]
    threads: int
    seconds: float
    num_rounds: int
    edge_shapes: list[tuple[str, int, int]]
    edge_rows: list[int]
    int8_row_counts: list[int]
    peer_only: bool
    dtype: str


class Layer:
    """One weight of the default dtype, packed by us and by vLLM's oneDNN path, and plain.

    onednn: whether oneDNN has a kernel for it. Where it has none (bf16 and fp16 on AVX2), stock
    vLLM calls F.linear, and so does `peer`.
    """

    def __init__(self, n: int, k: int) -> None:
        from vllm import _custom_ops as vllm_ops

        self.n, self.k = n, k
        self.weight = torch.randn(n, k)
        self.packed = torch.ops.xyserve.linear_pack(self.weight)
        self._vllm_ops = vllm_ops
        self._handler: Any = None
        with contextlib.suppress(RuntimeError):
            self._handler = vllm_ops.create_onednn_mm(self.weight.t(), 32)

    @property
    def onednn(self) -> bool:
        return self._handler is not None

    def inputs(self, num_rows: int) -> torch.Tensor:
        return torch.randn(num_rows, self.k)

    def ours(self, x: torch.Tensor) -> Call:
        op, packed, n = torch.ops.xyserve.linear.default, self.packed, self.n
        return lambda: op(x, packed, None, n)

    def peer(self, x: torch.Tensor) -> Call:
        """What a layer of stock vLLM calls: its `cpu_linear` with the output allocated."""
        if not self.onednn:
            return self.plain(x)
        mm, handler = self._vllm_ops.onednn_mm, self._handler
        return lambda: mm(handler, x, None)

    def plain(self, x: torch.Tensor) -> Call:
        return lambda: F.linear(x, self.weight)


class Int8Layer:
    """One int8 weight with scales per column, activations quantised per row in both."""

    def __init__(self, n: int, k: int) -> None:
        from vllm import _custom_ops as vllm_ops

        self.n, self.k = n, k
        weight = torch.randint(-127, 128, (n, k), dtype=torch.int8)
        scale = torch.rand(n, 1, dtype=torch.float32) * 0.01 + 0.01
        self.scale = scale.flatten().contiguous()
        self.wide = weight.float() * scale
        self.packed, self.sums = torch.ops.xyserve.linear_pack_int8(weight, self.scale)
        self._vllm_ops = vllm_ops
        self._handler = vllm_ops.create_onednn_scaled_mm(
            weight.t(), scale, torch.get_default_dtype(), True, False, 32
        )

    def ours(self, x: torch.Tensor) -> Call:
        op = torch.ops.xyserve.linear_int8.default
        return lambda: op(x, self.packed, self.scale, self.sums, None, None, None, self.n)

    def peer(self, x: torch.Tensor) -> Call:
        """What `CPUInt8ScaledMMLinearKernel` does in a layer of stock vLLM."""
        ops = self._vllm_ops

        def call() -> torch.Tensor:
            rows, scales, zeros = ops.onednn_scaled_int8_quant(x, None, None, True)
            out = torch.empty((x.shape[0], self.n), dtype=x.dtype)
            ops.onednn_scaled_mm(self._handler, rows, out, scales, zeros, None, None)
            return out

        return call

    def exact(self, x: torch.Tensor) -> torch.Tensor:
        """Without quantised activations, in fp32."""
        return x.float() @ self.wide.t()


def difference(answer: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of what was expected."""
    expected = expected.double()
    return ((answer.double() - expected).norm() / expected.norm()).item()


def check(calls: Sequence[Call], tolerance: float) -> None:
    """Raise unless all calls give the first one's answer up to `tolerance` of its norm."""
    expected = calls[0]()
    for i, call in enumerate(calls[1:], 1):
        error = difference(call(), expected)
        if not error < tolerance:
            raise AssertionError(f"answer {i} is off by {error}")


def time_calls(call: Call, count: int) -> float:
    """Seconds per call."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def alternate(calls: Sequence[Call], seconds: float, num_rounds: int) -> list[float]:
    """Median seconds per call, the calls in turns, about `seconds` in all per call."""
    once = []
    for call in calls:
        call()
        once.append(time_calls(call, 2))
    if max(once) > LONG_CALL_S:
        num_rounds = 3
    counts = [max(1, int(seconds / num_rounds / max(each, 1e-7))) for each in once]
    samples: list[list[float]] = [[] for _ in calls]
    for turn in range(num_rounds):
        order = range(len(calls)) if turn % 2 == 0 else reversed(range(len(calls)))
        for i in order:
            samples[i].append(time_calls(calls[i], counts[i]))
    return [statistics.median(values) for values in samples]


def first_calls(shapes: Sequence[tuple[str, int, int]]) -> list[Row]:
    """Row counts that the process never saw, in random order, one call each."""
    rows: list[Row] = []
    for name, n, k in shapes:
        layer = Layer(n, k)
        warm = layer.inputs(40)  # a row count outside the range
        check([layer.ours(warm), layer.peer(warm)], 0.02)
        order = list(range(1, 33))
        random.shuffle(order)
        for m in order:
            x = layer.inputs(m)
            peer = time_calls(layer.peer(x), 1)
            ours = time_calls(layer.ours(x), 1)
            row: Row = {"kind": "first", "layer": name, "n": n, "k": k, "m": m}
            row |= {"ours_us": ours * 1e6, "peer_us": peer * 1e6, "ratio": peer / ours}
            rows.append(row)
    return rows


def random_order(shapes: Sequence[tuple[str, int, int]]) -> list[Row]:
    """Many row counts, each once in random order as its first call, then once in rising order.

    ours_over_order, peer_over_order: time of all in random order over that in rising order.
    """
    rows: list[Row] = []
    for name, n, k in shapes:
        layer = Layer(n, k)
        order = random.sample(range(65, 513), NUM_UNSEEN)
        inputs = {m: layer.inputs(m) for m in order}
        row: Row = {"kind": "unseen", "layer": name, "n": n, "k": k}
        for side in ("ours", "peer"):
            calls = {m: getattr(layer, side)(inputs[m]) for m in order}
            calls[order[0]]()  # the path, once: threads, pages
            first = sum(time_calls(calls[m], 1) for m in order)
            again = sum(time_calls(calls[m], 1) for m in sorted(order))
            row |= {f"{side}_us": first * 1e6, f"{side}_over_order": first / again}
        rows.append(row)
    return rows


def float_rows(plan: Plan, name: str, n: int, k: int) -> list[Row]:
    layer, rows = Layer(n, k), []
    for m in plan.row_counts:
        x = layer.inputs(m)
        extra = layer.onednn and not plan.peer_only
        calls = [layer.ours(x), layer.peer(x)] + ([layer.plain(x)] if extra else [])
        check(calls, 0.02)
        ours, peer, *plain = alternate(calls, plan.seconds, plan.num_rounds)
        row: Row = {"kind": "float", "layer": name, "n": n, "k": k, "m": m}
        row |= {"threads": plan.threads, "ours_us": ours * 1e6, "peer_us": peer * 1e6}
        row |= {"ratio": peer / ours, "gflops": 2e-9 * m * n * k / ours}
        row |= {"peer": "oneDNN" if layer.onednn else "F.linear"}
        if plain:
            row |= {"f_linear_us": plain[0] * 1e6, "f_linear_ratio": plain[0] / ours}
        rows.append(row)
        print(f"{name} {n}x{k} M={m}: {peer / ours:.2f}", file=sys.stderr)
    return rows


def int8_rows(plan: Plan, name: str, n: int, k: int) -> list[Row]:
    layer, wide_layer, rows = Int8Layer(n, k), Layer(n, k), []
    # Without it oneDNN's sums of byte products saturate: its error is reported, not refused.
    has_vnni = native.load().isa == "avx512_bf16"
    for m in plan.int8_row_counts:
        x = wide_layer.inputs(m)
        exact = layer.exact(x)
        calls = [layer.ours(x), layer.peer(x), wide_layer.ours(x)]
        check([exact.clone, calls[0]], 0.02)
        if has_vnni:
            check(calls[:2], 0.02)
        ours, peer, wide = alternate(calls, plan.seconds, plan.num_rounds)
        row: Row = {"kind": "int8", "layer": name, "n": n, "k": k, "m": m}
        row |= {"threads": plan.threads, "ours_us": ours * 1e6, "peer_us": peer * 1e6}
        row |= {"ratio": peer / ours, "over_float": wide / ours, "gflops": 2e-9 * m * n * k / ours}
        row["peer_error"] = difference(calls[1](), exact)
        rows.append(row)
    return rows


def edge_rows(plan: Plan, name: str, n: int, k: int) -> list[Row]:
    """t(M) of consecutive M, least of several rounds, each round in another order."""
    layer = Layer(n, k)
    calls = {m: layer.ours(layer.inputs(m)) for m in plan.edge_rows}
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(3 * plan.num_rounds):
        order = list(calls)
        random.shuffle(order)
        for m in order:
            call = calls[m]
            call()
            best[m] = min(best[m], time_calls(call, max(1, 1_000_000_000 // (8 * m * n * k))))
    rows: list[Row] = []
    for m in calls:
        if m + 1 in best:
            step = best[m + 1] / best[m]
            row: Row = {"kind": "edge", "layer": name, "n": n, "k": k, "m": m}
            rows.append(
                row | {"ours_us": best[m] * 1e6, "edge": step * m / (m + 1), "fall": 1 / step}
            )
    return rows


def run(plan: Plan) -> dict[str, Any]:
    torch.set_num_threads(plan.threads)
    torch.set_default_dtype(getattr(torch, plan.dtype))  # as in a model: the int8 handler reads it
    status = native.load()
    if not status.loaded:
        raise SystemExit(f"native library not loaded: {status.reason}; {status.mend}")
    torch.manual_seed(0)
    random.seed(0)
    rows: list[Row] = []
    with torch.no_grad():
        if not plan.peer_only and plan.threads == 1:
            small = [shape for shape in plan.shapes if shape[1] * shape[2] < 20_000_000]
            rows += first_calls(small or plan.shapes[:1])
            rows += random_order(plan.edge_shapes)
        for name, n, k in plan.shapes:
            rows += float_rows(plan, name, n, k)
            if plan.int8_row_counts:
                rows += int8_rows(plan, name, n, k)
        for name, n, k in plan.edge_shapes:
            rows += edge_rows(plan, name, n, k)
    return {"rows": rows, "isa": status.isa}


def main() -> None:
    wanted = json.loads(sys.argv[1])
    for key in ("shapes", "edge_shapes"):
        wanted[key] = [tuple(shape) for shape in wanted[key]]
    print(json.dumps(run(Plan(**wanted))))


if __name__ == "__main__":
    main()
