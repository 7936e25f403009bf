"""The planner that callers use: native where there is a library, else NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vllm_xyserve.plan import native
from vllm_xyserve.plan.reference import plan_reference
from vllm_xyserve.plan.rows import IntLike, make_rows
from vllm_xyserve.plan.spec import Device, Geometry, PlanSpec, Policy


class Planner:
    """Plans step after step for one device and one geometry. Thread safe."""

    def __init__(self, device: Device, geometry: Geometry, policy: Policy | None = None) -> None:
        self.spec = PlanSpec(device, geometry, policy or Policy())
        self._native = native.NativePlanner(self.spec) if native.library() else None

    @property
    def is_native(self) -> bool:
        return self._native is not None

    def plan(
        self,
        query_lens: IntLike,
        key_lens: IntLike,
        kinds: IntLike | None = None,
        mask_offsets: IntLike | None = None,
        step: int = 0,
    ) -> npt.NDArray[np.uint8]:
        """The packed task table of one step, uint8 [num_bytes] on a 64-byte boundary.

        query_lens, key_lens: per plan row, tokens of this step and context with them. kinds:
        PREFILL, DECODE or VERIFY per row, a statistic. mask_offsets: place of a row's tree mask, -1
        for none. step: any number that tells tables apart. Raises ValueError for impossible rows.
        """
        rows = make_rows(query_lens, key_lens, kinds, mask_offsets)
        if self._native is not None:
            return self._native.plan(rows, step)
        return plan_reference(self.spec, rows, step)
