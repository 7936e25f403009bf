"""Task tables: a step's attention cut into tiles, ordered by load and dealt to cores.

Pure: no torch, no vLLM. docs/task-table.md explains layout and choices.
"""

from vllm_xyserve.plan.layout import DECODE, PREFILL, STRATEGIES, VERIFY, Sections
from vllm_xyserve.plan.planner import Planner
from vllm_xyserve.plan.spec import (
    CPU,
    CPU_AVX2,
    GPU,
    NPU,
    CostModel,
    Device,
    Geometry,
    PlanSpec,
    Policy,
)
from vllm_xyserve.plan.table import PlanStatistics, check, complete, statistics, view

__all__ = [
    "CPU",
    "CPU_AVX2",
    "DECODE",
    "GPU",
    "NPU",
    "PREFILL",
    "STRATEGIES",
    "VERIFY",
    "CostModel",
    "Device",
    "Geometry",
    "PlanSpec",
    "PlanStatistics",
    "Planner",
    "Policy",
    "Sections",
    "check",
    "complete",
    "statistics",
    "view",
]
