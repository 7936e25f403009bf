"""The metadata builder called as vLLM's V2 model runner calls it.

That runner needs a Triton that no CPU has, but the function that it builds metadata with does not:
here it gets what the runner's input batch holds, rows of padding included.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm.config  # noqa: F401  before what follows: vLLM's imports are circular otherwise
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.gpu.attn_utils import build_attn_metadata
from vllm.v1.worker.utils import AttentionGroup

from tests.helpers.attention import Batch, Layer, assert_matches, make_batch
from vllm_xyserve.attention.backend import MetaAttentionBackend
from vllm_xyserve.attention.builder import MetaAttentionMetadata
from vllm_xyserve.ops import attention, registry

LAYER = Layer(num_heads=4, num_kv_heads=2, head_size=64, block_size=32)
ROWS = [(7, 40), (1, 33), (1, 1), (30, 30)]
PADDING = [(0, 0), (0, 0), (0, 0)]
NAMES = ["first", "second"]


class FakeLayer(AttentionLayerBase):
    """What the builder reads of a layer."""

    def __init__(self) -> None:
        self.impl = SimpleNamespace(  # type: ignore[assignment]
            path="native",
            num_heads=LAYER.num_heads,
            num_kv_heads=LAYER.num_kv_heads,
            num_queries_per_kv=LAYER.num_heads // LAYER.num_kv_heads,
            head_size=LAYER.head_size,
            sliding_window=-1,
        )

    def get_attn_backend(self) -> Any:
        return MetaAttentionBackend

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
def layers() -> dict[str, FakeLayer]:
    return {name: FakeLayer() for name in NAMES}


@pytest.fixture
def group(layers: dict[str, FakeLayer]) -> AttentionGroup:
    """With its builder, made as the runner makes it."""
    spec = FullAttentionSpec(
        block_size=LAYER.block_size,
        num_kv_heads=LAYER.num_kv_heads,
        head_size=LAYER.head_size,
        dtype=LAYER.dtype,
    )
    config: Any = SimpleNamespace(
        compilation_config=SimpleNamespace(static_forward_context=layers),
        model_config=SimpleNamespace(dtype=LAYER.dtype),
        parallel_config=SimpleNamespace(),
        cache_config=SimpleNamespace(cache_dtype="auto"),
    )
    made = AttentionGroup(MetaAttentionBackend, NAMES, spec, 0)
    made.create_metadata_builders(config, torch.device("cpu"))
    return made


def metadata_of(group: AttentionGroup, batch: Batch, num_reqs: int) -> dict[str, Any]:
    """As `DefaultModelState.prepare_attn` asks for it; tensors longer than the batch."""
    starts = batch.query_start_loc[: num_reqs + 1]
    return build_attn_metadata(
        attn_groups=[[group]],
        num_reqs=num_reqs,
        num_tokens=int(starts[-1]),
        query_start_loc_gpu=starts,
        query_start_loc_cpu=starts.clone(),
        max_query_len=max(query for query, _ in batch.rows),
        seq_lens=batch.seq_lens,
        max_seq_len=int(batch.seq_lens.max()),
        block_tables=[batch.block_table[:num_reqs]],
        slot_mappings=torch.zeros(1, int(starts[-1]), dtype=torch.int64),
        kv_cache_config=SimpleNamespace(kv_cache_groups=[None]),  # type: ignore[arg-type]
        seq_lens_cpu_upper_bound=batch.seq_lens,
    )


@pytest.mark.parametrize("num_padding", [0, 3])
def test_the_table_computes_the_batch(
    group: AttentionGroup, layers: dict[str, FakeLayer], num_padding: int
) -> None:
    batch = make_batch(LAYER, [*ROWS, *PADDING], torch.Generator().manual_seed(5))
    found = metadata_of(group, batch, len(ROWS) + num_padding)
    assert set(found) == set(NAMES)
    metadata = found["first"]
    assert isinstance(metadata, MetaAttentionMetadata)
    assert metadata.num_rows == len(ROWS) + num_padding
    (table,) = metadata.tables.values()
    assert layers["first"].impl.spec in metadata.tables
    out = torch.full_like(batch.query, torch.nan)
    before = sum(count for name, count in registry.calls().items() if "meta_attention" in name)
    attention.meta_attention(
        out,
        batch.query,
        batch.kv_cache,
        metadata.block_table,
        metadata.seq_lens,
        metadata.query_start_loc,
        table,
        LAYER.scale,
    )
    after = sum(count for name, count in registry.calls().items() if "meta_attention" in name)
    assert after == before + 1
    assert_matches(batch, out)


def test_layers_of_one_geometry_share_a_table(group: AttentionGroup) -> None:
    batch = make_batch(LAYER, ROWS, torch.Generator().manual_seed(6))
    found = metadata_of(group, batch, len(ROWS))
    assert found["first"] is found["second"]
    assert len(found["first"].tables) == 1
