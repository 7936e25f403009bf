"""``vllm-xyserve tune MODEL``: measures how this machine best runs the linear layers of a model."""

from vllm_xyserve.tune.command import run

__all__ = ["run"]
