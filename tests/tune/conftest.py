"""Fixtures of the tests of `vllm-xyserve tune`."""

import pytest

from vllm_xyserve.ops import native


@pytest.fixture
def needs_native() -> native.NativeStatus:
    """The loaded library, or a failure that says why it is missing and what to do."""
    status = native.load()
    if not status.loaded:
        pytest.fail(f"native library not loaded: {status.reason}; {status.mend}")
    return status
