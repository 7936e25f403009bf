"""Takes synchronisation and bounds out of the Ascend kernels, one by one, and counts who notices.

    python -m tests.ascend.mutations [kernel ...]

For each call site that the emulation offers: each side of each flag, each whole pair (set and wait
stay, but order nothing), each barrier, each bound. A mutation is caught if any case of its kernel
ends with a finding or a wrong result in any of the schedules. The happens-before check is on: if a
removed pair or barrier leaves every access ordered in every run, it was redundant in these cases,
and is listed as that, with the runs that show it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.ascend.attention_cases import FOUR_STAGE, THREE_STAGE, TWO_STAGE, make_batch, reset
from tests.ascend.attention_cases import Case as Attention
from tests.ascend.attention_launch import check, run
from tests.ascend.caches import CopyProblem, WriteProblem
from tests.ascend.emulator import EAGER, Report, Schedule, directed, random_order
from tests.ascend.gemm import Problem
from tests.ascend.running import compare_gemm, run_copy, run_gemm, run_write

Mutants = dict[str, str] | None


@dataclass(frozen=True, slots=True)
class Case:
    """A launch that can be repeated: `run` returns the report and what is wrong, if anything."""

    name: str
    run: Callable[[Schedule, Mutants], tuple[Report, str]]
    schedules: tuple[Schedule, ...]


def _schedules(cores: int, cube: bool, vector: bool) -> tuple[Schedule, ...]:
    return (EAGER, *directed(cores, cube=cube, vector=vector), *map(random_order, range(3)))


def gemm_case(problem: Problem) -> Case:
    """A SmoothGEMM problem as a case."""

    def run(schedule: Schedule, mutants: Mutants) -> tuple[Report, str]:
        report, t = run_gemm(problem, schedule, mutants)
        if not report.ok:
            return report, ""
        try:
            compare_gemm(problem, t)
        except AssertionError as error:
            return report, str(error).splitlines()[0]
        return report, ""

    cores = problem.cores * (3 if problem.mixed else 1)
    return Case(str(problem), run, _schedules(cores, cube=True, vector=problem.mixed))


def write_case(problem: WriteProblem) -> Case:
    """A KV write as a case."""
    return Case(
        str(problem),
        lambda schedule, mutants: run_write(problem, schedule, mutants),
        _schedules(problem.cores, cube=False, vector=True),
    )


def copy_case(problem: CopyProblem) -> Case:
    """A block copy as a case."""
    return Case(
        str(problem),
        lambda schedule, mutants: run_copy(problem, schedule, mutants),
        _schedules(problem.cores, cube=False, vector=True),
    )


def smooth_gemm_cases() -> list[Case]:
    """Both L0C forms, ragged everything, bias, groups, few fractals per Mmad."""
    small = (16, 32, 32, 0, 2, 2)
    problems = (
        Problem("f16", (21,), 75, 90, bias=True, pad=2, tuning=small),
        Problem("f16", (21,), 75, 90, nz=True, tuning=small),
        Problem("bf16", (5, 0, 18), 70, 48, nz=True, bias=True, overshoot=4, tuning=small),
        Problem("f16", (300,), 512, 150, bias=True, tuning=(128, 256, 64, 0, 1, 1)),
        Problem("f16", (100,), 512, 150, tuning=(64, 128, 64, 0, 1, 1), cores=1),
        Problem("f16", (3,), 40, 90, tuning=(16, 48, 32, 0, 1, 1), cores=1),
        Problem("f16", (3,), 40, 41, pad=9, cores=1),
    )
    return [gemm_case(problem) for problem in problems]


def smooth_gemm_int8_cases() -> list[Case]:
    """The Fixpipe's scales, and the workspace between cube and vector cores."""
    small = (16, 32, 64, 0, 2, 2)
    problems = (
        Problem("int8_static", (37,), 75, 100, bias=True, tuning=small),
        Problem("int8_static", (70,), 200, 100, cores=1, tuning=(64, 64, 64, 0, 1, 1)),
        Problem("int8_bf16", (37,), 75, 100, bias=True, tuning=small),
        Problem("int8_f16", (150,), 300, 70, cores=1, tuning=(128, 128, 64, 0, 1, 1)),
        Problem("int8_bf16", (5, 0, 40), 50, 40, bias=True, overshoot=3, tuning=small),
        Problem("int8_bf16", (128,), 768, 40, bias=True, cores=1, tuning=(128, 256, 0, 0, 1, 1)),
    )
    return [gemm_case(problem) for problem in problems]


