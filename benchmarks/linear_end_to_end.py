"""SmoothGEMM in an engine: token/s of SmolLM2 against stock vLLM, alternating in one run.

Stock runs twice: as on a CPU without AMX (the headline, since our kernels use none), and as this
CPU allows. ``--compiled`` lets torch.compile in, as users run it; the share of linear layers is
measured in eager mode only.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import sys
from typing import Any

from benchmarks.harness import Options, Result, Row, main
from benchmarks.prefix_engines import EngineProcess, Setting
from benchmarks.stopping import stopped_by_signals
from vllm_xyserve.ops.isa import cpu_info

NO_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
NATIVE = {"attention": "upstream", "linear": "native"}
BATCHES = (12, 32)
PREFILLS = (512, 2048)
# Logits of a bfloat16 model are known to about 1 part in 256 of values around 20.
BF16_TIE = 0.3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Beside the common ones."""
    parser.add_argument("--model", help="a Llama-like checkpoint (default: the tests' SmolLM2)")
    parser.add_argument("--threads", type=int, default=1, help="of torch in each engine")
    parser.add_argument("--compiled", action="store_true", help="torch.compile instead of eager")
    parser.add_argument("--fused", action="store_true", help="one more engine, with fuse_silu")
    parser.add_argument("--no-amx", action="store_true", help="leave stock with AMX out")
    parser.add_argument(
        "--attention", choices=("upstream", "native"), default="upstream", help="of our engines"
    )
    parser.add_argument("--cases", nargs="+", metavar="WHAT-SIZE", help="such as decode-12")


def run(options: Options) -> Result:
    """Start the engines, compare answers, time them in turns; then again, started in reverse.

    Of two engines that are up at once the one started later was found to be 8 to 12 % faster on the
    same work, whichever it was, so that a single order measures the order.
    """
    forward = settings(options)
    rounds = [one_round(options, order) for order in (forward, forward[::-1])]
    rows = [
        combined([r for rows, _ in rounds for r in rows if _same(r, row)]) for row in rounds[0][0]
    ]
    memory = {name: statistics.fmean(m[name] for _, m in rounds) for name in rounds[0][1]}
    for row in rows:
        row["mib"] = round(memory[str(row["engine"])] / 2**20)
    return Result(summary(rows, memory), rows)


def one_round(options: Options, order: list[Setting]) -> tuple[list[Row], dict[str, float]]:
    """Rows and resident bytes of engines that are started in this order."""
    with contextlib.ExitStack() as stack:
        engines = {}
        for setting in order:
            print(f"starting {setting.name}", file=sys.stderr)
            engines[setting.name] = stack.enter_context(EngineProcess(setting))
        check(engines)
        rows = [
            row
            for what, size in cases(options)
            for row in measure(engines, what, size, 3 if options.quick else 7)
        ]
        return rows, {name: float(engine.ask("rss")) for name, engine in engines.items()}


def _same(row: Row, other: Row) -> bool:
    return (row["case"], row["engine"]) == (other["case"], other["engine"])


def combined(rows: list[Row]) -> Row:
    """Geometric means over the start orders, and how far these are apart."""

    def mean(column: str) -> float:
        return statistics.geometric_mean(float(row[column] or 0) for row in rows)

    steps = [float(row["step_ms"] or 0) for row in rows]
    row: Row = {name: rows[0][name] for name in ("case", "engine")}
    row |= {name: mean(name) for name in ("step_ms", "tokens_per_s")}
    row["linear_share"] = mean("linear_share") if rows[0]["linear_share"] is not None else None
    row["order_spread"] = max(steps) / min(steps) - 1
    return row


