"""Fixtures of the native tests: fresh random inputs whose seed is shown when a test fails."""

import os
import secrets

import pytest
import torch

from vllm_xyserve.ops import native


@pytest.fixture
def rng() -> torch.Generator:
    """A generator with a fresh seed; XYSERVE_TEST_SEED repeats a failed run."""
    seed = int(os.environ.get("XYSERVE_TEST_SEED") or secrets.randbits(31))
    print(f"XYSERVE_TEST_SEED={seed}")  # pytest shows captured output of failed tests
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def needs_native() -> native.NativeStatus:
    """The loaded library, or a failure that says why it is missing and what to do."""
    status = native.load()
    if not status.loaded:
        pytest.fail(f"native library not loaded: {status.reason}; {status.mend}")
    return status
