"""Token-level prefix hits against stock vLLM, on the CPU and with the same model and settings.

Both engines are up at once and answer the same requests in turns, from an empty cache each time.
Needs a prepared model (`python -m deploy.prepare_model`, or --model).

hit_share_of_law         hit tokens over those that the law allows, least over all workloads
agent_throughput_ratio   stock's time over ours for the agent workload, the better concurrency
agent_ttft_ratio         the same of the median time to the first token
worst_throughput_ratio   the least over all workloads and concurrencies
lookup_added_us          what a lookup of 4,000 tokens takes longer, at 10,000 children of a prefix
scheduler_step_ratio     stock's scheduler time of a step over ours, without a hit, the worst of 8
                         and 64 decodes, without new requests and with one in every eighth step
scheduler_worst_step_ratio  the same where each step has a new request
no_hit_engine_step_ratio stock's engine step of decodes over the same with what our scheduler adds
break_even_tokens        the least partial match that is worth the copy of its block
quarter_pool_hit_ratio   our hit tokens over stock's in a pool of a quarter of the working set
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import prefix_plot, prefix_workloads
from benchmarks.harness import Options, Result, Row, main
from benchmarks.prefix_engines import EngineProcess, Setting
from benchmarks.stopping import stopped_by_signals

CONCURRENCIES = (1, 8)
STAGES = ("answers", "engines", "scheduler")
BLOCK_SIZE = 128
# Roomy. SmolLM2 needs 2.8 MiB a block in bfloat16, so this is 728 blocks of 128 tokens.
KV_CACHE_BYTES = {"bfloat16": 2 << 30, "float32": 2 << 30}
# Two tokens nearer than this in log probability may change places by rounding alone: the number of
# prompt tokens in a step decides how sums are split. Ties are counted in the row "answers".
TIE_MARGIN = 1e-3
NUM_DECODES = (8, 64)
STEPS_PER_REQUEST = (0, 8, 1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, help="default: the prepared SmolLM2-135M-Instruct")
    parser.add_argument(
        "--trace",
        type=Path,
        default=prefix_workloads.EXCERPT,
        help="Mooncake trace, JSON lines (default: the excerpt that comes with the benchmarks)",
    )
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write diagrams to DIR")
    parser.add_argument(
        "--repeats",
        type=int,
        help="alternations (default 4; --quick: 2), half of them in either start order",
    )
    parser.add_argument(
        "--dtype",
        choices=tuple(KV_CACHE_BYTES),
        default="bfloat16",
        help="of the engines' model (stage engines). On a CPU without AVX-512, stock computes "
        "bfloat16 layers at a tenth of float32's speed",
    )
    parser.add_argument("--threads", type=int, help="of each engine (default: torch's choice)")
    parser.add_argument(
        "--workloads",
        nargs="+",
        choices=prefix_workloads.NAMES,
        default=list(prefix_workloads.NAMES),
    )
    parser.add_argument(
        "--stages",
        nargs="+",
        choices=STAGES,
        default=list(STAGES),
        help="default: all. answers: float32 with hits against a cold engine; engines: the "
        "workloads on both engines; scheduler: what needs no model",
    )
    parser.add_argument(
        "--options", type=json.loads, default={}, help="JSON options of the plugin (default: none)"
    )


def model_folder(given: Path | None) -> Path:
    """The model to run.

    Raises:
        SystemExit: it is not there.
    """
    cache = os.environ.get("XYSERVE_CACHE")
    if cache is None:
        user = os.environ.get("XDG_CACHE_HOME")
        cache = str((Path(user) if user else Path.home() / ".cache") / "vllm-xyserve")
    folder = given or Path(cache) / "models" / "SmolLM2-135M-Instruct"
    if not (folder / "config.json").is_file():
        raise SystemExit(
            f"no model at {folder}; run 'python -m deploy.prepare_model' or give --model PATH"
        )
    return folder.absolute()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Bench:
    """What the parts of a run share."""

    options: Options
    model: Path

    @property
    def extra(self) -> argparse.Namespace:
        return self.options.extra

    @property
    def repeats(self) -> int:
        repeats: int = self.extra.repeats or (2 if self.options.quick else 4)
        return repeats

    def setting(
        self, name: str, dtype: str, ours: bool, want_margins: bool = False, **more: Any
    ) -> Setting:
        llm = {
            "model": str(self.model),
            "dtype": dtype,
            "block_size": BLOCK_SIZE,
            "kv_cache_memory_bytes": KV_CACHE_BYTES[dtype],
            "max_model_len": 8192,
            "skip_tokenizer_init": True,
            "disable_log_stats": True,
            "seed": 0,
            **more,
        }
        options = self.extra.options if ours else None
        return Setting(f"{name} {dtype}", options, llm, want_margins, self.extra.threads)

    def run(self, engine: EngineProcess, workload: str, concurrency: int, **more: Any) -> Any:
        arguments = {
            "workload": workload,
            "concurrency": concurrency,
            "quick": self.options.quick,
            "trace": str(self.extra.trace.absolute()),
            "brief": None,
            **more,
        }
        return engine.ask("run", **arguments)


def check_answers(bench: Bench) -> Row:
    """Compare greedy answers in float32 with hits and without any prefix cache.

    Raises:
        AssertionError: an answer differs, or nothing was a hit, so that nothing was compared.
    """
    say("checking answers in float32 ...")
    names = bench.extra.workloads[:2] if bench.options.quick else bench.extra.workloads
    num_sessions, num_turns = (10, 2) if bench.options.quick else (16, 4)
    brief = {"num_sessions": num_sessions, "num_turns": num_turns, "num_generated": 12}
    num_requests = num_ties = hits = 0
    with ExitStack() as stack:
        cold = bench.setting(
            "cold", "float32", ours=False, want_margins=True, enable_prefix_caching=False
        )
        peer = stack.enter_context(EngineProcess(cold))
        ours = stack.enter_context(
            EngineProcess(bench.setting("ours", "float32", ours=True, want_margins=True))
        )
        for name in names:
            for concurrency in CONCURRENCIES[-1:] if bench.options.quick else CONCURRENCIES:
                got = bench.run(ours, name, concurrency, brief=brief)
                expected = bench.run(peer, name, 1, brief=brief)
                num_ties += compare(got["answers"], expected["answers"], f"{name}@{concurrency}")
                num_requests += got["num_requests"]
                hits += got["hit_tokens"]
    if not hits and set(names) - {"unique"}:
        raise AssertionError("no request of the check was a hit: the comparison says nothing")
    return {"name": "answers", "requests": num_requests, "ties": num_ties, "hit_tokens": hits}


def compare(got: Sequence[Any], expected: Sequence[Any], where: str) -> int:
    """Compare answers ``[session, turn, tokens, margins]``; returns the sessions with a tie.

    A session that parts at two tokens of the same probability has another history from there on.

    Raises:
        AssertionError: tokens differ where the model had a preference, or requests are missing.
    """
    if [a[:2] for a in got] != [a[:2] for a in expected] or not got:
        raise AssertionError(f"{where}: {len(got)} answers, {len(expected)} expected")
    tied: set[int] = set()
    for (session, turn, tokens, margins), (_, _, right, right_margins) in zip(
        got, expected, strict=True
    ):
        if session in tied or tokens == right:
            continue
        at = next(i for i, pair in enumerate(zip(tokens, right, strict=True)) if len({*pair}) > 1)
        if min(margins[at], right_margins[at]) > TIE_MARGIN:
            raise AssertionError(
                f"{where}: session {session}, turn {turn}: token {at} is {tokens[at]}, not "
                f"{right[at]}, by margins of {margins[at]:.4g} and {right_margins[at]:.4g}"
            )
        tied.add(session)
    return len(tied)


Runs = dict[str, list[Any]]


def run_pair(
    bench: Bench, engines: dict[str, EngineProcess], name: str, concurrency: int, runs: Runs
) -> float:
    """One workload at one concurrency, both engines in turns; the CPU seconds of who waited."""
    idle_s = 0.0
    for repeat in range(-(-bench.repeats // 2)):
        order = list(engines) if repeat % 2 == 0 else list(engines)[::-1]
        for side, other in zip(order, order[::-1], strict=True):
            before = engines[other].cpu_s()
            runs[side].append(bench.run(engines[side], name, concurrency))
            idle_s += engines[other].cpu_s() - before
    return idle_s


def pair_row(name: str, concurrency: int, runs: Runs, idle_s: float) -> Row:
    """Medians over all runs of a workload at a concurrency."""
    row: Row = {
        "name": name,
        "concurrency": concurrency,
        "requests": runs["ours"][0]["num_requests"],
    }
    row |= {"prompt_tokens": runs["ours"][0]["prompt_tokens"]}
    for side, results in runs.items():
        row |= side_columns(side, results)
    row["throughput_ratio"] = ratio(row, "wall_s")
    row["ttft_ratio"] = ratio(row, "ttft_ms")
    row["ttft_p90_ratio"] = ratio(row, "ttft_p90_ms")
    row["hit_share_of_law"] = share(runs["ours"])
    row["repeats"] = len(runs["ours"])
    busy = sum(result["wall_s"] for results in runs.values() for result in results)
    row["idle_cpu_share"] = idle_s / busy
    say(
        f"{name} at {concurrency}: throughput {row['throughput_ratio']:.3f}, "
        f"time to first token {row['ttft_ratio']:.3f}, share of the law "
        f"{row['hit_share_of_law']:.4f}"
    )
    return row


def side_columns(side: str, results: Sequence[Any]) -> Row:
    """An engine's columns: medians over its runs."""
    wall_s = statistics.median(r["wall_s"] for r in results)
    tokens = results[0]["prompt_tokens"] + results[0]["generated_tokens"]
    below = [text for r in results for text in r["below_law"]]
    if side == "ours" and below:
        say(f"  below the law: {', '.join(below[:5])}")
    p90s = [statistics.quantiles(r["ttft_s"], n=10)[-1] for r in results]
    decode_us = [r["decode_step_us"] for r in results if r["decode_step_us"] is not None]
    return {
        f"{side}_computed_tokens": results[0]["prompt_tokens"] - results[0]["hit_tokens"],
        f"{side}_hit_tokens": results[0]["hit_tokens"],
        f"{side}_law_tokens": results[0]["law_tokens"],
        f"{side}_block_law_tokens": results[0]["block_law_tokens"],
        f"{side}_wall_s": wall_s,
        f"{side}_spread": (max(r["wall_s"] for r in results) - min(r["wall_s"] for r in results))
        / wall_s,
        f"{side}_ttft_ms": 1e3 * statistics.median(statistics.median(r["ttft_s"]) for r in results),
        f"{side}_ttft_p90_ms": 1e3 * statistics.median(p90s),
        f"{side}_tokens_per_s": tokens / wall_s,
        f"{side}_requests_per_s": results[0]["num_requests"] / wall_s,
        f"{side}_decode_step_us": statistics.median(decode_us) if decode_us else None,
    }


