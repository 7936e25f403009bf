"""What a plan depends on beside the rows: device, geometry of the heads, policy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from vllm_xyserve.plan.layout import MAX_TILE_CLASSES, STRATEGIES

MAX_INT16: Final = 2**15 - 1
MAX_INT32: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class CostModel:
    """What a tile costs on one core: task_ns + bytes / gbytes_per_s + flops / gflops.

    task_ns: fixed part of a task. gbytes_per_s: of keys and values, a core's share when all read.
    gflops: of the whole tile, padding included, as the tile computes it. partial_ns: one fp32
    partial row written and merged, beside the fixed part. A sum and not a maximum: the overlap of
    reading and computing is part of the two rates that were fitted.
    """

    task_ns: float
    gbytes_per_s: float
    gflops: float
    partial_ns: float

    def __post_init__(self) -> None:
        if self.task_ns < 0 or self.partial_ns < 0 or self.gbytes_per_s <= 0 or self.gflops <= 0:
            raise ValueError(f"times must be >= 0 and rates > 0, got {self}")


@dataclass(frozen=True, slots=True)
class Device:
    """The fixed shapes and the speed of what computes.

    num_cores: lists of the table. tile_rows: rising query-tile sizes in rows, a row being one query
    of one query head. split_quantum: keys that a kernel takes at a time, so the unit of splits.
    min_split_keys: no split is shorter. split_span: keys per split of an invariant table, a
    multiple of split_quantum.
    """

    num_cores: int
    tile_rows: tuple[int, ...]
    split_quantum: int
    cost: CostModel
    min_split_keys: int = 256
    max_splits: int = 256
    split_span: int = 2048

    def __post_init__(self) -> None:
        rising = list(self.tile_rows) == sorted(set(self.tile_rows))
        if not rising or not 1 <= len(self.tile_rows) <= MAX_TILE_CLASSES or self.tile_rows[0] < 1:
            raise ValueError(
                f"tile_rows must be 1 to {MAX_TILE_CLASSES} rising sizes, got {self.tile_rows}"
            )
        if self.num_cores < 1 or self.split_quantum < 1 or self.tile_rows[-1] > MAX_INT16:
            raise ValueError(
                f"num_cores and split_quantum must be positive and tiles at most {MAX_INT16} rows, "
                f"got {self.num_cores}, {self.split_quantum}, {self.tile_rows}"
            )
        if not 1 <= self.max_splits <= MAX_INT16 or self.min_split_keys < 1:
            raise ValueError(
                f"max_splits must be in 1..{MAX_INT16} and min_split_keys positive, got "
                f"{self.max_splits}, {self.min_split_keys}"
            )
        if self.split_span < 1 or self.split_span % self.split_quantum:
            raise ValueError(
                f"split_span must be a positive multiple of split_quantum={self.split_quantum}, "
                f"got {self.split_span}"
            )

    def with_cores(self, num_cores: int) -> Device:
        """The same device with another number of cores."""
        return replace(self, num_cores=num_cores)


# Rates by benchmarks.attention_fit. Its 9 us a task hold for whole tiles and would forbid cuts that
# pay: of 1.5, 3 and 9.6 us the first gave the shortest mixed steps on two threads (Zen 3).
# AVX-512-BF16 on Sapphire Rapids, measured on one thread:
CPU: Final = Device(
    num_cores=2,
    tile_rows=(3, 4, 6, 12, 24, 48, 96, 192),
    split_quantum=16,
    cost=CostModel(task_ns=1500, gbytes_per_s=27, gflops=116, partial_ns=40),
)
# AVX2 on Zen 3, 32 MB of third-level cache:
CPU_AVX2: Final = replace(
    CPU, cost=CostModel(task_ns=1500, gbytes_per_s=53, gflops=77, partial_ns=40)
)
# Ascend 910B per AIC, from the model in plan/ascend: a core's share of HBM, 1.6 to 1.8 TB/s over
# 24, and what the softmax lets through of a tile, 4.6 to 6.3 TFLOP/s; of some rates tried, those
# under which the model predicts the shortest steps (docs/ascend-model.md).
NPU: Final = Device(
    num_cores=24,
    tile_rows=(16, 32, 64, 128),
    split_quantum=128,
    cost=CostModel(task_ns=1000, gbytes_per_s=70, gflops=4500, partial_ns=20),
    min_split_keys=128,
)
# An H100 or H200 per SM: 4 TB/s and 700 TFLOP/s over 132.
GPU: Final = Device(
    num_cores=132,
    tile_rows=(16, 64, 128),
    split_quantum=64,
    cost=CostModel(task_ns=1000, gbytes_per_s=30, gflops=4000, partial_ns=10),
    min_split_keys=128,
)


@dataclass(frozen=True, slots=True)
class Geometry:
    """What layers must agree on to share a table.

    num_kv_heads: local ones. group_size: query heads per KV head. element_bytes: of a cached key.
    window: keys that a query sees, itself included; 0: all. Not causal: a window reaches as far to
    the right.
    """

    num_kv_heads: int
    group_size: int
    head_dim: int
    element_bytes: int = 2
    window: int = 0
    causal: bool = True

    def __post_init__(self) -> None:
        if min(self.group_size, self.head_dim, self.element_bytes) < 1 or self.window < 0:
            raise ValueError(f"sizes must be positive and window >= 0, got {self}")
        if not 1 <= self.num_kv_heads <= MAX_INT16:
            raise ValueError(f"num_kv_heads must be in 1..{MAX_INT16}, got {self.num_kv_heads}")


@dataclass(frozen=True, slots=True)
class Policy:
    """How to plan.

    dealing: one of layout.STRATEGIES. invariant: key splits lie at multiples of the device's
    split_span and nowhere else, so that a row's arithmetic does not depend on its neighbours or
    the number of cores. levels: how often tiles may be cut finer to even out the load; 0: every
    tile and KV head is one task, as in the paper.
    """

    dealing: str = "fit"
    invariant: bool = False
    levels: int = 5

    def __post_init__(self) -> None:
        if self.dealing not in STRATEGIES:
            raise ValueError(f"dealing must be one of {STRATEGIES}, got {self.dealing!r}")
        if not 0 <= self.levels <= 8:
            raise ValueError(f"levels must be in 0..8, got {self.levels}")


@dataclass(frozen=True, slots=True)
class Weights:
    """The cost model in whole picoseconds: integers, so that both planners agree to the bit.

    task: per task. key: per key and KV head. pair: per tile row, key and KV head. partial: per
    partial row.
    """

    task: int
    key: int
    pair: int
    partial: int


def weights(cost: CostModel, geometry: Geometry) -> Weights:
    """The cost model for one geometry. Keys and values are read, two products are computed."""
    key_bytes = 2 * geometry.head_dim * geometry.element_bytes
    pair_flops = 4 * geometry.head_dim
    found = Weights(
        task=round(cost.task_ns * 1e3),
        key=round(key_bytes / cost.gbytes_per_s * 1e3),
        pair=round(pair_flops / cost.gflops * 1e3),
        partial=round(cost.partial_ns * 1e3),
    )
    if max(found.task, found.key, found.pair, found.partial) > MAX_INT32:
        raise ValueError(f"a cost of {cost} exceeds {MAX_INT32} ps with {geometry}: {found}")
    return found


@dataclass(frozen=True, slots=True)
class PlanSpec:
    """Everything but the rows, with the weights worked out."""

    device: Device
    geometry: Geometry
    policy: Policy = field(default_factory=Policy)

    @property
    def weights(self) -> Weights:
        return weights(self.device.cost, self.geometry)