def kv_write_cases() -> list[Case]:
    """Several batches per core, runs, gaps, a last core with fewer tokens."""
    scattered = (5, 9, -1, 130, 131, 132, 40, 127, 128, 700, 2, 1, 0)
    problems = (
        WriteProblem(scattered, kv_heads=1, head_size=13, cores=3),
        WriteProblem(tuple(range(100, 160)), kv_heads=8, head_size=256, cores=2),
        WriteProblem(tuple(range(90, 97)), cores=4),
    )
    return [write_case(problem) for problem in problems]


def block_copy_cases() -> list[Case]:
    """More chunks than buffers on a core, and ragged ones."""
    problems = (
        CopyProblem(((0, 1), (2, 3)), key_row=1024, value_row=600, blocks=5, cores=1),
        CopyProblem(((0, 2), (1, 3)), key_row=27, value_row=1, block_size=15, cores=2),
    )
    return [copy_case(problem) for problem in problems]


def attention_case(problem: Attention) -> Case:
    """A Meta-Attention launch as a case."""
    batch = make_batch(problem)

    def repeat(schedule: Schedule, mutants: Mutants) -> tuple[Report, str]:
        reset(batch)
        report = run(batch, schedule=schedule, mutants=mutants)
        if not report.ok:
            return report, ""
        try:
            check(batch)
        except AssertionError as error:
            return report, str(error).splitlines()[0]
        return report, ""

    return Case(str(problem), repeat, _schedules(problem.cores * 3, cube=True, vector=True))


def attention_cases(form: int) -> list[Case]:
    """Several units and items per core, odd rows, more sets of rows than slots, every option."""
    base = Attention((1, 37, 5, 1), (130, 165, 400, 1), form=form, num_kv_heads=1, head_dim=64)
    short = replace(base, query_lens=(3, 20), key_lens=(140, 20), lse=True)
    wide = replace(base, query_lens=(33,), key_lens=(700,), head_dim=256, softcap=3.0)
    mixed = replace(base, query_lens=(9, 9), key_lens=(300, 9), window=100, trees=(1,), lse=True)
    empty = replace(base, query_lens=(2, 30), key_lens=(200, 30), causal=False, window=3, cores=1)
    long = replace(base, query_lens=(5, 70), key_lens=(1300, 600), group_size=2, cores=3)
    last = replace(base, query_lens=(1,), key_lens=(4500,), cores=1)
    problems = (base, short, wide, mixed, empty, long, last)
    return [attention_case(problem) for problem in problems]


def decode_cases() -> list[Case]:
    """The two-stage form: one and several heads, one page and many, split and not."""
    base = Attention((1, 1, 1), (700, 1, 129), form=TWO_STAGE, group_size=2, head_dim=64, lse=True)
    wide = replace(base, key_lens=(4500, 128, 40), num_kv_heads=1, head_dim=256, cores=1)
    split = replace(base, key_lens=(2300, 300, 4), num_kv_heads=1, cores=3, softcap=3.0)
    window = replace(base, key_lens=(500, 300, 40), group_size=3, head_dim=96, window=150, late=3)
    return [attention_case(problem) for problem in (base, wide, split, window)]


# One line per kernel.
SUITES: dict[str, Callable[[], list[Case]]] = {
    "smooth_gemm": smooth_gemm_cases,
    "smooth_gemm_int8": smooth_gemm_int8_cases,
    "kv_write": kv_write_cases,
    "block_copy": block_copy_cases,
    "meta_attention_three_stage": lambda: attention_cases(THREE_STAGE),
    "meta_attention_four_stage": lambda: attention_cases(FOUR_STAGE),
    "meta_attention_two_stage": decode_cases,
}

