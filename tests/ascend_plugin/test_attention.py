"""Builder and implementation on real vllm-ascend classes, compared with its own kernels' twin.

Each step runs twice, on a layer of ours and on one of vllm-ascend's, from the same inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.ascend_plugin import world
from vllm_xyserve import plan

pytestmark = pytest.mark.usefixtures("npu")

BLOCKS, BLOCK = 64, 128
HEADS, KV_HEADS, DIM = 4, 2, 64


@dataclass
class Case:
    """Rows of a step: queries and context of each, and the state that the runner would give it."""

    state: str
    query: tuple[int, ...]
    keys: tuple[int, ...]


CASES = {
    "prefill without a cache": Case("PrefillNoCache", (130, 1, 17), (130, 1, 17)),
    "prefill with a hit off the block grid": Case("PrefillCacheHit", (60, 9), (201, 136)),
    "decode": Case("DecodeOnly", (1, 1, 1, 1), (1, 128, 129, 1500)),
    "mixed": Case("ChunkedPrefill", (1, 200, 1, 33), (900, 456, 5, 1000)),
    "verify": Case("SpecDecoding", (5, 5, 5), (300, 5, 133)),
}


@pytest.fixture(scope="module")
def config() -> Iterator[Any]:
    with world.using(world.make_config(world.NATIVE)) as found:
        yield found


class Layer(torch.nn.Module):
    """What an implementation and a builder see of vLLM's attention layer."""

    _k_scale_float = _v_scale_float = 1.0

    def __init__(self, name: str, impl: Any) -> None:
        super().__init__()
        self.layer_name, self.impl = name, impl


def make_impl(cls: Any, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "num_heads": HEADS, "head_size": DIM, "scale": DIM**-0.5, "num_kv_heads": KV_HEADS,
        "alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": "auto",
        "logits_soft_cap": None, "attn_type": "decoder", "kv_sharing_target_layer_name": None,
    }  # fmt: skip
    return cls(**(arguments | changes))


def ours(**changes: Any) -> Any:
    from vllm_xyserve.attention.ascend.impl import XyAscendImpl

    return make_impl(XyAscendImpl, **changes)


def theirs(**changes: Any) -> Any:
    from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl

    return make_impl(AscendAttentionBackendImpl, **changes)


