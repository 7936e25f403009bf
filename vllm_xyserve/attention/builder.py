"""The metadata builder of Meta-Attention."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from vllm import envs
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)
from vllm.v1.kv_cache_interface import AttentionSpec

from vllm_xyserve.attention import tables
from vllm_xyserve.attention.inbox import inbox
from vllm_xyserve.plan.spec import PlanSpec

if TYPE_CHECKING:
    from vllm_xyserve.attention.impl import MetaAttentionImpl


@dataclass
class MetaAttentionMetadata(CPUAttentionMetadata):
    """The parent's metadata, which its kernels read where a layer delegates, and ours.

    Attributes:
        num_rows: requests in the step, zero-length ones included.
        tables: packed task tables of the group's native layers, uint8, by what a layer would need
            if it were causal.
    """

    num_rows: int = 0
    tables: dict[PlanSpec, torch.Tensor] = field(default_factory=dict)


class MetaAttentionMetadataBuilder(CPUAttentionMetadataBuilder):
    """Builds the metadata of one KV cache group, once per step."""

    def __init__(
        self,
        kv_cache_spec: AttentionSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        layers = get_layers_from_vllm_config(vllm_config, AttentionLayerBase, layer_names)
        impls: list[Any] = [layer.impl for layer in layers.values() if hasattr(layer, "impl")]
        native: list[MetaAttentionImpl] = [
            impl for impl in impls if getattr(impl, "path", "upstream") == "native"
        ]
        invariant = bool(envs.VLLM_BATCH_INVARIANT)
        specs: dict[PlanSpec, None] = {}
        for impl in native:
            impl.spec = tables.spec_of(impl, kv_cache_spec.dtype.itemsize, invariant)
            specs[impl.spec] = None
        self._specs = list(specs)
        inbox.specs.update(specs)
        # The parent plans for its own kernels, at 20 us a step and more.
        self._parent_plans = len(native) < len(impls) or not impls

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> MetaAttentionMetadata:
        """Build the metadata that all layers of the group share in this step."""
        common = common_attn_metadata
        if self._parent_plans:
            upstream = super().build(common_prefix_len, common, fast_build)
            shared = {f.name: getattr(upstream, f.name) for f in fields(CPUAttentionMetadata)}
        else:
            shared = _shared(common)
        metadata = MetaAttentionMetadata(**shared, num_rows=common.num_reqs)
        if self._specs:
            self._add_tables(metadata, common)
        return metadata

    def _add_tables(self, metadata: MetaAttentionMetadata, common: CommonAttentionMetadata) -> None:
        is_causal = _is_causal(common.causal)
        starts = common.query_start_loc_cpu.numpy()
        # On a CPU these are the exact lengths, and not only bounds.
        key_lens = common.seq_lens.numpy()
        for spec in self._specs:
            planned = spec if is_causal else not_causal(spec)
            metadata.tables[spec] = tables.make(planned, starts, key_lens)


def not_causal(spec: PlanSpec) -> PlanSpec:
    """The same for layers that see all keys of their request."""
    return replace(spec, geometry=replace(spec.geometry, causal=False))


def _is_causal(causal: bool | torch.Tensor) -> bool:
    if isinstance(causal, bool):
        return causal
    if causal.all():
        return True
    if not causal.any():
        return False
    raise NotImplementedError(
        "Meta-Attention computes a step whose rows are all causal or all not, and this step mixes "
        'them; set {"xyserve": {"attention": "upstream"}} for this model'
    )


def _shared(common: CommonAttentionMetadata) -> dict[str, Any]:
    """The parent's fields without its own plan."""
    return {
        "num_actual_tokens": common.num_actual_tokens,
        "max_query_len": common.max_query_len,
        "query_start_loc": common.query_start_loc,
        "max_seq_len": common.max_seq_len,
        "seq_lens": common.seq_lens,
        "block_table": common.block_table_tensor,
        "slot_mapping": common.slot_mapping,
        "scheduler_metadata": None,
        "causal": common.causal if isinstance(common.causal, bool) else False,
        "dynamic_causal": common.causal if isinstance(common.causal, torch.Tensor) else None,
    }
