"""vllm-xyserve: XY-Serve's scheduler, attention and linear layers as a vLLM platform plugin.

Importing the package loads nothing: `vllm_xyserve.plugin` holds what vLLM loads.
"""

from vllm_xyserve._version import __version__

__all__ = ["__version__"]
