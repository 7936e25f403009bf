"""Nobody may take a flag, a barrier or a bound out of a kernel unnoticed."""

import pytest

from tests.ascend.mutations import SUITES, Tally, run_suite

QUICK = ("smooth_gemm", "smooth_gemm_int8", "kv_write", "block_copy")  # 8 s together
MUST_ALL = ("one side of a flag", "one side of a cross-core flag", "cross-core pair")


def check(tallies: dict[str, Tally]) -> None:
    for kind, tally in tallies.items():
        missed = [f"{outcome.site} ({outcome.mutation})" for outcome in tally.missed]
        least = 1.0 if kind in MUST_ALL else 0.95
        assert tally.caught >= least * tally.total, (kind, missed)


@pytest.mark.parametrize("kernel", QUICK)
def test_kernels(kernel: str) -> None:
    tallies = run_suite(SUITES[kernel]())
    assert {"one side of a flag", "flag pair", "bound"} <= set(tallies)
    check(tallies)


@pytest.mark.ascend_full
@pytest.mark.parametrize("kernel", [name for name in SUITES if name not in QUICK])
def test_slower_kernels(kernel: str) -> None:
    check(run_suite(SUITES[kernel]()))
