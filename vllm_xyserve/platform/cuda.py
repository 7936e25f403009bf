"""The CUDA family: on vLLM's CUDA platform. Attention and linear are the parent's for now."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from vllm_xyserve.platform.common import ENV_VARS, XyPlatformMixin

if TYPE_CHECKING:
    from vllm.platforms.interface import Platform


@functools.cache
def platform_class() -> type[Platform]:
    """``XyCudaPlatform``, derived from vLLM's CUDA platform class."""
    from vllm.platforms.cuda import CudaPlatform

    class XyCudaPlatform(XyPlatformMixin, CudaPlatform):
        """The xyserve platform on CUDA."""

        family = "cuda"
        additional_env_vars = [*CudaPlatform.additional_env_vars, *ENV_VARS]  # noqa: RUF012

    return XyCudaPlatform
