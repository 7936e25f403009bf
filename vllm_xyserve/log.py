"""Loggers below ``vllm``, so that vLLM's own handlers and levels apply to our lines."""

from __future__ import annotations

import logging


def get_logger(name: str) -> logging.Logger:
    """The logger ``vllm.xyserve.NAME``."""
    return logging.getLogger(f"vllm.xyserve.{name}")