def ratio(row: Row, column: str) -> float:
    """Stock's time over ours."""
    return float(row[f"peer_{column}"] or 0) / float(row[f"ours_{column}"] or math.nan)


def share(results: Sequence[Any]) -> float:
    """Hit tokens over the law's, least over the runs; 1 where the law allows none."""
    return min(r["hit_tokens"] / r["law_tokens"] if r["law_tokens"] else 1.0 for r in results)


def measure_engines(bench: Bench) -> tuple[list[Row], Row]:
    """All workloads, and the break-even of a copy.

    Half of the runs are with engines started in reverse: of two that are up at once the one started
    later was found to be 8 to 12 % faster on the same work, whichever it was.
    """
    cells = [(name, c) for name in bench.extra.workloads for c in CONCURRENCIES]
    runs: dict[tuple[str, int], Runs] = {cell: {"peer": [], "ours": []} for cell in cells}
    idle_s = dict.fromkeys(cells, 0.0)
    copies: list[Row] = []
    for order in (("peer", "ours"), ("ours", "peer")):
        with ExitStack() as stack:
            engines = {}
            for side in order:
                setting = bench.setting(side, bench.extra.dtype, ours=side == "ours")
                engines[side] = stack.enter_context(EngineProcess(setting))
                say(f"{side}: {engines[side].facts}")
            copies.append(copy_break_even(engines))
            for cell in cells:
                idle_s[cell] += run_pair(bench, engines, *cell, runs[cell])
                say(f"{cell[0]} at {cell[1]}: {order[1]} started later, {_walls(runs[cell])}")
    rows = [pair_row(*cell, runs[cell], idle_s[cell]) for cell in cells]
    return rows, max(copies, key=lambda row: float(row["break_even_tokens"] or 0))


