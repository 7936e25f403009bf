"""The comparator itself: each way to be wrong makes it fail, each way to be right does not."""

import numpy as np
import pytest
import torch

from tests.helpers.compare import assert_close

NAN, INF = float("nan"), float("inf")


def check(actual: object, expected: object, **options: bool) -> None:
    assert_close(
        torch.tensor(actual), torch.tensor(expected), atol=0.1, rtol=0.01, name="x", **options
    )


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ([1.0, NAN], [1.0, 2.0]),  # NaN where the reference is finite
        ([1.0, 2.0], [1.0, NAN]),
        ([1.0, INF], [1.0, 2.0]),
        ([1.0, 2.0], [1.0, INF]),
        ([INF], [-INF]),
        ([INF], [NAN]),
        ([NAN], [INF]),
        ([1.2], [1.0]),  # beyond atol + rtol * |expected|
        ([99.0], [101.0]),
        ([1e30], [0.0]),
    ],
)
def test_wrong_values_fail(actual: list[float], expected: list[float]) -> None:
    with pytest.raises(AssertionError, match=r"1 of \d elements differ"):
        check(actual, expected)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ([1.0], [1.0]),
        ([1.1], [1.0]),
        ([100.0], [101.0]),
        ([NAN, 1.0], [NAN, 1.0]),
        ([INF, -INF], [INF, -INF]),
    ],
)
def test_right_values_pass(actual: list[float], expected: list[float]) -> None:
    check(actual, expected)


def test_shape_and_dtype_fail() -> None:
    with pytest.raises(AssertionError, match=r"shape \(1,\), expected \(1, 1\)"):
        check([1.0], [[1.0]])
    with pytest.raises(AssertionError, match=r"dtype torch.int64, expected torch.float32"):
        check([1], [1.0])
    check([1], [1.0], check_dtype=False)


def test_broadcastable_shapes_are_not_equal() -> None:
    with pytest.raises(AssertionError, match="shape"):
        check([1.0, 1.0], [1.0])


def test_empty_comparison_fails_unless_allowed() -> None:
    with pytest.raises(AssertionError, match="nothing to compare"):
        check([], [])
    check([], [], allow_empty=True)


def test_numpy_and_low_precision() -> None:
    assert_close(np.ones(3, np.float32), np.ones(3, np.float32), atol=0, rtol=0)
    half = torch.full((3,), 1.0, dtype=torch.bfloat16)
    assert_close(half, half.clone(), atol=0, rtol=0)
    changed = half.clone()
    changed[2] = 1.0078125
    with pytest.raises(AssertionError, match=r"\(2,\): 1.0, expected 1.0078125"):
        assert_close(half, changed, atol=0, rtol=0)