def make_builder(config: Any, layers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    from vllm_xyserve.attention.ascend import builder

    monkeypatch.setattr(builder, "get_layers_from_vllm_config", lambda *_: layers)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    spec = FullAttentionSpec(
        block_size=BLOCK, num_kv_heads=KV_HEADS, head_size=DIM, dtype=torch.bfloat16
    )
    made = builder.XyAscendMetadataBuilder(spec, list(layers), config, torch.device("cpu"))
    assert set(made._native) <= set(layers)
    return made


def common(case: Case, seed: int = 0, causal: bool = True) -> Any:
    from vllm_ascend.attention.attention_v1 import AscendAttentionState
    from vllm_ascend.attention.utils import AscendCommonAttentionMetadata

    rng = np.random.default_rng(seed)
    starts = torch.tensor([0, *np.cumsum(case.query)], dtype=torch.int32)
    lens = torch.tensor(case.keys, dtype=torch.int32)
    widest = -(-max(case.keys) // BLOCK)
    blocks = torch.from_numpy(
        rng.permutation(BLOCKS - 1)[: len(case.query) * widest].reshape(-1, widest) + 1
    ).to(torch.int32)
    slots = [
        int(blocks[row, at // BLOCK]) * BLOCK + at % BLOCK
        for row, (q, k) in enumerate(zip(case.query, case.keys, strict=True))
        for at in range(k - q, k)
    ]
    return AscendCommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lens,
        seq_lens_cpu=lens,
        _seq_lens_cpu=lens,
        num_reqs=len(case.query),
        num_actual_tokens=int(starts[-1]),
        max_query_len=max(case.query),
        max_seq_len=max(case.keys),
        block_table_tensor=blocks,
        slot_mapping=torch.tensor(slots, dtype=torch.int32),
        causal=causal,
        attn_state=AscendAttentionState[case.state],
    )


def caches(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """NaN wherever nothing valid was written is for the native layer; see `fill`."""
    torch.manual_seed(seed)
    shape = (BLOCKS, BLOCK, KV_HEADS, DIM)
    return torch.randn(shape).bfloat16(), torch.randn(shape).bfloat16()


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The forward context that vllm-ascend would have set."""
    import vllm_ascend.ascend_forward_context as forward_context

    from vllm_xyserve.attention.ascend import impl

    found = SimpleNamespace(
        capturing=False, is_draft_model=False, sinks=None, batch_descriptor=None
    )
    monkeypatch.setattr(forward_context, "get_forward_context", lambda: found)
    monkeypatch.setattr(impl, "get_forward_context", lambda: found)
    return found


def run(impl: Any, metadata: Any, cache: Any, tokens: int, seed: int = 2) -> torch.Tensor:
    torch.manual_seed(seed)
    query = torch.randn(tokens, HEADS, DIM).bfloat16()
    key, value = (torch.randn(tokens, KV_HEADS, DIM).bfloat16() for _ in range(2))
    out = torch.full_like(query, float("nan"))
    return impl.forward(Layer("layer", impl), query, key, value, cache, metadata, out)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_state_matches_vllm_ascends_kernels(
    config: Any, case: Case, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch_npu import _kernels

    native = ours()
    assert native.path == "native"
    metadata = make_builder(config, {"layer": Layer("layer", native)}, monkeypatch).build(
        0, common(case)
    )
    first, second = caches(), caches()
    tokens = sum(case.query)
    before = _kernels.calls["npu_fused_infer_attention_score"]
    found = run(native, metadata, first, tokens)
    assert _kernels.calls["npu_fused_infer_attention_score"] == before
    assert native.num_calls == 1
    expected = run(theirs(), metadata, second, tokens)
    assert _kernels.calls["npu_fused_infer_attention_score"] == before + 1
    world.close(found, expected)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_table_is_the_planners(
    config: Any, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = ours()
    builder = make_builder(config, {"layer": Layer("layer", native)}, monkeypatch)
    step = builder.build(0, common(case)).xy_step
    spec = native.spec
    assert (spec.device.num_cores, spec.geometry.group_size) == (24, HEADS // KV_HEADS)
    expected = plan.Planner(spec.device, spec.geometry, spec.policy).plan(case.query, case.keys)
    plan.complete(expected, np.arange(len(case.query)), np.cumsum([0, *case.query]))
    table = step.tables[spec].table.numpy()[: len(expected)]
    assert np.array_equal(table, expected)
    assert step.seq_lens[: len(case.keys)].tolist() == list(case.keys)


def test_poisoned_slots_are_inert(
    config: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["mixed"]
    native = ours()
    shared = common(case)
    metadata = make_builder(config, {"layer": Layer("layer", native)}, monkeypatch).build(0, shared)
    clean, poisoned = caches(), caches()
    valid = torch.zeros(BLOCKS * BLOCK, dtype=torch.bool)
    for row, length in enumerate(case.keys):
        at = torch.arange(length)
        valid[shared.block_table_tensor[row, at // BLOCK].long() * BLOCK + at % BLOCK] = True
    for side in poisoned:
        side.view(-1, KV_HEADS, DIM)[~valid] = float("nan")
    expected = run(native, metadata, clean, sum(case.query))
    assert torch.equal(run(ours_like(native), metadata, poisoned, sum(case.query)), expected)


def ours_like(native: Any) -> Any:
    """Another layer of the same kind, with caches of its own."""
    other = ours()
    other.spec = native.spec
    return other


def test_replays_read_the_same_addresses(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    native = ours()
    builder = make_builder(config, {"layer": Layer("layer", native)}, monkeypatch)

    def addresses(case: Case) -> list[int]:
        step = builder.build(0, common(case)).xy_step
        tables = step.tables[native.spec]
        assert tables.is_persistent
        tensors = (step.seq_lens, step.block_table, tables.table, tables.partials)
        return [tensor.data_ptr() for tensor in tensors]

    first = addresses(Case("DecodeOnly", (1,) * 15, (500,) * 15))
    assert addresses(CASES["decode"]) == first
    assert addresses(CASES["verify"]) == first


def test_a_graph_that_is_replayed_with_other_lengths(
    config: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The captured call's arguments, called again after the next step's build: what replay does."""
    from vllm_xyserve.ops import ascend as ops

    native = ours()
    builder = make_builder(config, {"layer": Layer("layer", native)}, monkeypatch)
    context.capturing = True
    context.batch_descriptor = SimpleNamespace(uniform=True)
    captured: list[tuple[Any, ...]] = []
    launch = ops.meta_attention
    monkeypatch.setattr(ops, "meta_attention", lambda *args: (captured.append(args), launch(*args)))
    cache = caches()
    case = Case("DecodeOnly", (1, 1, 1, 1), (1, 1, 1, 1))
    run(native, builder.build_for_graph_capture(common(case)), cache, 4)
    (arguments,) = captured
    assert arguments[8].decode_only
    assert arguments[8].splits
    context.capturing = False
    metadata = builder.build(0, common(CASES["decode"], seed=5))
    eager = run(native, metadata, cache, 4)
    out, query = arguments[:2]
    torch.manual_seed(2)
    query.copy_(torch.randn(4, HEADS, DIM).bfloat16())
    launch(*arguments)  # the buffers hold the new step's table, lengths and blocks
    assert torch.equal(out, eager)


def test_a_mixed_graph_is_not_captured_for_decodes_alone(
    config: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm_xyserve.attention.ascend.impl import _is_decode_only

    for uniform, capturing, longest, expected in (
        (True, True, 1, True), (False, True, 1, False), (False, False, 1, True),
        (True, True, 5, False),
    ):  # fmt: skip
        context.batch_descriptor = SimpleNamespace(uniform=uniform)
        step = SimpleNamespace(max_query_len=longest)
        assert _is_decode_only(step, capturing) is expected


def test_rows_that_fill_a_graph_up(
    config: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows than requests: lengths 0 or 1 and a query each, on the null block."""
    native = ours()
    builder = make_builder(config, {"layer": Layer("layer", native)}, monkeypatch)
    shared = common(Case("DecodeOnly", (1, 1, 1, 1), (700, 130, 1, 1)))
    alone = common(Case("DecodeOnly", (1, 1), (700, 130)))
    shared.block_table_tensor[:2] = alone.block_table_tensor
    shared.block_table_tensor[2:] = 0
    shared.slot_mapping[:2] = alone.slot_mapping
    shared.slot_mapping[2:] = -1
    shared.seq_lens = torch.tensor([700, 130, 0, 0], dtype=torch.int32)
    padded = run(native, builder.build(0, shared), caches(), 4)
    native.key_cache = None
    exact = run(native, builder.build(0, alone), caches(), 4)
    world.close(padded[:2], exact[:2], 0.0)


def test_what_falls_back(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ours(sinks=torch.zeros(HEADS)).path == "upstream"
    assert ours(attn_type="encoder_only").path == "upstream"
    assert ours(kv_cache_dtype="int8").path == "upstream"
    assert ours(head_size=80).path == "upstream"
    assert ours(num_heads=512, num_kv_heads=2).path == "upstream"
    monkeypatch.setattr(config, "quant_config", SimpleNamespace(enable_c8_quant=True))
    assert ours().path == "upstream"


def test_a_layer_that_becomes_an_int8_cache_one_is_the_parents(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm_ascend.attention.attention_v1 import AscendC8AttentionBackendImpl

    native = ours()
    native.__class__ = AscendC8AttentionBackendImpl
    builder = make_builder(config, {"layer": Layer("layer", native)}, monkeypatch)
    assert builder._native == frozenset()
    assert not hasattr(builder.build(0, common(CASES["decode"])), "xy_step")


def test_sinks_run_on_the_parents_kernel(
    config: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch_npu import _kernels

    sinks = torch.randn(HEADS)
    layer = ours(sinks=sinks)
    builder = make_builder(config, {"layer": Layer("layer", layer)}, monkeypatch)
    metadata = builder.build(0, common(CASES["mixed"]))
    before = _kernels.calls["npu_fused_infer_attention_score_v2"]
    found = run(layer, metadata, caches(), sum(CASES["mixed"].query))
    assert _kernels.calls["npu_fused_infer_attention_score_v2"] == before + 1
    world.close(found, run(theirs(sinks=sinks), metadata, caches(), len(found)), 0.0)


@pytest.mark.parametrize("why", ["not causal", "draft model"])
def test_steps_that_are_the_parents(
    config: Any, context: Any, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    from torch_npu import _kernels

    native = ours()
    builder = make_builder(config, {"layer": Layer("layer", native)}, monkeypatch)
    context.is_draft_model = why == "draft model"
    metadata = builder.build(0, common(CASES["mixed"], causal=why != "not causal"))
    before = _kernels.calls["npu_fused_infer_attention_score"]
    run(native, metadata, caches(), sum(CASES["mixed"].query))
    assert _kernels.calls["npu_fused_infer_attention_score"] == before + 1
    assert native.num_calls == 0


def test_the_parent_updates_its_own_captured_layers_alone(
    config: Any, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl

    from vllm_xyserve.attention.ascend.impl import XyAscendImpl

    layers = {
        "layers.0": Layer("layers.0", ours()),
        "layers.1": Layer("layers.1", ours(sinks=torch.zeros(HEADS))),
    }
    metadata = make_builder(config, layers, monkeypatch).build(0, common(CASES["decode"]))
    seen: list[Any] = []
    monkeypatch.setattr(
        AscendAttentionBackendImpl,
        "update_graph_params",
        staticmethod(lambda stream, forward, *rest: seen.append(list(forward.attn_metadata))),
    )
    both = SimpleNamespace(attn_metadata=dict.fromkeys(layers, metadata))
    XyAscendImpl.update_graph_params(None, both, 4, config)
    assert seen == [["layers.1"]]
    assert list(both.attn_metadata) == list(layers)
    alone = SimpleNamespace(attn_metadata={"layers.0": metadata})
    XyAscendImpl.update_graph_params(None, alone, 4, config)
    assert len(seen) == 1


def test_the_backend_passes_the_parents_checks() -> None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm_ascend.attention.attention_v1 import AscendAttentionBackend

    from vllm_xyserve.attention.ascend.backend import XyAscendBackend

    assert issubclass(XyAscendBackend, AscendAttentionBackend)
    assert AttentionBackendEnum[XyAscendBackend.get_name()] is AttentionBackendEnum.CUSTOM
    assert XyAscendBackend.get_supported_kernel_block_sizes() == [128]
    assert XyAscendBackend.get_kv_cache_shape(9, 128, 2, 64) == (2, 9, 128, 2, 64)
