"""Which Ascend chip this is, and what of ours runs on it natively.

The chip is the one that vllm-ascend was built for: it refuses to run on another, and asking the
driver would set the device up in the front end, which torch_npu allows once per process.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Chip:
    """One kind of device.

    Attributes:
        key: member of vllm-ascend's ``AscendDeviceType``.
        name: as people call it, and as the start-up line has it.
        is_native: our Ascend C kernels run on it.
        statement: what runs natively and what falls back, for the log and the doctor.
    """

    key: str
    name: str
    is_native: bool
    statement: str


_SPLIT_CORES = (
    "separate cube and vector cores (dav-2201): attention and linear layers native where the "
    "Ascend C library is built, scheduler and token-level prefix cache ours"
)
CHIPS: Final = (
    Chip("A2", "ascend910b", True, f"Atlas A2 (910B): {_SPLIT_CORES}"),
    Chip("A3", "ascend910_93", True, f"Atlas A3 (two 910B-class dies): {_SPLIT_CORES}"),
    Chip(
        "_310P",
        "ascend310p",
        False,
        "310P: one core does both cube and vector work and its KV cache has another layout; "
        "attention, linear layers, worker and the copying of KV blocks are vllm-ascend's, only the "
        "scheduler is ours (prefix hits by whole blocks)",
    ),
    Chip(
        "A5",
        "ascend950",
        False,
        "Ascend 950: another instruction set, for which there are no kernels of ours; attention "
        "and linear layers are vllm-ascend's, scheduler and token-level prefix cache ours",
    ),
)
UNKNOWN: Final = Chip(
    "", "ascend", False, "a chip that this version does not know: all kernels are vllm-ascend's"
)


def by_key(key: str) -> Chip:
    """The chip of that name in vllm-ascend, `UNKNOWN` for another."""
    return next((chip for chip in CHIPS if chip.key == key), UNKNOWN)


@functools.cache
def detect() -> Chip:
    """This installation's chip; imports vllm-ascend, and sets no device up."""
    try:
        from vllm_ascend.utils import get_ascend_device_type
    except ImportError:  # another vllm-ascend: `ascend_upstream` names what has moved
        return UNKNOWN
    return by_key(get_ascend_device_type().name)
