"""The NPU family: on vllm-ascend's platform. Attention and linear layers are the parent's for now.

Imported only when the family is ``npu``: vllm-ascend's platform module needs torch_npu.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from vllm_xyserve.platform.common import ENV_VARS, XyPlatformMixin

if TYPE_CHECKING:
    from vllm.platforms.interface import Platform


@functools.cache
def platform_class() -> type[Platform]:
    """``XyNpuPlatform``, derived from vllm-ascend's platform class."""
    from vllm_ascend.platform import NPUPlatform

    class XyNpuPlatform(XyPlatformMixin, NPUPlatform):
        """The xyserve platform on Ascend."""

        family = "npu"
        additional_env_vars = [*NPUPlatform.additional_env_vars, *ENV_VARS]  # noqa: RUF012

    return XyNpuPlatform
