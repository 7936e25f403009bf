"""The metadata builder of Meta-Attention."""

from __future__ import annotations

from dataclasses import dataclass, fields

from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)


@dataclass
class MetaAttentionMetadata(CPUAttentionMetadata):
    """The parent's metadata, which its kernels read where a layer delegates, and ours.

    Attributes:
        num_rows: requests in the step, zero-length ones included.
    """

    num_rows: int = 0


class MetaAttentionMetadataBuilder(CPUAttentionMetadataBuilder):
    """Builds the metadata of one KV cache group, once per step."""

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> MetaAttentionMetadata:
        """Build the metadata that all layers of the group share in this step."""
        upstream = super().build(common_prefix_len, common_attn_metadata, fast_build)
        shared = {f.name: getattr(upstream, f.name) for f in fields(CPUAttentionMetadata)}
        return MetaAttentionMetadata(**shared, num_rows=common_attn_metadata.num_reqs)
