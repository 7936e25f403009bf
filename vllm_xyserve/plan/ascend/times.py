"""From counts to seconds: pipes of a core overlap, so the slowest one decides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vllm_xyserve.plan.ascend import chip
from vllm_xyserve.plan.ascend.chip import Array, Chip, Memory
from vllm_xyserve.plan.ascend.counts import Counts


@dataclass(frozen=True, slots=True)
class PipeTimes:
    """Seconds per tile that each pipe is busy. mte2, mte1, mmad and fix are the AIC's; load, vector
    and store one AIV's, which does half of the work of both."""

    mte2: Array
    mte1: Array
    mmad: Array
    fix: Array
    load: Array
    vector: Array
    store: Array

    @property
    def cube(self) -> Array:
        """The AIC: loads, moves to the cube's buffers, products and write-out overlap."""
        slowest: Array = np.maximum.reduce([self.mte2, self.mte1, self.mmad, self.fix])
        return slowest

    @property
    def vectors(self) -> Array:
        """An AIV: loads, arithmetic and stores overlap."""
        slowest: Array = np.maximum.reduce([self.load, self.vector, self.store])
        return slowest


def pipe_times(device: Chip, memory: Memory, counts: Counts) -> PipeTimes:
    """How long each pipe is busy if nothing holds it up."""
    rate = memory.rate_scale
    return PipeTimes(
        mte2=memory.gm_to_l1.seconds(counts.gm_to_l1, counts.gm_to_l1_transfer) / rate,
        mte1=(
            counts.l1_to_l0a / chip.L0A_BYTES_PER_CYCLE
            + counts.l1_to_l0b / chip.L0B_BYTES_PER_CYCLE
        )
        / device.hertz,
        mmad=counts.mmad_cycles / device.hertz,
        fix=memory.l0c_to_gm.seconds(counts.l0c_to_gm, counts.l0c_to_gm_transfer) / rate,
        load=memory.gm_to_ub.seconds(counts.gm_to_ub / 2, counts.gm_to_ub_transfer) / rate,
        vector=counts.vector_cycles / 2 / device.hertz,
        store=memory.ub_to_gm.seconds(counts.ub_to_gm / 2, counts.ub_to_gm_transfer) / rate,
    )


def tile_seconds(device: Chip, memory: Memory, counts: Counts) -> tuple[Array, Array]:
    """Time of each attention tile in a running pipeline, and what the first of a core adds.

    Cube and vector cores work on different steps at the same time, with a handshake per step. The
    first step of a core's list passes both one after the other.
    """
    pipes = pipe_times(device, memory, counts)
    steady = (
        np.maximum(pipes.cube, pipes.vectors) + counts.steps * chip.HANDSHAKE_CYCLES / device.hertz
    )
    fill = np.minimum(pipes.cube, pipes.vectors) / np.maximum(counts.steps, 1)
    return steady, fill


def linear_seconds(device: Chip, memory: Memory, counts: Counts, tile_bytes: float) -> Array:
    """Time of each output tile. Its write-out overlaps the next tile only if L0C holds two.

    tile_bytes: of the fp32 or int32 tile in L0C.
    """
    pipes = pipe_times(device, memory, counts)
    inner = np.maximum.reduce([pipes.mte2, pipes.mte1, pipes.mmad])
    overlaps = 2 * tile_bytes <= chip.L0C_BYTES
    seconds: Array = np.maximum(inner, pipes.fix) if overlaps else inner + pipes.fix
    return seconds
