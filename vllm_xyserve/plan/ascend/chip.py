"""The Ascend 910B in numbers: cores, rates of the pipes, bandwidth of the memories.

Everything here is published by Huawei or fitted to published times; docs/ascend-model.md names the
page of each number. Nothing was measured by this project, which has no such chip.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

GIB: Final = float(2**30)
KIB: Final = 2**10

# Cycles, per core.
MAC_FRACTAL: Final = 16  # rows and columns of a fractal: one cycle per fractal of A times one of B
L0A_BYTES_PER_CYCLE: Final = 256
L0B_BYTES_PER_CYCLE: Final = 128
VECTOR_BYTES: Final = 256  # one repeat
L1_BYTES: Final = 512 * KIB
L0C_BYTES: Final = 128 * KIB
L2_BYTES: Final = 192 * KIB * KIB
CACHE_LINE: Final = 512

# One handshake between cube and vector cores (the vendor's flash-attention model, from simulator
# traces; its second value, 1,000, is fitted to rankings on hardware and too long for the times).
HANDSHAKE_CYCLES: Final = 220

# Fractals are 32 bytes deep; an fp32 product takes two passes.
FRACTAL_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Pipe:
    """A way into or out of a core. Its rate grows with the size of the single transfer.

    gib_per_s: for large transfers. half_bytes: a transfer of this size runs at half of it; 0: any
    size at full rate.
    """

    gib_per_s: float
    half_bytes: float = 0

    def seconds(self, num_bytes: Array, transfer_bytes: Array) -> Array:
        """Time for num_bytes in transfers of transfer_bytes each."""
        slower = 1 + self.half_bytes / np.maximum(transfer_bytes, 1)
        result: Array = num_bytes * slower / (self.gib_per_s * GIB)
        return result


@dataclass(frozen=True, slots=True)
class Memory:
    """One published account of how fast data moves.

    gm_to_l1, gm_to_ub, ub_to_gm, l0c_to_gm: per AIC or per AIV. l2_bytes_per_s, hbm_bytes_per_s:
    of the chip, reads and writes together. rate_scale, launch_s: what the accounts leave open,
    fitted by benchmarks.ascend_fit: a common factor on the four pipes, and a launch without its
    tiles.
    """

    name: str
    gm_to_l1: Pipe
    gm_to_ub: Pipe
    ub_to_gm: Pipe
    l0c_to_gm: Pipe
    l2_bytes_per_s: float
    hbm_bytes_per_s: float
    rate_scale: float = 1.0
    launch_s: float = 0.0

    def fitted(self, rate_scale: float, launch_us: float) -> Memory:
        """With other values for what is fitted."""
        return replace(self, rate_scale=rate_scale, launch_s=launch_us * 1e-6)


@dataclass(frozen=True, slots=True)
class Chip:
    """num_cores: AICs, each with two AIVs. hertz: of all pipes."""

    name: str
    num_cores: int
    hertz: float

    def with_cores(self, num_cores: int) -> Chip:
        return replace(self, num_cores=num_cores)


B1: Final = Chip("910B1", 24, 1.85e9)
B2: Final = Chip("910B2", 24, 1.80e9)
B3: Final = Chip("910B3", 20, 1.80e9)

_FLAT: Final = (Pipe(135.0), Pipe(100.9), Pipe(188.46), Pipe(70.0))
_SATURATING: Final = (
    Pipe(28.61, 1107),
    Pipe(247.16, 30643),
    Pipe(28.19, 1755),
    Pipe(41.25, 29104),
)
# The chip's limits are published twice, too. Which account of the pipes goes with which account of
# the chip is not said, so that there are four models; a range spans them all.
_SLOW: Final = (5.0e12, 1.6e12)
_FAST: Final = (7.0e12, 1.8e12)

PUBLISHED: Final = (
    Memory("flat-slow", *_FLAT, *_SLOW),
    Memory("flat-fast", *_FLAT, *_FAST),
    Memory("saturating-slow", *_SATURATING, *_SLOW),
    Memory("saturating-fast", *_SATURATING, *_FAST),
)

# rate_scale and microseconds of a launch, as benchmarks.ascend_fit finds them. The flat rates are
# half to two thirds of what the published kernels must reach, the saturating ones a fifth.
_FITTED: Final = ((2.031, 15.875), (1.551, 15.500), (5.086, 13.766), (5.109, 13.875))

MEMORIES: Final = tuple(
    memory.fitted(*numbers) for memory, numbers in zip(PUBLISHED, _FITTED, strict=True)
)
