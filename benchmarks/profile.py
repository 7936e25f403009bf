"""Where a decode step, a prefill step and a start of the server go, for stock vLLM and ours.

Each server is put to pure decoding (8 requests that generate) and to pure prefill (prompts of 512
tokens, one after the other, of which one token is asked) while py-spy samples the stacks of all its
processes. A sample belongs to the innermost frame that a rule knows (`profiling.shares`).

summary: SERVER_decode_step_ms, SERVER_prefill_step_ms   medians as a client sees them
         SERVER_decode_CATEGORY, SERVER_prefill_CATEGORY  shares of the step, together 1
         SERVER_startup_s, PROCESS_import_s               unless --steps

Stacks go to benchmarks/results/ for https://www.speedscope.app. Needs py-spy and the right to read
other processes' stacks (root, or kernel.yama.ptrace_scope=0).
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import harness, serve
from benchmarks.harness import Options, Result, Row
from benchmarks.prefix_workloads import Session, Turn
from benchmarks.profiling import pyspy, shares, startup
from benchmarks.serving.client import Client, Load, Sample
from benchmarks.serving.servers import VARIANTS, Server, Settings, running
from benchmarks.serving.text import Text
from benchmarks.serving.workloads import Traffic
from benchmarks.stopping import stopped_by_signals

NUM_DECODES, DECODE_PROMPT_LEN, PREFILL_LEN = 8, 64, 512
# Steps that are timed without the sampler, at most and in about so many seconds: stock's prefill
# takes 11 s where it has no kernel for bfloat16. The first of each kind set kernels up.
_WARM_STEPS, _TIMED_STEPS, _LEAST_STEPS, _TIMED_S = 3, 40, 3, 20.0
# The sampler needs a moment to attach; the load must last until it is done.
_ATTACH_S = 4
_SERVERS = ("stock", "xyserve", "native")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Beside the common ones."""
    parser.add_argument("--servers", nargs="+", choices=list(VARIANTS), default=list(_SERVERS))
    parser.add_argument("--steps", action="store_true", help="only decode and prefill steps")
    parser.add_argument("--startup", action="store_true", help="only the start of the server")
    parser.add_argument("--compiled", action="store_true", help="torch.compile instead of eager")
    parser.add_argument("--model", help="folder (default: the demo model of `make setup`)")
    parser.add_argument("--seconds", type=int, help="of sampling (default 15, quick 6)")
    parser.add_argument("--rate", type=int, default=100, help="samples per second")
    parser.add_argument("--out", type=Path, default=serve.RESULTS, help="folder of the results")


def run(options: Options) -> Result:
    """Profile steps, then starts."""
    extra = options.extra
    settings = Settings(model=extra.model or serve._demo_model(), eager=not extra.compiled)
    extra.out.mkdir(parents=True, exist_ok=True)
    (extra.out / "logs").mkdir(exist_ok=True)
    rows: list[Row] = []
    if extra.steps or not extra.startup:
        pyspy.find()
        for name in extra.servers:
            rows += steps(name, settings, options)
    starts: list[dict[str, Any]] = []
    if extra.startup or not extra.steps:
        starts = startups(settings, options)
    summary = {**summary_of_steps(rows), **summary_of_starts(starts)}
    rows += [row for found in starts for row in start_rows(found)]
    whole = {"summary": summary, "rows": rows, "starts": starts, "machine": harness.machine()}
    path = extra.out / f"profile-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(whole, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    say(f"all of it: {path}")
    return Result(summary, rows)


def steps(name: str, settings: Settings, options: Options) -> list[Row]:
    """Shares of both kinds of step on one server."""
    extra = options.extra
    seconds = extra.seconds or (6 if options.quick else 15)
    tokenizer = Path(settings.model) / "tokenizer.json"
    rows = []
    say(f"starting {name}")
    with running(VARIANTS[name], settings, extra.out / "logs" / f"profile-{name}.log") as server:
        client = Client(server.url, tokenizer)
        for kind, make, users in (("decode", decodes, NUM_DECODES), ("prefill", prefills, 1)):
            load = Load(num_users=users)
            warm_ms = step_ms(client.run(make(tokenizer, _WARM_STEPS), load, 300)[0])
            server.reset_prefix_cache()
            num_timed = num_steps_in(_TIMED_S, warm_ms)
            median_ms = step_ms(client.run(make(tokenizer, num_timed), load, 300)[0])
            server.reset_prefix_cache()
            num_steps = math.ceil((seconds + _ATTACH_S) / (median_ms / 1e3)) + 1
            file = extra.out / f"profile-{name}-{kind}.speedscope.json"
            say(f"  {kind}: {median_ms:.1f} ms a step; sampling for {seconds} s into {file}")
            work = partial(client.run, make(tokenizer, num_steps), load, 600)
            found = sampled(server, work, seconds, extra.rate, file)
            rows += step_rows(name, kind, median_ms, found)
    return rows


