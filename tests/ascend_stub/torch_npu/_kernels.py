"""The operations whose results matter, in fp32 torch. Names and arguments are torch_npu's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

calls: Counter[str] = Counter()
"""Of each operation, so that a test can prove which path ran."""

_formats: dict[int, tuple[StorageWeakRef, int]] = {}
"""By address of what was cast, while its storage lives; everything else is ND (2)."""


class Missing:
    """An operation that is not written out: may be named, not called."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"torch_npu.{self.name} has no stand-in in tests/ascend_stub")

    def __getattr__(self, name: str) -> Any:
        return Missing(f"{self.name}.{name}")


def npu_format_cast(tensor: torch.Tensor, number: int) -> torch.Tensor:
    """The stand-in keeps the elements where they are and notes the format."""
    calls["npu_format_cast"] += 1
    cast = tensor.clone()
    _formats[cast.data_ptr()] = StorageWeakRef(cast.untyped_storage()), int(number)
    return cast


def get_npu_format(tensor: torch.Tensor) -> int:
    storage, number = _formats.get(tensor.data_ptr(), (None, 2))
    return 2 if storage is not None and storage.expired() else number


def _npu_reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> None:
    """Write ``[tokens, kv_heads, head_size]`` to their slots; negative slots are skipped."""
    calls["_npu_reshape_and_cache"] += 1
    tokens = torch.nonzero(slot_indices >= 0).flatten()
    slots = slot_indices[tokens].to(torch.int64)
    for rows, cache in ((key, key_cache), (value, value_cache)):
        cache.view(-1, *cache.shape[2:])[slots] = rows[tokens].to(cache.dtype)


def _gather(cache: torch.Tensor, blocks: torch.Tensor, length: int, heads: int) -> torch.Tensor:
    pages = cache[blocks.to(torch.int64)]
    return pages.reshape(-1, heads, pages.shape[2] // heads if pages.ndim == 3 else pages.shape[3])[
        :length
    ].float()


