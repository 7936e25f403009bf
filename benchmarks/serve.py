"""Serving, end to end: xyserve against stock vLLM on traffic like yours.

Servers with the same flags run one after the other in alternation and get the same requests over
the OpenAI API with streaming. Reported per workload and load: request and token throughput, time to
first token (ttft), time between tokens (tbt: between messages of the stream; tpot: mean per later
token), end-to-end latency (e2e), goodput, hit tokens, preemptions, start-up, peak memory, CPU time
per token. Answers are compared first, one request at a time in float32.

summary: NAME_throughput_ratio, NAME_ttft_p50_ratio, NAME_tbt_p50_ratio, NAME_tbt_p99_ratio
                       of each workload with 8 users in a closed loop, `xyserve` against stock;
                       of other servers with the server's name in front. Above 1 is better.
         harness_error stock against stock, relative: the largest of the four figures' errors
         answers_equal the share of answers that are stock's; others part where stock finds two
                       tokens equally likely. Any other difference ends the run with status 1

Results go to benchmarks/results/ as JSON and as one HTML page. A run that is broken off goes on
where it ended when it is started again with the same arguments.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Options, Result
from benchmarks.serving import report, results
from benchmarks.serving.run import Run, Scope
from benchmarks.serving.servers import ABLATION, VARIANTS, Settings
from benchmarks.serving.state import State
from benchmarks.serving.statistics import HEADLINES, Objective
from benchmarks.serving.workloads import NAMES, Maker, Traces
from benchmarks.stopping import stopped_by_signals
from vllm_xyserve import parts
from vllm_xyserve.config import XyConfig
from vllm_xyserve.ops.isa import cpu_info

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
QUICK_SERVERS = ("stock", "xyserve", "stock-again")
FULL_SERVERS = ("stock", "xyserve", "native", "stock-again")
QUICK_MINUTES, FULL_MINUTES = 5.0, 85.0
# Lengths of the quick run, on top of the workloads' own scales.
QUICK_SHRINK = 1 / 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Beside the common ones."""
    objective = Objective()
    parser.add_argument("--workloads", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--servers", nargs="+", choices=list(VARIANTS), help="stock is always in")
    parser.add_argument("--options", help="JSON: options of the plugin for the server xyserve")
    parser.add_argument("--no-ablation", action="store_true", help="(the quick run has none)")
    parser.add_argument("--no-answers", action="store_true", help="do not compare the answers")
    parser.add_argument("--repeats", type=int, help="default 3, quick 1")
    aims = f"aim (default {FULL_MINUTES:.0f}, quick {QUICK_MINUTES:.0f}); what does not fit is cut"
    parser.add_argument("--minutes", type=float, help=aims)
    parser.add_argument("--model", help="folder (default: the demo model of `make setup`)")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--compiled", action="store_true", help="torch.compile instead of eager")
    parser.add_argument("--server-args", default="", help="more for every `vllm serve`")
    parser.add_argument("--ttft", type=float, default=objective.ttft_s, help="objective, s")
    parser.add_argument("--tpot", type=float, default=objective.tpot_s, help="objective, s")
    for name in Traces.__slots__:
        text = "a whole trace instead of the excerpt"
        parser.add_argument(f"--trace-{name}", type=Path, metavar="FILE", help=text)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--fresh", action="store_true", help="throw an unfinished run away")
    parser.add_argument("--note", default="", help="for the report: what else ran meanwhile")
    parser.add_argument("--vllm", help="the vllm command (default: beside this Python)")


def run(options: Options) -> Result:
    """Measure what is missing, write the report, and return the headline figures."""
    report.require()
    extra = options.extra
    scope, settings, maker = make_scope(options), make_settings(extra), make_maker(options)
    objective = Objective(extra.ttft, extra.tpot)
    mode = "quick" if options.quick else "full"
    path = extra.out / f"unfinished-{mode}.jsonl"
    if extra.fresh:
        path.unlink(missing_ok=True)
    state = State(path, described(mode, scope, settings, maker, objective))
    began = datetime.now(UTC)
    taken = Run(scope, settings, maker, objective, state, extra.out / "logs")
    taken.whole()
    found = results.Results.of(state)
    agreements = [value for _, value in state.all("answers")]
    whole = {
        "summary": results.summary(found, agreements),
        "machine": harness.machine(),
        "note": f"{extra.note} {shlex.join(['python', '-m', 'benchmarks.serve', *sys.argv[1:]])}; "
        f"this part of the run took {(datetime.now(UTC) - began).total_seconds() / 60:.1f} min.",
        "settings": state.get("settings"),
        "plan": {**state.get("plan"), "left_out": taken.left_out},
        "agreements": agreements,
        "servers": found.servers,
        "cells": found.figures,
    }
    write(extra.out, mode, whole, found)
    path.unlink()
    shown = [row for row in results.rows(found) if row["figure"] in HEADLINES]
    return Result(whole["summary"], shown)


def make_scope(options: Options) -> Scope:
    """Servers, workloads and time of a run.

    Raises:
        SystemExit: the options of the plugin are no JSON object.
    """
    extra, quick = options.extra, options.quick
    names = extra.servers or (QUICK_SERVERS if quick else _full_servers(extra.dtype))
    variants = {name: VARIANTS[name] for name in VARIANTS if name in {"stock", *names}}
    if extra.options is not None:
        given = _json_object(extra.options)
        variants["xyserve"] = replace(VARIANTS["xyserve"], options=given, note=extra.options)
    ablation = () if quick or extra.no_ablation or extra.servers else ABLATION
    return Scope(
        quick,
        tuple(name for name in NAMES if name in extra.workloads),
        variants,
        {name: VARIANTS[name] for name in ablation},
        extra.repeats or (1 if quick else 3),
        60 * (extra.minutes or (QUICK_MINUTES if quick else FULL_MINUTES)),
        not extra.no_answers,
    )


def make_settings(extra: argparse.Namespace) -> Settings:
    """What all servers have in common."""
    settings = Settings(
        model=extra.model or _demo_model(),
        dtype=extra.dtype,
        max_model_len=extra.max_model_len,
        eager=not extra.compiled,
        arguments=tuple(shlex.split(extra.server_args)),
    )
    return settings if extra.vllm is None else replace(settings, vllm=extra.vllm)


def make_maker(options: Options) -> Maker:
    """The workloads' maker."""
    extra = options.extra
    given = {name: getattr(extra, f"trace_{name}") for name in Traces.__slots__}
    traces = Traces(**{name: path for name, path in given.items() if path is not None})
    tokenizer = Path(extra.model or _demo_model()) / "tokenizer.json"
    return Maker(tokenizer, extra.max_model_len, QUICK_SHRINK if options.quick else 1.0, traces)


def described(
    mode: str, scope: Scope, settings: Settings, maker: Maker, objective: Objective
) -> dict[str, Any]:
    """All that the figures depend on; a run can be resumed where this is the same."""
    info, machine = cpu_info(), harness.machine()
    return {
        "mode": mode,
        "workloads": list(scope.workloads),
        "servers": {n: v.options for n, v in {**scope.variants, **scope.ablation}.items()},
        "repeats": scope.repeats,
        "minutes": scope.seconds / 60,
        "server": settings.described(),
        "traces": {name: Path(getattr(maker.traces, name)).name for name in Traces.__slots__},
        "objective": asdict(objective),
        "cpu": f"{info.model}, {info.num_cores} cores",
        "versions": machine["versions"],
        "commit": _commit(),
    }


def write(folder: Path, mode: str, whole: dict[str, Any], found: results.Results) -> None:
    """The JSON file and the page, named by date."""
    name = f"serve-{mode}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    text = json.dumps(whole, indent=1, allow_nan=False)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    (folder / f"{name}.html").write_text(report.page(whole, found), encoding="utf-8")
    print(f"report: {folder / name}.html and .json", file=sys.stderr)


def _full_servers(dtype: str) -> tuple[str, ...]:
    """`native` is left out where the shipped default is the same."""
    shipped = [parts.resolve(part, XyConfig(), "cpu", dtype).path for part in parts.PARTS]
    alike = all(path == "native" for path in shipped)
    return tuple(name for name in FULL_SERVERS if not (alike and name == "native"))


def _demo_model() -> str:
    from benchmarks.linear_end_to_end import _smollm2

    return _smollm2()


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise SystemExit(f"--options must be a JSON object, got {text!r}: {error}") from error
    if not isinstance(value, dict):
        raise SystemExit(f"--options must be a JSON object, got {text!r}")
    return value


def _commit() -> str | None:
    """Of the project's tree, None outside of a repository."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return answer.stdout.strip() or None


if __name__ == "__main__":
    with stopped_by_signals("start it again to go on"):
        harness.main(run, __doc__, add_arguments=add_arguments)