def settings(options: Options) -> list[Setting]:
    """The engines, ours first."""
    extra = options.extra
    llm = {
        "model": extra.model or _smollm2(),
        "dtype": "bfloat16",
        "max_model_len": 4096,
        "max_num_batched_tokens": 4096,
        "kv_cache_memory_bytes": 512 << 20,
        "enforce_eager": not extra.compiled,
    }

    def setting(name: str, ours: dict[str, Any] | None, env: dict[str, str]) -> Setting:
        return Setting(
            name, ours, llm, True, extra.threads, env=env, module="benchmarks.linear_child"
        )

    native = {**NATIVE, "attention": extra.attention}
    found = [setting("ours", native, NO_AMX)]
    if extra.fused:
        found.append(setting("fused", {**native, "fuse_silu": True}, NO_AMX))
    found.append(setting("stock", None, NO_AMX))
    if cpu_info().amx_bf16 and not extra.no_amx:
        found.append(setting("stock-amx", None, {}))
    return found


def cases(options: Options) -> list[tuple[str, int]]:
    """``(command, size)``."""
    if options.extra.cases:
        pairs = [case.split("-") for case in options.extra.cases]
        return [(what, int(size)) for what, size in pairs]
    sizes = [("decode", batch) for batch in BATCHES] + [("prefill", n) for n in PREFILLS]
    return sizes[::2] if options.quick else sizes


def check(engines: dict[str, EngineProcess]) -> None:
    """Greedy answers of all engines agree up to the first near tie.

    Raises:
        AssertionError: a token differs where stock was sure.
    """
    asked = {n: e.ask("answers", seed=7, num_prompts=8, num_tokens=8) for n, e in engines.items()}
    compared = 0
    for name, answers in asked.items():
        for mine, stock in zip(answers, asked["stock"], strict=True):
            pairs = zip(mine["tokens"], stock["tokens"], stock["margins"], strict=True)
            for token, expected, margin in pairs:
                if token != expected:
                    assert margin < BF16_TIE, f"{name}: {token}, stock {expected} by {margin}"
                    break
                compared += 1
    assert compared >= 32 * len(engines), f"only {compared} tokens could be compared"


def step_arguments(what: str, size: int) -> dict[str, int]:
    """Of the child's command ``what``."""
    return {"batch": size, "num_steps": 16} if what == "decode" else {"num_tokens": size}


def measure(engines: dict[str, EngineProcess], what: str, size: int, turns: int) -> list[Row]:
    """Turn about, after one turn that is thrown away."""
    arguments = step_arguments(what, size)
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    names = list(engines)
    for turn in range(turns + 1):
        for name in names if turn % 2 else reversed(names):
            samples[name].append(engines[name].ask(what, **arguments))
    rows = []
    for name, taken in samples.items():
        step_s = statistics.median(sample["step_s"] for sample in taken[1:])
        share = statistics.median(sample["linear_share"] for sample in taken[1:])
        row: Row = {
            "case": f"{what} {size}",
            "engine": name,
            "step_ms": step_s * 1e3,
            "tokens_per_s": size / step_s,
            "linear_share": share if share > 0 else None,
        }
        rows.append(row)
        print(row, file=sys.stderr)
    return rows


def summary(rows: list[Row], memory: dict[str, float]) -> dict[str, float]:
    """Our token/s over stock's, per case and as geometric mean; memory over stock's."""
    speed = {(row["case"], row["engine"]): float(row["tokens_per_s"] or 0) for row in rows}
    found: dict[str, float] = {}
    for other in memory:
        if other == "ours":
            continue
        ratios = {c: s / speed[c, other] for (c, e), s in speed.items() if e == "ours"}
        key = other.replace("-", "_")
        found |= {f"over_{key}_{str(c).replace(' ', '_')}": ratio for c, ratio in ratios.items()}
        found[f"over_{key}"] = math.exp(statistics.fmean(map(math.log, ratios.values())))
        found[f"memory_over_{key}"] = memory["ours"] / memory[other]
    for row in rows:
        if row["engine"] in ("ours", "stock") and row["linear_share"] is not None:
            case = str(row["case"]).replace(" ", "_")
            found[f"linear_share_{row['engine']}_{case}"] = float(row["linear_share"])
    return found


def _smollm2() -> str:
    from tests.helpers import models

    return str(models.smollm2())


if __name__ == "__main__":
    with stopped_by_signals():
        main(run, __doc__, add_arguments=add_arguments)
