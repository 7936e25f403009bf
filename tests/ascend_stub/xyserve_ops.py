"""CPU twins of the operations of the Ascend C library, registered under their names.

Attention walks the task table as the kernel does, task by task with a running softmax, so that a
table which does not cover every (row, query, key) once gives wrong results.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch_npu import _kernels

from vllm_xyserve import plan
from vllm_xyserve.ops.ascend import FRACTAL_NZ, NAMESPACE, THREE_STAGE
from vllm_xyserve.plan import layout

_SCHEMAS = (  # those of csrc/ascendc/bind_ascend.cc; a test compares
    "smooth_gemm(Tensor x, Tensor weight, Tensor? bias, int n, bool weight_nz=False, "
    "Tensor? group_ends=None, int[] tuning=[]) -> Tensor",
    "smooth_gemm_int8(Tensor x, Tensor weight, Tensor scales, Tensor? row_scales, Tensor? bias, "
    "ScalarType out_dtype, int n, bool weight_nz=False, Tensor? group_ends=None, "
    "int[] tuning=[]) -> Tensor",
    "copy_blocks(Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor pairs) -> ()",
    "meta_attention(Tensor(a!) out, Tensor query, Tensor key_cache, Tensor value_cache, "
    "Tensor block_table, Tensor seq_lens, Tensor table, Tensor(b!) workspace, "
    "Tensor(c!)? partials, Tensor? tree_mask, Tensor(d!)? lse, int form, int num_cores, "
    "int max_keys, int tile_rows, bool decode_only, bool splits, float scale, float softcap) "
    "-> ()",
    "meta_attention_workspace(Tensor query, Tensor key_cache, int form, int num_cores, "
    "int max_keys, int tile_rows) -> int",
)
_library: torch.library.Library | None = None


def register() -> None:
    """Register the twins; once per process."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library(NAMESPACE, "DEF")
    for schema in _SCHEMAS:
        _library.define(schema)
    twins = (smooth_gemm, smooth_gemm_int8, copy_blocks, meta_attention, meta_attention_workspace)
    for twin in twins:
        _library.impl(twin.__name__, twin, "CPU")


def meta_attention_workspace(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    form: int,
    num_cores: int,
    max_keys: int,
    tile_rows: int,
) -> int:
    """Any number that tells the arguments apart."""
    return 64 + form + num_cores + max_keys // 128 + tile_rows


def meta_attention(
    out: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    table: torch.Tensor,
    workspace: torch.Tensor,
    partials: torch.Tensor | None,
    tree_mask: torch.Tensor | None,
    lse: torch.Tensor | None,
    form: int,
    num_cores: int,
    max_keys: int,
    tile_rows: int,
    decode_only: bool,
    splits: bool,
    scale: float,
    softcap: float,
) -> None:
    """Every task of every core, then the division by the sums."""
    words = table.numpy()
    size = int(words[: layout.HEADER.itemsize].view(layout.HEADER)[0]["num_bytes"])
    step = plan.view(words[:size].copy())
    header = step.header
    assert int(header["num_cores"]) == num_cores
    assert splits or int(header["num_partial_rows"]) == 0
    assert partials is not None
    assert int(header["num_partial_rows"]) * (query.shape[2] + 16) <= partials.numel()
    expected = meta_attention_workspace(query, key_cache, form, num_cores, max_keys, tile_rows)
    assert workspace.numel() == expected
    assert int(header["tile_rows"].max()) <= tile_rows
    assert int(step.segments["key_len"].max(initial=0)) <= max_keys
    assert form != THREE_STAGE or not splits
    assert not decode_only or int(step.segments["query_len"].max(initial=0)) <= 1
    shape = (query.shape[0], query.shape[1])
    top, total = torch.full(shape, float("-inf")), torch.zeros(shape)
    sums = torch.zeros(query.shape, dtype=torch.float32)
    for task in step.tasks[step.tasks["num_queries"] > 0]:
        segment = step.segments[task["segment"]]
        _add(task, segment, header, query, (key_cache, value_cache), (block_table, seq_lens),
             (scale, softcap), (top, total, sums))  # fmt: skip
    for segment in step.segments:
        rows = slice(segment["query_start"], segment["query_start"] + segment["query_len"])
        divisor = total[rows].masked_fill(total[rows] == 0, 1.0)
        out[rows] = (sums[rows] / divisor[..., None]).to(out.dtype)


