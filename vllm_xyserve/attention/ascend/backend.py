"""The Meta-Attention backend of the NPU family."""

from __future__ import annotations

import vllm_ascend.ops  # noqa: F401  # before attention_v1, which else imports it half-made
from vllm_ascend.attention.attention_v1 import AscendAttentionBackend

from vllm_xyserve.attention.ascend.builder import XyAscendMetadataBuilder
from vllm_xyserve.attention.ascend.impl import XyAscendImpl


class XyAscendBackend(AscendAttentionBackend):
    """Derives from the parent's: its runner asks for that, and a layer can delegate to it.

    KV pages keep the parent's shape and block size, so that both read the same cache.
    """

    @staticmethod
    def get_impl_cls() -> type[XyAscendImpl]:
        """The implementation that each layer constructs."""
        return XyAscendImpl

    @staticmethod
    def get_builder_cls() -> type[XyAscendMetadataBuilder]:
        """The builder that each KV cache group constructs."""
        return XyAscendMetadataBuilder
