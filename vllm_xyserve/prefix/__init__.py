"""Token-level prefix matching beside vLLM's block pool; pure: no torch, no vLLM, no clock."""

from vllm_xyserve.prefix.index import ROOT, ChildIndex, Entry, Family
from vllm_xyserve.prefix.match import common_prefix_len
from vllm_xyserve.prefix.running import RunningSnapshot, RunningSource

__all__ = [
    "ROOT",
    "ChildIndex",
    "Entry",
    "Family",
    "RunningSnapshot",
    "RunningSource",
    "common_prefix_len",
]
