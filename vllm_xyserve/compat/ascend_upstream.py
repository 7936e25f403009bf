"""Every name of vLLM 0.23 and vllm-ascend that the NPU family touches, and which part needs it.

Read from the installed sources without importing them, so that an upgrade shows at once what moved:
a part whose names are not all there stays off, with a warning that says which. The names of the
scheduler part are those that `block_copies` and `scheduler` rely on beside what 0.32 has as well.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

Part = Literal["platform", "scheduler", "worker", "attention", "linear"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)


@dataclass(frozen=True, slots=True)
class Name:
    """A module-level name, or ``Class.member``.

    Attributes:
        part: of ours that needs it.
        module: its module.
        path: the name in the module; members may be inherited from a base in the same module.
        parameters: that a function must have, beside others.
    """

    part: Part
    module: str
    path: str
    parameters: tuple[str, ...] = ()

    def __str__(self) -> str:
        parameters = f"({', '.join(self.parameters)})" if self.parameters else ""
        return f"{self.module}.{self.path}{parameters}"


_FORWARD = (
    "layer",
    "query",
    "key",
    "value",
    "kv_cache",
    "attn_metadata",
    "output",
    "output_scale",
    "output_block_scale",
)
_A1 = "vllm_ascend.attention.attention_v1"
_KV = "vllm.v1.core"
NAMES: Final = (
    Name("platform", "vllm_ascend", "register"),
    Name("platform", "vllm_ascend.platform", "NPUPlatform"),
    Name(
        "platform",
        "vllm_ascend.platform",
        "NPUPlatform.get_attn_backend_cls",
        ("selected_backend", "attn_selector_config", "num_heads"),
    ),
    Name("platform", "vllm_ascend.platform", "NPUPlatform.check_and_update_config"),
    Name("platform", "vllm_ascend.platform", "NPUPlatform.pre_register_and_update", ("parser",)),
    Name("platform", "vllm_ascend.platform", "NPUPlatform.num_compute_units"),
    Name("platform", "vllm_ascend.utils", "get_ascend_device_type"),
    Name("platform", "vllm_ascend.utils", "AscendDeviceType.A2"),
    Name("platform", "vllm_ascend.utils", "AscendDeviceType.A3"),
    Name("platform", "vllm_ascend.utils", "AscendDeviceType._310P"),
    Name(
        "scheduler", f"{_KV}.kv_cache_manager", "KVCacheManager.get_computed_blocks", ("request",)
    ),
    Name(
        "scheduler",
        f"{_KV}.kv_cache_manager",
        "KVCacheManager.allocate_slots",
        ("request", "num_new_tokens", "num_new_computed_tokens", "new_computed_blocks"),
    ),
    Name("scheduler", f"{_KV}.kv_cache_manager", "KVCacheManager.new_step_starts"),
    Name("scheduler", f"{_KV}.kv_cache_manager", "KVCacheManager.create_kv_cache_blocks"),
    Name("scheduler", f"{_KV}.kv_cache_manager", "KVCacheManager.evict_blocks"),
    Name("scheduler", f"{_KV}.block_pool", "BlockPool.cache_full_blocks"),
    Name("scheduler", f"{_KV}.block_pool", "BlockPool.free_blocks", ("ordered_blocks",)),
    Name("scheduler", f"{_KV}.block_pool", "BlockPool.get_new_blocks", ("num_blocks",)),
    Name("scheduler", f"{_KV}.block_pool", "BlockPool.touch"),
    Name("scheduler", f"{_KV}.sched.scheduler", "Scheduler.schedule"),
    Name("scheduler", f"{_KV}.sched.scheduler", "Scheduler._preempt_request", ("request",)),
    Name("scheduler", f"{_KV}.sched.async_scheduler", "AsyncScheduler"),
    Name("worker", "vllm_ascend.worker.worker", "NPUWorker.load_model"),
    Name("worker", "vllm_ascend.worker.worker", "NPUWorker.execute_model", ("scheduler_output",)),
    Name("worker", "vllm_ascend.worker.worker", "NPUWorker.sample_tokens", ("grammar_output",)),
    Name("worker", "vllm_ascend.worker.worker", "NPUWorker.get_model"),
    Name("worker", "vllm_ascend.worker.model_runner_v1", "NPUModelRunner.execute_model"),
    Name("worker", "vllm_ascend.worker.model_runner_v1", "NPUModelRunner.initialize_kv_cache"),
    Name("attention", _A1, "AscendAttentionBackend.get_impl_cls"),
    Name("attention", _A1, "AscendAttentionBackend.get_builder_cls"),
    Name("attention", _A1, "AscendAttentionBackend.get_kv_cache_shape"),
    Name("attention", _A1, "AscendAttentionMetadataBuilder.build", ("common_attn_metadata",)),
    Name("attention", _A1, "AscendMetadata.seq_lens_list"),
    Name("attention", _A1, "AscendMetadata.causal"),
    Name("attention", _A1, "AscendMetadata.attn_state"),
    Name("attention", _A1, "AscendAttentionBackendImpl.forward", _FORWARD),
    Name(
        "attention",
        _A1,
        "AscendAttentionBackendImpl.reshape_and_cache",
        ("query", "key", "value", "kv_cache", "attn_metadata", "output"),
    ),
    Name(
        "attention",
        _A1,
        "AscendAttentionBackendImpl.update_graph_params",
        (
            "update_stream",
            "forward_context",
            "num_tokens",
            "vllm_config",
            "speculative_config",
            "num_dcp_pcp_tokens",
            "draft_attn_metadatas",
        ),
    ),
    Name("attention", "vllm_ascend.ascend_forward_context", "_EXTRA_CTX"),
    Name("attention", "vllm_ascend.memcache_comm_fence", "record_attention_compute_start"),
    Name("attention", "vllm_ascend.attention.utils", "AscendCommonAttentionMetadata"),
    Name("attention", "vllm.v1.attention.backend", "CommonAttentionMetadata.block_table_tensor"),
    Name("attention", "vllm.v1.attention.backend", "CommonAttentionMetadata.query_start_loc_cpu"),
    Name("attention", "vllm.v1.attention.backend", "CommonAttentionMetadata.seq_lens"),
    Name(
        "linear",
        "vllm_ascend.ops.linear",
        "AscendUnquantizedLinearMethod.process_weights_after_loading",
        ("layer",),
    ),
    Name(
        "linear",
        "vllm_ascend.ops.linear",
        "AscendUnquantizedLinearMethod.apply",
        ("layer", "x", "bias"),
    ),
    Name("linear", "vllm_ascend.quantization.methods.registry", "_SCHEME_REGISTRY"),
    Name(
        "linear",
        "vllm_ascend.quantization.methods.w8a8_static",
        "AscendW8A8LinearMethod.apply",
        ("layer", "x", "bias", "tp_rank"),
    ),
    Name(
        "linear",
        "vllm_ascend.quantization.methods.w8a8_dynamic",
        "AscendW8A8DynamicLinearMethod.apply",
        ("layer", "x", "bias", "tp_rank"),
    ),
    Name("linear", "vllm_ascend.ascend_config", "get_ascend_config"),
    Name("linear", "vllm_ascend.utils", "flashcomm2_enable"),
    Name("linear", "vllm_ascend.utils", "COMPRESSED_TENSORS_METHOD"),
    Name("linear", "vllm_ascend.ops.fused_moe.moe_mlp", "unquant_apply_mlp"),
    Name(
        "linear",
        "vllm_ascend.ops.fused_moe.fused_moe",
        "AscendUnquantizedFusedMoEMethod.process_weights_after_loading",
    ),
)


@functools.cache
def unrecognised(part: Part) -> tuple[str, ...]:
    """Names of a part that the installed packages do not have as expected."""
    return tuple(str(name) for name in NAMES if name.part == part and not is_there(name))


def is_there(name: Name, roots: tuple[Path, ...] = ()) -> bool:
    """Whether a name is there with its parameters.

    Args:
        name: what to look for.
        roots: folders that hold the packages; where they are installed, if empty.
    """
    tree = _tree(_file(name.module, roots))
    if tree is None:
        return False
    head, _, member = name.path.partition(".")
    found = _find(tree.body, head)
    if member and isinstance(found, ast.ClassDef):
        found = next((m for c in _lineage(tree, found) if (m := _find(c.body, member))), None)
    elif member:
        return False
    return found is not None and _has_parameters(found, name.parameters)


def _file(module: str, roots: tuple[Path, ...]) -> Path | None:
    parts = module.split(".")
    if not roots:
        spec = importlib.util.find_spec(parts[0])
        places = () if spec is None else spec.submodule_search_locations or ()
        roots = tuple(Path(place).parent for place in places)
    for root in roots:
        for file in (
            root.joinpath(*parts).with_suffix(".py"),
            root.joinpath(*parts, "__init__.py"),
        ):
            if file.is_file():
                return file
    return None


@functools.lru_cache(maxsize=32)
def _tree(file: Path | None) -> ast.Module | None:
    return None if file is None else ast.parse(file.read_text(encoding="utf-8"))


def _find(body: list[ast.stmt], name: str) -> ast.stmt | None:
    for node in _flat(body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            return node
    return None


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, those below a condition included."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _flat(node.body)


def _lineage(tree: ast.Module, cls: ast.ClassDef) -> Iterator[ast.ClassDef]:
    yield cls
    for base in cls.bases:
        found = _find(tree.body, base.id) if isinstance(base, ast.Name) else None
        if isinstance(found, ast.ClassDef):
            yield from _lineage(tree, found)


def _has_parameters(node: ast.stmt, parameters: tuple[str, ...]) -> bool:
    if not parameters:
        return True
    if not isinstance(node, ast.FunctionDef):
        return False
    arguments = node.args
    known = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    return known.issuperset(parameters)