def _walls(runs: Runs) -> str:
    return ", ".join(f"{side} {results[-1]['wall_s']:.1f} s" for side, results in runs.items())


def copy_break_even(engines: dict[str, EngineProcess]) -> Row:
    """From how many tokens on a copied block takes less time than computing them."""
    per_token = engines["peer"].ask("prefill")["us_per_token"]
    if per_token <= 0:
        raise RuntimeError(
            f"a longer prompt took less time ({per_token:.0f} us a token): the machine is too "
            "busy, or the model too small, to tell what a token costs"
        )
    ours, peer = (engines[side].ask("copy") for side in ("ours", "peer"))
    row: Row = {
        "name": "copy of a block",
        "ours_us": ours["copy_us"],
        "peer_us": peer["copy_us"],
        "ratio": peer["copy_us"] / ours["copy_us"],
        "block_bytes": ours["block_bytes"],
        "prefill_us_per_token": per_token,
        "break_even_tokens": max(1, math.ceil(ours["copy_us"] / per_token)),
    }
    say(
        f"copying a block takes {ours['copy_us']:.0f} us (vLLM's helper {peer['copy_us']:.0f}), "
        f"computing a token {per_token:.0f} us: a partial match pays from "
        f"{row['break_even_tokens']} tokens on"
    )
    return row


