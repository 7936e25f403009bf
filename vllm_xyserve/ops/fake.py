"""Fake (meta) implementations of the native operations, for torch.compile and export.

They check shapes and dtypes as the kernels do and touch no data. Registered when the library is
loaded, since they refer to its operations.
"""

import torch

from vllm_xyserve.ops.checks import check_silu_and_mul


def _silu_and_mul(out: torch.Tensor, x: torch.Tensor) -> None:
    check_silu_and_mul(out, x)


def register() -> None:
    """Attach the fakes to the operations of the loaded library; called once, by `native.load`."""
    torch.library.register_fake("xyserve::silu_and_mul", _silu_and_mul)
