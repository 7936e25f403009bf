"""RMSNorm with its residual: our kernel against vLLM's form, alone and in an engine.

The engine is one process that runs both in turns, so that nothing else differs between them.

norm_ROWS_ratio    vLLM's time over ours for that many rows of 576 in bf16
decode_B_ratio     of a decode step of B requests, and
prefill_N_ratio    of a prompt of N tokens: with vLLM's form over with ours
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys

import torch

from benchmarks.harness import Case, Options, Result, Row, main, measure
from benchmarks.linear_end_to_end import _smollm2, step_arguments
from benchmarks.prefix_engines import EngineProcess, Setting
from benchmarks.stopping import stopped_by_signals
from vllm_xyserve.ops import registry
from vllm_xyserve.ops.norm import rms_norm
from vllm_xyserve.platform.norms import PROVIDER

EPSILON = 1e-5
SHAPES = ((1, 576), (12, 576), (512, 576), (1, 4096), (12, 4096))
QUICK_SHAPES = SHAPES[:2]
WORK = (("decode", 1), ("decode", 8), ("decode", 32), ("prefill", 512))
ORDERS = {"ours": [PROVIDER, "native"], "vllm": ["native"]}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Beside the common ones."""
    parser.add_argument("--model", help="a checkpoint (default: the tests' SmolLM2)")
    parser.add_argument("--no-engine", action="store_true", help="the operation alone")


def run(options: Options) -> Result:
    """The operation in three dtypes, then the engine."""
    torch.manual_seed(0)
    rows: list[Row] = []
    summary: dict[str, float] = {}
    for dtype in registry.DTYPES.values():
        for num_rows, d in QUICK_SHAPES if options.quick else SHAPES:
            comparison, row = measure(operation(num_rows, d, dtype), options)
            rows.append(row)
            if dtype == torch.bfloat16 and d == SHAPES[0][1] and comparison.ratio is not None:
                summary[f"norm_{num_rows}_ratio"] = comparison.ratio
    if not options.extra.no_engine:
        for row in in_an_engine(options):
            rows.append(row)
            case = str(row["case"]).replace(" ", "_")
            summary[f"{case}_ratio"] = float(row["vllm_ms"] or 0) / float(row["ours_ms"] or 1)
    return Result(summary, rows)


def operation(num_rows: int, d: int, dtype: torch.dtype) -> Case:
    """Both in place, as a step has it; vLLM's form returns new tensors."""
    from vllm.ir.ops.layernorm import fused_add_rms_norm

    upstream = fused_add_rms_norm.impls["native"].impl_fn
    x, residual = (torch.randn(num_rows, d).to(dtype) for _ in range(2))
    weight = torch.randn(d).to(dtype)

    def check() -> None:
        expected = upstream(x, residual, weight, EPSILON)
        got = x.clone(), residual.clone()
        rms_norm(got[0], got[0], weight, EPSILON, got[1])
        bound = 4 * torch.finfo(dtype).eps
        for mine, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=bound, atol=bound)

    out, added = x.clone(), torch.zeros_like(residual)
    kernel = registry.chosen("rms_norm", dtype)
    return Case(
        name=f"rms_norm {num_rows}x{d} {kernel.dtype} {kernel.isa}",
        check=check,
        ours=lambda: rms_norm(out, x, weight, EPSILON, added),
        peer=lambda: upstream(x, residual, weight, EPSILON),
        facts={"rows": num_rows, "d": d, "dtype": kernel.dtype, "peer": "vLLM's form"},
    )


def in_an_engine(options: Options) -> list[Row]:
    """Steps of one engine with native layers, with our norm and with vLLM's in turns."""
    llm = {
        "model": options.extra.model or _smollm2(),
        "dtype": "bfloat16",
        "max_model_len": 2048,
        "kv_cache_memory_bytes": 256 << 20,
    }
    native = {"attention": "native", "linear": "native"}
    setting = Setting(
        "norms", native, llm, want_margins=True, threads=1, module="benchmarks.linear_child"
    )
    rows: list[Row] = []
    with contextlib.closing(EngineProcess(setting)) as engine:
        for what, size in WORK:
            arguments = step_arguments(what, size)
            taken: dict[str, list[float]] = {name: [] for name in ORDERS}
            for turn in range(4 if options.quick else 10):
                for name in list(ORDERS)[:: 1 if turn % 2 else -1]:
                    engine.ask("set_norms", providers=ORDERS[name])
                    taken[name].append(float(engine.ask(what, **arguments)["step_s"]))
            row: Row = {"case": f"{what} {size}"}
            row |= {f"{n}_ms": statistics.median(times[1:]) * 1e3 for n, times in taken.items()}
            print(row, file=sys.stderr)
            rows.append(row)
    return rows


if __name__ == "__main__":
    with stopped_by_signals():
        main(run, __doc__, add_arguments=add_arguments)