# Kind of a site and mutation -> class, as the report names it.
CLASSES = {
    ("set", "drop"): "one side of a flag",
    ("wait", "drop"): "one side of a flag",
    ("set", "neutral"): "flag pair",
    ("cross_set", "drop"): "one side of a cross-core flag",
    ("cross_wait", "drop"): "one side of a cross-core flag",
    ("cross_set", "neutral"): "cross-core pair",
    ("barrier", "drop"): "barrier",
    ("sync_all", "drop"): "barrier over cores",
    ("clean", "drop"): "cache line written back",
    ("bound", "drop"): "bound",
}
# What the happens-before check can prove redundant: order alone, no value and no balance.
ORDERS = {"flag pair", "cross-core pair", "barrier", "barrier over cores"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one mutation. `proof` says why a redundant one is redundant."""

    site: str
    mutation: str
    kind: str
    caught_by: str = ""
    proof: str = ""


@dataclass(slots=True)
class Tally:
    """Outcomes of one class."""

    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def caught(self) -> int:
        return sum(bool(o.caught_by) for o in self.outcomes)

    @property
    def redundant(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.proof]

    @property
    def missed(self) -> list[Outcome]:
        return [o for o in self.outcomes if not o.caught_by and not o.proof]

    @property
    def total(self) -> int:
        """Mutations that ought to be caught."""
        return len(self.outcomes) - len(self.redundant)


def sites_of(cases: list[Case]) -> dict[str, tuple[str, list[Case]]]:
    """Kind of each site and the cases that reach it; every unmutated run must be right."""
    found: dict[str, tuple[str, list[Case]]] = {}
    for case in cases:
        for schedule in case.schedules:
            report, wrong = case.run(schedule, None)
            if not report.ok or wrong:
                raise AssertionError(f"{case.name}, {schedule}: {report.message or wrong}")
        for site in report.sites:
            if site.hits:
                found.setdefault(site.key, (site.kind, []))[1].append(case)
    return found


def try_mutation(site: str, mutation: str, kind: str, cases: list[Case]) -> Outcome:
    """Runs the cases with one mutation until one notices."""
    runs = 0
    for case in cases:
        for schedule in case.schedules:
            report, wrong = case.run(schedule, {site: mutation})
            runs += 1
            if not report.ok:
                return Outcome(site, mutation, kind, caught_by=f"{report.api}: {report.rule}")
            if wrong:
                return Outcome(site, mutation, kind, caught_by=wrong)
    if CLASSES[kind, mutation] in ORDERS:
        proof = f"every access stays ordered without it ({runs} runs, {len(cases)} cases)"
        return Outcome(site, mutation, kind, proof=proof)
    return Outcome(site, mutation, kind)


def run_suite(cases: list[Case]) -> dict[str, Tally]:
    """All mutations of a kernel, by class."""
    tallies: dict[str, Tally] = {}
    for site, (kind, reached) in sorted(sites_of(cases).items()):
        for mutation in ("drop", "neutral"):
            name = CLASSES.get((kind, mutation))
            if name is not None:
                outcome = try_mutation(site, mutation, kind, reached)
                tallies.setdefault(name, Tally()).outcomes.append(outcome)
    return tallies


def print_suite(name: str, tallies: dict[str, Tally]) -> None:
    """Counts per class, then what was not caught and why."""
    print(f"{name}:")
    for kind, tally in sorted(tallies.items()):
        more = f", {len(tally.redundant)} more proven redundant" if tally.redundant else ""
        print(f"  {kind}: caught {tally.caught} of {tally.total}{more}")
        for outcome in tally.redundant:
            print(f"    redundant  {outcome.site}: {outcome.proof}")
        for outcome in tally.missed:
            print(f"    MISSED     {outcome.site} ({outcome.mutation})")


def main(arguments: list[str]) -> int:
    """Runs the named suites, or all; 1 if something was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernels", nargs="*", help=f"of {', '.join(SUITES)}; default: all")
    names = parser.parse_args(arguments).kernels or list(SUITES)
    total: dict[str, Tally] = {}
    for name in names:
        tallies = run_suite(SUITES[name]())
        print_suite(name, tallies)
        for kind, tally in tallies.items():
            total.setdefault(kind, Tally()).outcomes.extend(tally.outcomes)
    print("all:")
    for kind, tally in sorted(total.items()):
        print(f"  {kind}: caught {tally.caught} of {tally.total}")
    return int(any(tally.missed for tally in total.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