def measure_scheduler(bench: Bench) -> tuple[dict[str, float], list[Row]]:
    """What can be told without a model."""
    from benchmarks import prefix_costs

    quick = bench.options.quick
    say("scheduler without a model ...")
    added_us, rows = prefix_costs.lookup(bench.options)
    num_steps = 400 if quick else 2000
    costs = [
        prefix_costs.step_cost(n, num_steps, pace)
        for n in NUM_DECODES
        for pace in STEPS_PER_REQUEST
    ]
    rows += [cost.row() for cost in costs]
    summary = {
        "lookup_added_us": added_us,
        "scheduler_step_ratio": min(
            c.stock_us / c.ours_us for c in costs if c.steps_per_request != 1
        ),
        "scheduler_worst_step_ratio": min(c.stock_us / c.ours_us for c in costs),
        "scheduler_added_us": max(c.ours_us - c.stock_us for c in costs),
    }
    pool_rows = list(quarter_pool(bench))
    ratios = [
        float(row["ours_hit_tokens"] or 0) / float(row["peer_hit_tokens"] or 0)
        for row in pool_rows
        if row["peer_hit_tokens"]
    ]
    if ratios:
        summary["quarter_pool_hit_ratio"] = min(ratios)
    return summary, rows + pool_rows


def quarter_pool(bench: Bench) -> Iterator[Row]:
    from benchmarks import prefix_costs

    for name in bench.extra.workloads:
        if name == "unique":
            continue
        workload = prefix_workloads.make(name, bench.options.quick, bench.extra.trace)
        for concurrency in CONCURRENCIES:
            yield prefix_costs.small_pool(workload, concurrency)


def summarize(rows: Sequence[Row], copies: Row, scheduler: dict[str, float]) -> dict[str, float]:
    """The flat summary."""

    def column(name: str, only: str | None = None) -> list[float]:
        return [float(row[name] or 0) for row in rows if only is None or row["name"] == only]

    summary = {
        "hit_share_of_law": min(column("hit_share_of_law")),
        "worst_throughput_ratio": min(column("throughput_ratio")),
        "break_even_tokens": float(copies["break_even_tokens"] or 0),
        "copy_ratio": float(copies["ratio"] or 0),
        **scheduler,
    }
    if agent := column("throughput_ratio", "agent"):
        summary["agent_throughput_ratio"] = max(agent)
        summary["agent_ttft_ratio"] = max(column("ttft_ratio", "agent"))
    # The shortest steps of eight decodes, where what is added weighs most.
    steps = [
        float(row["peer_decode_step_us"] or 0)
        for row in rows
        if row["concurrency"] == NUM_DECODES[0] and row["peer_decode_step_us"]
    ]
    if steps and scheduler:
        shortest = min(steps)
        summary["engine_step_us"] = shortest
        summary["no_hit_engine_step_ratio"] = shortest / (
            shortest + scheduler["scheduler_added_us"]
        )
    return summary


def run(options: Options) -> Result:
    if options.extra.plot is not None:
        prefix_plot.require()
    bench = Bench(options, model_folder(options.extra.model))
    stages = options.extra.stages
    answers = [check_answers(bench)] if "answers" in stages else []
    rows, copies = measure_engines(bench) if "engines" in stages else ([], None)
    scheduler, scheduler_rows = measure_scheduler(bench) if "scheduler" in stages else ({}, [])
    if rows and options.extra.plot is not None:
        for path in prefix_plot.plot(rows, options.extra.plot):
            say(f"wrote {path}")
    summary = summarize(rows, copies, scheduler) if copies is not None else scheduler
    copy_rows = [copies] if copies is not None else []
    return Result(summary, [*rows, *copy_rows, *scheduler_rows, *answers])


if __name__ == "__main__":
    with stopped_by_signals():
        main(run, __doc__, add_arguments=add_arguments)