def sampled(
    server: Server, work: Callable[[], object], seconds: int, rate: int, file: Path
) -> shares.Shares:
    """The shares while the sampler looks; its stacks stay in the file."""
    pyspy.record(server.process.pid, seconds, rate, file, work)
    profile = pyspy.keep_working_threads(pyspy.load(file))
    file.write_text(json.dumps(profile), encoding="utf-8")
    return shares.of_step(pyspy.stacks(profile))


def step_ms(samples: Iterable[Sample]) -> float:
    """Median gap between tokens, or median time to the first where there is only one."""
    gaps = [gap for sample in samples for gap in sample.gaps]
    return 1e3 * statistics.median(gaps or [sample.ttft for sample in samples])


def num_steps_in(seconds: float, step_ms: float) -> int:
    """How many steps to time: as many as fit, within bounds."""
    return min(_TIMED_STEPS, max(_LEAST_STEPS, round(seconds * 1e3 / step_ms)))


def decodes(tokenizer: Path, num_steps: int) -> Traffic:
    """Requests that begin together and only generate for so many steps."""
    text = Text(tokenizer, "prose", 81)
    turns = [Turn(text.draw(DECODE_PROMPT_LEN), num_steps) for _ in range(NUM_DECODES)]
    return _traffic("decode", turns)


def prefills(tokenizer: Path, num_steps: int) -> Traffic:
    """Prompts that are answered with one token: each is a step."""
    text = Text(tokenizer, "code", 82)
    return _traffic("prefill", [Turn(text.draw(PREFILL_LEN), 1) for _ in range(num_steps)])


def _traffic(name: str, turns: Sequence[Turn]) -> Traffic:
    sessions = tuple(Session((turn,)) for turn in turns)
    return Traffic(name, sessions, tuple(float(i) for i in range(len(turns))), 1.0)


def step_rows(name: str, kind: str, median_ms: float, found: shares.Shares) -> list[Row]:
    """One row per category, the largest first."""
    return [
        {
            "server": name,
            "what": kind,
            "part": part,
            "share": share,
            "ms": share * median_ms,
            "step_ms": median_ms,
            "sampled_s": found.samples_s,
        }
        for part, share in found.largest(len(found.parts))
    ]


def summary_of_steps(rows: Sequence[Row]) -> dict[str, float]:
    """Flat: step times and shares."""
    found: dict[str, float] = {}
    for row in rows:
        prefix = f"{row['server']}_{row['what']}".replace("-", "_")
        found[f"{prefix}_step_ms"] = round(float(row["step_ms"] or 0), 3)
        part = re.sub(r"\W+", "_", str(row["part"])).strip("_").lower()
        found[f"{prefix}_{part}"] = round(float(row["share"] or 0), 4)
    return found


def startups(settings: Settings, options: Options) -> list[dict[str, Any]]:
    """Starts of stock and ours, eager, and compiled with an empty and with a filled cache."""
    logs = options.extra.out / "logs"
    found = []
    for name in ("stock", "xyserve"):
        say(f"start of {name}, eager")
        found.append(startup.start(VARIANTS[name], settings, logs / f"start-{name}.log"))
    if not options.quick:
        with tempfile.TemporaryDirectory(prefix="xyserve-profile-") as cache:
            compiled = replace(
                settings,
                eager=False,
                environ=(
                    ("VLLM_CACHE_ROOT", cache),
                    ("TORCHINDUCTOR_CACHE_DIR", f"{cache}/inductor"),
                ),
            )
            for state in ("empty", "filled"):
                say(f"start of xyserve, compiled, cache {state}")
                log = logs / f"start-compiled-{state}.log"
                one = startup.start(VARIANTS["xyserve"], compiled, log)
                found.append({**one, "server": f"xyserve, compiled, cache {state}"})
    for process, module in startup.ENTRIES.items():
        say(f"imports of the {process}")
        found.append({"server": process, "packages": startup.import_times(module)})
    return found


def start_rows(found: dict[str, Any]) -> list[Row]:
    """One row per phase or package."""
    if "packages" in found:
        return [
            {"server": found["server"], "what": "import", "part": package, "s": seconds}
            for package, seconds in list(found["packages"].items())[:15]
        ]
    lengths = startup.phase_lengths(found["phases"], found["startup_s"])
    return [
        {"server": found["server"], "what": "start", "part": name, "s": seconds}
        for name, seconds in lengths.items()
    ]


def summary_of_starts(starts: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Flat: seconds to ready and of CPU, and of the imports of one process."""
    found: dict[str, float] = {}
    for one in starts:
        if "packages" in one:
            prefix = one["server"].replace(" ", "_")
            found[f"{prefix}_import_s"] = round(sum(one["packages"].values()), 2)
        else:
            prefix = re.sub(r"\W+", "_", one["server"])
            found[f"{prefix}_startup_s"] = round(one["startup_s"], 2)
            found[f"{prefix}_startup_cpu_s"] = round(one["cpu_s"], 2)
    return found


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    with stopped_by_signals():
        harness.main(run, __doc__, add_arguments=add_arguments)
