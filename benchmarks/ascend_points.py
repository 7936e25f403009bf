"""Published times of kernels on a 910B: what the model is fitted to, and what it is checked on.

Every point belongs to one list only. All times in microseconds, all by Huawei or users of its
repositories; docs/ascend-model.md names the pages. None was measured by this project.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vllm_xyserve.plan.ascend import chip, predict
from vllm_xyserve.plan.ascend.chip import Chip, Memory
from vllm_xyserve.plan.ascend.counts import Form, Heads, LinearTile, linear_tile
from vllm_xyserve.plan.ascend.predict import Linear, Tiles


@dataclass(frozen=True, slots=True)
class Point:
    """A published time. source: a key of the table in docs/ascend-model.md."""

    name: str
    source: str
    family: str
    us: float

    def predict_us(self, memory: Memory) -> float:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class AttentionPoint(Point):
    """One head of 128, fp16, no mask: queries x keys, 128 queries per tile, 910B2."""

    queries: int
    keys: int

    def predict_us(self, memory: Memory) -> float:
        num_tiles = -(-self.queries // 128)
        core = np.arange(num_tiles) % chip.B2.num_cores
        order = np.argsort(core, kind="stable")
        rows = np.minimum(128.0, self.queries - 128.0 * np.arange(num_tiles))[order]
        tiles = Tiles(
            core=core[order].astype(np.int64),
            rows=rows,
            keys=np.full(num_tiles, float(self.keys)),
            num_heads=np.ones(num_tiles),
            # Repeated on the same inputs, which are smaller than the second-level cache.
            cold=np.zeros(num_tiles),
            is_split=np.zeros(num_tiles, dtype=bool),
        )
        # That kernel's reference step; ours takes 512 keys at a time.
        per_step = np.full(num_tiles, 256.0)
        seconds = predict.attention_seconds(
            chip.B2, memory, Form.FOUR_STAGE, Heads(128), tiles, None, per_step
        )
        return 1e6 * seconds


@dataclass(frozen=True, slots=True)
class LinearPoint(Point):
    """One product in tiles of 128 x 256."""

    layer: Linear
    device: Chip
    tile: LinearTile

    def predict_us(self, memory: Memory) -> float:
        return 1e6 * predict.linear_layer_seconds(
            self.device, memory, self.layer, self.tile, is_cold=False, cuts_last=False
        )


def _square(us: dict[int, float]) -> list[Point]:
    return [
        AttentionPoint(f"attention {s} x {s}", "PTO-FA", "attention", t, s, s)
        for s, t in us.items()
    ]


def _few(us: dict[tuple[int, int], float]) -> list[Point]:
    return [
        AttentionPoint(f"attention {q} x {k}", "PTO-JIT", "attention", t, q, k)
        for (q, k), t in us.items()
    ]


def _gemm(
    source: str, device: Chip, us: dict[tuple[int, int, int], float], element: int, out: int
) -> list[Point]:
    return [
        LinearPoint(
            f"{'int8' if element == 1 else 'fp16'} {m} x {n} x {k}",
            source,
            "linear",
            t,
            Linear(m, n, k, element, out),
            device,
            linear_tile(128, 256),
        )
        for (m, n, k), t in us.items()
    ]


FIT: list[Point] = [
    *_square({1024: 20.960, 4096: 88.902, 16384: 909.058}),
    *_few(
        {
            (128, 1024): 19.200,
            (128, 4096): 38.317,
            (256, 1024): 18.604,
            (256, 4096): 39.838,
            (512, 1024): 18.603,
            (512, 4096): 41.475,
            (1024, 1024): 19.439,
            (1024, 4096): 43.127,
            (2048, 1024): 23.424,
            (2048, 4096): 59.690,
        }
    ),
    *_gemm("PTO-GEMM", chip.B1, {(1536,) * 3: 38.8, (6144,) * 3: 1506.0}, 2, 4),
    *_gemm("CATLASS-int8", chip.B3, {(128, 256, 1024): 18.6, (128, 256, 16384): 78.5}, 1, 2),
]

CHECK: list[Point] = [
    *_square({2048: 32.461, 8192: 292.626, 32768: 3262.645}),
    *_few(
        {
            (128, 2048): 23.420,
            (128, 8192): 68.778,
            (256, 2048): 23.939,
            (256, 8192): 71.212,
            (512, 2048): 24.787,
            (512, 8192): 74.903,
            (1024, 2048): 26.221,
            (1024, 8192): 76.855,
            (2048, 2048): 36.055,
            (2048, 8192): 107.780,
        }
    ),
    *_gemm("PTO-GEMM", chip.B1, {(3072,) * 3: 206.7, (7680,) * 3: 3168.0}, 2, 4),
    *_gemm("CATLASS-int8", chip.B3, {(128, 256, 4096): 33.0}, 1, 2),
    *_gemm("CATLASS-fp16", chip.B2, {(4096, 4096, 8000): 1231.0}, 2, 2),
    *_gemm("A2-example", chip.B1, {(8192,) * 3: 4082.0}, 2, 2),
]