def npu_fused_infer_attention_score(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    actual_seq_lengths: list[int],
    actual_seq_lengths_kv: list[int],
    num_heads: int,
    num_key_value_heads: int,
    scale: float,
    sparse_mode: int,
    block_table: torch.Tensor | None = None,
    block_size: int = 128,
    input_layout: str = "TND",
    atten_mask: torch.Tensor | None = None,
    pre_tokens: int = 2**31 - 1,
    next_tokens: int = 0,
) -> tuple[torch.Tensor, None]:
    """Attention of the TND layout: causal (3), with a window (4), or over all keys (0)."""
    calls["npu_fused_infer_attention_score"] += 1
    assert input_layout == "TND", input_layout
    out = torch.zeros_like(query)
    begin = kv_begin = 0
    for row, end in enumerate(actual_seq_lengths):
        length = actual_seq_lengths_kv[row]
        if block_table is None:  # lengths are ends, too, and keys are the step's own
            keys = key[kv_begin:length].float()
            values = value[kv_begin:length].float()
            kv_begin = length
        else:
            blocks = block_table[row, : -(-length // block_size)]
            keys = _gather(key, blocks, length, num_key_value_heads)
            values = _gather(value, blocks, length, num_key_value_heads)
        out[begin:end] = _attend(
            query[begin:end].float(), keys, values, scale, sparse_mode, pre_tokens
        ).to(out.dtype)
        begin = end
    return out, None


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    mode: int,
    pre_tokens: int,
) -> torch.Tensor:
    group = query.shape[1] // keys.shape[1]
    keys, values = (side.repeat_interleave(group, dim=1) for side in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", query, keys) * scale
    positions = torch.arange(len(keys) - len(query), len(keys))[:, None]
    distance = positions - torch.arange(len(keys))[None, :]
    if mode in (3, 4):
        scores = scores.masked_fill(distance < 0, float("-inf"))
    if mode == 4:
        scores = scores.masked_fill(distance >= pre_tokens, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1).nan_to_num(0.0), values)


def npu_fused_infer_attention_score_v2(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **kw: Any
) -> tuple[torch.Tensor, None]:
    """The form that has attention sinks: one more logit a head, without a value."""
    calls["npu_fused_infer_attention_score_v2"] += 1
    sinks = kw["learnable_sink"].float()
    length = torch.as_tensor(kw["actual_seq_kvlen"]).tolist()
    ends = torch.as_tensor(kw["actual_seq_qlen"]).tolist()
    out, begin = torch.zeros_like(query), 0
    for row, end in enumerate(ends):
        blocks = kw["block_table"][row, : -(-length[row] // kw["block_size"])]
        heads = kw["num_key_value_heads"]
        keys, values = (_gather(side, blocks, length[row], heads) for side in (key, value))
        group = kw["num_query_heads"] // heads
        keys, values = (side.repeat_interleave(group, dim=1) for side in (keys, values))
        rows = query[begin:end].float()
        scores = torch.einsum("qhd,khd->hqk", rows, keys) * kw["softmax_scale"]
        distance = torch.arange(len(keys) - len(rows), len(keys))[:, None] - torch.arange(len(keys))
        scores = scores.masked_fill(distance < 0, float("-inf"))
        with_sink = torch.cat([scores, sinks[:, None, None].expand(-1, len(rows), 1)], -1)
        weights = with_sink.softmax(-1)[..., :-1]
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights, values).to(out.dtype)
        begin = end
    return out, None


def _npu_paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    workspace: Any = None,
) -> None:
    """One query a row."""
    calls["_npu_paged_attention"] += 1
    for row, length in enumerate(context_lens.tolist()):
        blocks = block_table[row, : -(-length // key_cache.shape[1])]
        keys = _gather(key_cache, blocks, length, num_kv_heads)
        values = _gather(value_cache, blocks, length, num_kv_heads)
        one = query[row : row + 1].float()
        out[row : row + 1] = _attend(one, keys, values, scale_value, 3, 0).to(out.dtype)


def npu_quant_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    *,
    pertoken_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    output_dtype: torch.dtype = torch.float16,
    **_: Any,
) -> torch.Tensor:
    """int8 ``x [..., K] @ weight [K, N]``, scaled; an integer bias is added to the exact sums."""
    calls["npu_quant_matmul"] += 1
    if scale.dtype == torch.int64:
        scale = scale.to(torch.int32).view(torch.float32)
    exact = x.to(torch.int64) @ weight.to(torch.int64)
    if bias is not None and not bias.is_floating_point():
        exact = exact + bias
    out = exact.float() * scale.float()
    if pertoken_scale is not None:
        out = out * pertoken_scale.float()[..., None]
    if bias is not None and bias.is_floating_point():
        out = out + bias.float()
    return out.to(output_dtype)


def npu_dynamic_quant(
    x: torch.Tensor, *, dst_type: torch.dtype = torch.int8, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 rows and their scales."""
    calls["npu_dynamic_quant"] += 1
    scale = x.float().abs().amax(-1) / 127.0
    quantized = (x.float() / scale.clamp(min=1e-30)[..., None]).round().clamp(-128, 127)
    return quantized.to(dst_type), scale


def npu_quantize(
    x: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor, *_: Any, **__: Any
) -> torch.Tensor:
    """``round(x * scale) + offset``; vllm-ascend gives the reciprocal of the scale."""
    calls["npu_quantize"] += 1
    return (x.float() * scale.float() + offset.float()).round().clamp(-128, 127).to(torch.int8)


def npu_grouped_matmul(
    *,
    x: list[torch.Tensor],
    weight: list[torch.Tensor],
    group_list: torch.Tensor,
    group_list_type: int = 0,
    **_: Any,
) -> list[torch.Tensor]:
    """Rows of each group times its weight ``[K, N]``."""
    calls["npu_grouped_matmul"] += 1
    ends = group_list if group_list_type == 0 else group_list.cumsum(0)
    out = x[0].new_zeros(x[0].shape[0], weight[0].shape[2])
    begin = 0
    for group, end in enumerate(ends.tolist()):
        product = x[0][begin:end].float() @ weight[0][group].float()
        out[begin:end] = product.to(out.dtype)
        begin = end
    return [out]
