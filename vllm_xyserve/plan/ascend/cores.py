"""Many cores at work at once: each has its list, all share the bandwidth of the chip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from vllm_xyserve.plan.ascend.chip import Array

# Demands that differ by less are taken as one.
ALIKE: Final = 0.02


@dataclass(frozen=True, slots=True)
class Work:
    """Tasks in the order of their cores' lists, one element each.

    core: int64, whose list. seconds: alone on the chip. l2_bytes: everything read and written.
    hbm_bytes: what of it the second-level cache cannot serve.
    """

    core: npt.NDArray[np.int64]
    seconds: Array
    l2_bytes: Array
    hbm_bytes: Array


def makespan(work: Work, num_cores: int, l2_bytes_per_s: float, hbm_bytes_per_s: float) -> float:
    """Seconds until the last core has finished its list.

    Tasks that run at the same time share each bandwidth fairly: nobody gets more than it asks for,
    and those that ask for more than their share get equal ones (max-min fairness). A task that
    gets less takes longer in proportion, since its pipes overlap.
    """
    if not len(work.core):
        return 0.0
    core, seconds, demands = _stretches(work)
    begin = np.searchsorted(core, np.arange(num_cores + 1))
    limits = (l2_bytes_per_s, hbm_bytes_per_s)
    at, end = begin[:-1].copy(), begin[1:]
    left = np.zeros(num_cores)
    active = at < end
    left[active] = seconds[at[active]]
    now = 0.0
    while active.any():
        running = np.flatnonzero(active)
        speed = np.ones(len(running))
        for demand, limit in zip(demands[:, at[running]], limits, strict=True):
            np.minimum(speed, _fair_speed(demand, limit), out=speed)
        step = float((left[running] / speed).min())
        now += step
        left[running] -= step * speed
        # Tasks of equal cost end together; rounding must not make an event of each.
        done = running[left[running] <= 1e-9 * seconds[at[running]]]
        at[done] += 1
        active[done] = at[done] < end[done]
        more = done[active[done]]
        left[more] = seconds[at[more]]
    return now


def _stretches(work: Work) -> tuple[npt.NDArray[np.int64], Array, Array]:
    """Core, seconds and demands [2, n], alike neighbours joined: how fast a core gets on depends on
    its demands, not on where a task ends.
    """
    order = np.argsort(work.core, kind="stable")
    core, seconds = work.core[order], np.maximum(work.seconds[order], 1e-12)
    amounts = np.stack([work.l2_bytes[order], work.hbm_bytes[order]])
    demands = amounts / seconds
    before, after = demands[:, :-1], demands[:, 1:]
    differ = (np.abs(after - before) > ALIKE * np.maximum(after, before)).any(axis=0)
    starts = np.flatnonzero(np.concatenate(([True], differ | (core[1:] != core[:-1]))))
    joined = np.add.reduceat(seconds, starts)
    return core[starts], joined, np.add.reduceat(amounts, starts, axis=1) / joined


def _fair_speed(demand: Array, limit: float) -> Array:
    """Share of its demand that each task gets of a bandwidth, max-min fair. [num_tasks]."""
    if demand.sum() <= limit:
        return np.ones_like(demand)
    rising = np.sort(demand)
    # With the k smallest demands met in full, the others get `shares[k]` each.
    served = np.concatenate(([0.0], np.cumsum(rising)[:-1]))
    shares = (limit - served) / np.arange(len(rising), 0, -1)
    share = shares[np.argmax(rising > shares)]
    speed: Array = np.minimum(1.0, share / np.maximum(demand, 1e-300))
    return speed
