"""The comparator of all tests: a wrong answer, a stray NaN and an empty comparison all fail."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = torch.Tensor | npt.NDArray[Any]


def assert_close(
    actual: Array,
    expected: Array,
    *,
    atol: float,
    rtol: float,
    name: str = "result",
    check_dtype: bool = True,
    allow_empty: bool = False,
) -> None:
    """Require |actual - expected| <= atol + rtol * |expected| everywhere.

    Fails also where only one side is NaN or infinite, where infinities differ in sign, on another
    shape, on another dtype (unless `check_dtype=False`: a reference in higher precision), and if
    there is nothing to compare (unless `allow_empty=True`). Compared in fp64.
    """
    if tuple(actual.shape) != tuple(expected.shape):
        raise AssertionError(
            f"{name}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
        )
    if check_dtype and actual.dtype != expected.dtype:
        raise AssertionError(f"{name}: dtype {actual.dtype}, expected {expected.dtype}")
    got, want = _as_float64(actual), _as_float64(expected)
    if got.size == 0:
        if allow_empty:
            return
        raise AssertionError(
            f"{name}: nothing to compare, shape {got.shape}; pass allow_empty=True if meant"
        )
    wrong = ~np.isfinite(got) | ~np.isfinite(want)
    same_special = (np.isnan(got) & np.isnan(want)) | (got == want)
    error = np.zeros_like(got)
    np.subtract(got, want, out=error, where=~wrong)
    bad = np.where(wrong, ~same_special, np.abs(error) > atol + rtol * np.abs(_finite(want)))
    if bad.any():
        raise AssertionError(_report(name, got, want, bad, atol, rtol))


def _as_float64(values: Array) -> npt.NDArray[np.float64]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().to(torch.float64).numpy()
    return np.asarray(values, dtype=np.float64)


def _finite(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.where(np.isfinite(values), values, 0.0)


def _report(
    name: str,
    got: npt.NDArray[np.float64],
    want: npt.NDArray[np.float64],
    bad: npt.NDArray[np.bool_],
    atol: float,
    rtol: float,
) -> str:
    indices = [tuple(int(i) for i in index) for index in np.argwhere(bad)[:5]]
    rows = [
        f"  {index}: {float(got[index])!r}, expected {float(want[index])!r}" for index in indices
    ]
    head = f"{name}: {int(bad.sum())} of {bad.size} elements differ ({atol=}, {rtol=}); first:"
    return "\n".join([head, *rows])
