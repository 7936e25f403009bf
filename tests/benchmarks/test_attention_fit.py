"""The fit of the planner's costs, on made-up times."""

import numpy as np
import pytest

from benchmarks.attention import CASES, SMALL
from benchmarks.attention_fit import fit, terms

COUNTS = np.array([terms(SMALL, rows) for rows in CASES.values()])


def test_rates_behind_exact_times_are_found() -> None:
    rates = np.array([1500.0, 1 / 27, 1 / 116])
    assert fit(COUNTS, COUNTS @ rates) == pytest.approx(rates)


def test_no_factor_is_negative() -> None:
    """Times that fall with the number of tasks: the term counts as nothing."""
    times = COUNTS @ np.array([-100.0, 0.0, 1 / 80])
    assert (times > 0).all()
    found = fit(COUNTS, times)
    assert (found >= 0).all()
    assert found[0] == 0


def test_terms_are_what_the_planner_counts() -> None:
    """16 decode rows of 3 query heads on 1,024 keys: no padding, keys and values once per head."""
    tasks, num_bytes, flops = terms(SMALL, [(1, 1024)] * 16)
    keys = 16 * 1024 * SMALL.num_kv_heads
    assert tasks >= 16
    assert num_bytes == 2 * 2 * SMALL.head_size * keys
    assert flops == 4 * SMALL.head_size * keys * 3
