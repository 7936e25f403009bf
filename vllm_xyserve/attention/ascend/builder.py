"""The metadata builder of the NPU family: the parent's metadata, with the task tables of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import vllm_ascend.ops  # noqa: F401  # before attention_v1, which else imports it half-made
from vllm import envs
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import AttentionSpec
from vllm_ascend.attention.attention_v1 import AscendAttentionMetadataBuilder, AscendMetadata

from vllm_xyserve.attention import tables
from vllm_xyserve.attention.ascend import step
from vllm_xyserve.attention.ascend.buffers import Limits, RowBuffers, TableBuffers
from vllm_xyserve.attention.ascend.impl import XyAscendImpl
from vllm_xyserve.attention.inbox import inbox
from vllm_xyserve.ops.ascend import BLOCK_SIZE
from vllm_xyserve.plan.spec import NPU, Geometry, PlanSpec, Policy


class XyAscendMetadataBuilder(AscendAttentionMetadataBuilder):
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
        native = {name: layer.impl for name, layer in layers.items() if _is_native(layer)}
        self._native = frozenset(native)
        self._buffers: dict[PlanSpec, TableBuffers] = {}
        if not native:
            return
        graph = _graph_tokens(vllm_config.compilation_config)
        scheduler = vllm_config.scheduler_config
        # A batch may be filled up to a graph's size, and by one more row.
        max_rows = max(scheduler.max_num_seqs, graph) + 2
        max_keys = vllm_config.model_config.max_model_len
        self._graph_tokens = graph
        self._rows = RowBuffers(max_rows, -(-max_keys // BLOCK_SIZE), device)
        # Without graphs of attention nothing has to stay in place: each step gets its own tensors.
        limits = Limits(max_rows, graph, max_keys) if graph else Limits(1, 1, 1)
        cores = current_platform.num_compute_units()
        for impl in native.values():
            impl.spec = spec_of(impl, kv_cache_spec.dtype.itemsize, cores)
            if impl.spec not in self._buffers:
                self._buffers[impl.spec] = TableBuffers(impl.spec, limits, device)
        inbox.specs.update(dict.fromkeys(self._buffers))

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> AscendMetadata:
        """Build the metadata that all layers of the group share in this step."""
        metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
        # Steps that are not causal (pooling, some drafters) are the parent's.
        if self._buffers and metadata.causal is True:
            setattr(metadata, step.ATTRIBUTE, self._plan(metadata, common_attn_metadata))
        return metadata

    def _plan(self, metadata: AscendMetadata, common: Any) -> step.AscendStep:
        num_rows = common.num_reqs
        starts = common.query_start_loc_cpu[: num_rows + 1].numpy()
        query_lens = np.diff(starts).astype(np.int32)
        # Bounds under asynchronous speculation; kernels clamp with the device's lengths. A row that
        # only fills a graph's batch up has queries beyond its length.
        host_lens = np.asarray(metadata.seq_lens_list[:num_rows], dtype=np.int32)
        key_lens = np.maximum(host_lens, query_lens)
        self._rows.put(common.seq_lens, query_lens, common.block_table_tensor)
        planned = {}
        for spec, buffers in self._buffers.items():
            planned[spec] = buffers.put(tables.make(spec, starts, key_lens).numpy())
            if not planned[spec].is_persistent and common.num_actual_tokens <= self._graph_tokens:
                raise RuntimeError(
                    f"the task table of a step of {num_rows} rows and "
                    f"{common.num_actual_tokens} tokens exceeds the buffers that graphs of up to "
                    f"{self._graph_tokens} tokens read; report this, and run with "
                    '{"xyserve": {"attention": "upstream"}} or --enforce-eager meanwhile'
                )
        return step.AscendStep(
            self._native,
            planned,
            self._rows.seq_lens,
            self._rows.block_table,
            int(query_lens.max(initial=0)),
            max(int(key_lens.max(initial=0)), 1),
        )


def _graph_tokens(compilation_config: Any) -> int:
    """Tokens of the largest graph that attention is captured in; piecewise ones leave it out."""
    if not compilation_config.cudagraph_mode.has_full_cudagraphs():
        return 0
    return compilation_config.max_cudagraph_capture_size or 0


def _is_native(layer: Any) -> bool:
    impl = getattr(layer, "impl", None)
    # By class: vllm-ascend makes an int8-cache layer's impl another class after construction.
    return isinstance(impl, XyAscendImpl) and impl.path == "native"


def spec_of(impl: XyAscendImpl, element_bytes: int, num_cores: int) -> PlanSpec:
    """What a layer's tables are planned for."""
    geometry = Geometry(
        num_kv_heads=impl.num_kv_heads,
        group_size=impl.num_queries_per_kv,
        head_dim=impl.head_size,
        element_bytes=element_bytes,
        window=impl.sliding_window or 0,
    )
    invariant = bool(envs.VLLM_BATCH_INVARIANT)
    return PlanSpec(NPU.with_cores(num_cores), geometry, Policy(invariant=invariant))