def _add(
    task: np.void,
    segment: np.void,
    header: np.void,
    query: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    rows: tuple[torch.Tensor, torch.Tensor],
    factors: tuple[float, float],
    running: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    top, total, sums = running
    row, length = int(segment["batch_row"]), int(rows[1][segment["batch_row"]])
    assert length <= int(segment["key_len"]), "the device's length exceeds the planned bound"
    first = int(task["query_begin"])
    count, history = int(task["num_queries"]), length - int(segment["query_len"])
    keys = range(int(task["key_begin"]), min(int(task["key_end"]), history + first + count))
    if not keys:
        return
    positions = torch.arange(keys.start, keys.stop)
    pages = rows[0][row, positions // 128].to(torch.int64)
    heads = slice(int(task["head_begin"]), int(task["head_begin"]) + int(task["num_heads"]))
    key, value = (cache[pages, positions % 128, heads].float() for cache in caches)
    group = int(header["group_size"])
    tokens = slice(int(segment["query_start"]) + first, int(segment["query_start"]) + first + count)
    q_heads = slice(heads.start * group, heads.stop * group)
    q = query[tokens, q_heads].float()
    key, value = (side.repeat_interleave(group, dim=1) for side in (key, value))
    scores = torch.einsum("qhd,khd->qhk", q, key) * factors[0]
    if factors[1]:
        scores = factors[1] * torch.tanh(scores / factors[1])
    distance = torch.arange(history + first, history + first + count)[:, None] - positions
    hidden = distance < 0
    if int(header["window"]):
        hidden |= distance >= int(header["window"])
    scores = scores.masked_fill(hidden[:, None, :], float("-inf"))
    new = torch.maximum(top[tokens, q_heads], scores.amax(-1))
    safe = new.masked_fill(torch.isneginf(new), 0.0)
    weights = torch.exp(scores - safe[..., None])
    factor = torch.exp(top[tokens, q_heads] - safe)
    total[tokens, q_heads] = total[tokens, q_heads] * factor + weights.sum(-1)
    added = torch.einsum("qhk,khd->qhd", weights, value)
    sums[tokens, q_heads] = sums[tokens, q_heads] * factor[..., None] + added
    top[tokens, q_heads] = new


def _check_storage(weight: torch.Tensor, is_nz: bool) -> None:
    found = _kernels.get_npu_format(weight)
    assert found == (FRACTAL_NZ if is_nz else 2), f"{is_nz=}, and the weight has format {found}"


def smooth_gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    n: int,
    weight_nz: bool = False,
    group_ends: torch.Tensor | None = None,
    tuning: Sequence[int] = (),
) -> torch.Tensor:
    """fp32, rounded once; by groups of rows with a weight each."""
    assert x.is_contiguous()
    assert weight.is_contiguous()
    assert bias is None or bias.dtype == torch.float32
    if group_ends is not None:
        out, begin = x.new_zeros(x.shape[0], n), 0
        for group, end in enumerate(group_ends.tolist()):
            out[begin:end] = (x[begin:end].float() @ weight[group].float().T).to(x.dtype)
            begin = end
        return out
    assert n == weight.shape[0]
    _check_storage(weight, weight_nz)
    return torch.nn.functional.linear(x.float(), weight.float(), bias).to(x.dtype)


def smooth_gemm_int8(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    row_scales: torch.Tensor | None,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
    n: int,
    weight_nz: bool = False,
    group_ends: torch.Tensor | None = None,
    tuning: Sequence[int] = (),
) -> torch.Tensor:
    """Exact sums, scaled in fp32, rounded once."""
    _check_storage(weight, weight_nz)
    for vector in (scales, row_scales, bias):
        assert vector is None or vector.dtype == torch.float32
    out = (x.to(torch.int64) @ weight.to(torch.int64).T).float() * scales
    if row_scales is not None:
        out = out * row_scales.view(*x.shape[:-1], 1)
    return (out if bias is None else out + bias).to(out_dtype)


def copy_blocks(key_cache: torch.Tensor, value_cache: torch.Tensor, pairs: torch.Tensor) -> None:
    """Source to target, in each cache."""
    for cache in (key_cache, value_cache):
        cache[pairs[:, 1]] = cache[pairs[:, 0]]
