"""A scheduler without a model: the real vLLM classes over a KV cache of prefix hashes.

Each KV slot holds the hash of the whole token path (identity included) whose key and value a real
worker would have there, or None. A step runs its copies first, then writes what it computes, and
every slot that a request attends to is compared with the request's own path. So a hit on anything
but the right, computed prefix fails at once, whichever way it came about.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from vllm_xyserve.compat import block_copies
from vllm_xyserve.scheduler.factory import scheduler_class

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 50000,
    "max_position_embeddings": 8192,
    "torch_dtype": "float32",
}


def model_folder() -> Path:
    """A folder with the config of a tiny Llama; weights are never loaded."""
    folder = Path(tempfile.mkdtemp(prefix="xyserve-sim-"))
    (folder / "config.json").write_text(json.dumps(_LLAMA))
    return folder


@dataclass
class Sim:
    """A scheduler and the KV cache that its steps would fill."""

    scheduler: Any
    block_size: int
    hasher: Any
    slots: dict[int, list[int | None]] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)
    """First ``num_cached_tokens`` of each admitted request."""
    num_copies: int = 0
    num_preemptions: int = 0
    _next_token: int = 0
    _in_flight: list[Any] = field(default_factory=list)

    def add(
        self,
        name: str,
        tokens: Sequence[int],
        max_tokens: int = 1,
        priority: int = 0,
        salt: str | None = None,
        lora: LoRARequest | None = None,
        **sampling: Any,
    ) -> Request:
        """Queue a request."""
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0, **sampling)
        params.update_from_generation_config({}, eos_token_id=2)
        request = Request(
            request_id=name,
            prompt_token_ids=list(tokens),
            sampling_params=params,
            pooling_params=None,
            cache_salt=salt,
            lora_request=lora,
            priority=priority,
            block_hasher=self.hasher,
        )
        self.scheduler.add_request(request)
        return request

    def abort(self, name: str) -> None:
        """Abort a request."""
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def path(self, request: Request, length: int) -> list[int]:
        """Hash of the path up to each of a request's first ``length`` tokens."""
        lora = request.lora_request
        value = hash((lora and lora.lora_path, request.cache_salt))
        hashes = []
        for token in request.all_token_ids[:length]:
            value = hash((value, token))
            hashes.append(value)
        return hashes

    def schedule(self) -> Any:
        """Compose a step, run its copies and its writes, and check what it reads."""
        output = self.scheduler.schedule()
        copies = getattr(output, block_copies.ATTRIBUTE, None) or []
        # As a worker does it: gather all, then scatter all.
        read = [list(self._block(copy.src_block_id)) for copy in copies]
        for copy, content in zip(copies, read, strict=True):
            self.slots[copy.dst_block_id] = content
        self.num_copies += len(copies)
        for new in output.scheduled_new_reqs:
            self.cached.setdefault(new.req_id, new.num_computed_tokens)
        for name, num_tokens in output.num_scheduled_tokens.items():
            self._write(self.scheduler.requests[name], num_tokens)
        for name in output.num_scheduled_tokens:
            self._check_reads(self.scheduler.requests[name])
        return output

    def finish(self, output: Any) -> None:
        """Give the scheduler the step's sampled tokens."""
        names = list(output.num_scheduled_tokens)
        sampled = []
        for name in names:
            request = self.scheduler.requests.get(name)
            done = request is not None and not request.is_prefill_chunk
            self._next_token += 1
            sampled.append([10_000 + self._next_token % 30_000] if done else [])
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )

    def step(self) -> Any:
        """One whole step."""
        output = self.schedule()
        self.finish(output)
        self.check_invariants()
        return output

    def drain(self, most: int = 10_000) -> None:
        """Steps until nothing is left to do."""
        for _ in range(most):
            if not self.scheduler.has_unfinished_requests():
                return
            self.step()
        raise AssertionError(f"requests are unfinished after {most} steps: they wait for ever")

    def run(self, name: str, tokens: Sequence[int], max_tokens: int = 1, **kwargs: Any) -> Request:
        """One request alone, to its end."""
        request = self.add(name, tokens, max_tokens, **kwargs)
        self.drain()
        return request

    def check_invariants(self) -> None:
        """No block is lost or counted twice, and the index agrees with itself and the pool."""
        manager = self.scheduler.kv_cache_manager
        pool = manager.block_pool
        free, block = [], pool.free_block_queue.fake_free_list_head.next_free_block
        while block is not pool.free_block_queue.fake_free_list_tail:
            free.append(block)
            block = block.next_free_block
        assert len(free) == pool.get_num_free_blocks()
        assert all(b.ref_cnt == 0 for b in free)
        held = [b for b in pool.blocks if b.ref_cnt > 0 and not b.is_null]
        assert len(free) + len(held) + 1 == len(pool.blocks)
        if hasattr(manager, "xy"):
            state = manager.xy
            state.index.check()
            assert len(state.index) <= len(pool.blocks)
            assert set(state.tails) <= {b.block_id for b in pool.blocks if b.block_hash is None}
            self._check_order(free, state)

    def _check_order(self, free: list[Any], state: Any) -> None:
        kinds = [2 if b.block_hash else 1 if b.block_id in state.tails else 0 for b in free]
        assert kinds == sorted(kinds), f"free blocks are out of order: {kinds}"

    def _block(self, block_id: int) -> list[int | None]:
        return self.slots.setdefault(block_id, [None] * self.block_size)

    def _table(self, request: Request) -> list[int]:
        blocks: list[int] = self.scheduler.kv_cache_manager.get_block_ids(request.request_id)[0]
        return blocks

    def _write(self, request: Request, num_tokens: int) -> None:
        # The scheduler has advanced num_computed_tokens over this step's tokens already.
        end = min(request.num_computed_tokens, request.num_tokens)
        table, path = self._table(request), self.path(request, end)
        for i in range(max(request.num_computed_tokens - num_tokens, 0), end):
            self._block(table[i // self.block_size])[i % self.block_size] = path[i]

    def _check_reads(self, request: Request) -> None:
        end = min(request.num_computed_tokens, request.num_tokens)
        table, path = self._table(request), self.path(request, end)
        held = [self._block(table[i // self.block_size])[i % self.block_size] for i in range(end)]
        wrong = [i for i in range(end) if held[i] != path[i]]
        assert not wrong, f"{request.request_id} reads wrong KV at {wrong[:10]} of {end}"


def make_sim(
    block_size: int = 32,
    num_blocks: int = 64,
    *,
    xyserve: bool = True,
    options: dict[str, Any] | None = None,
    asynchronous: bool = False,
    budget: int = 8192,
    max_num_seqs: int = 64,
    policy: str = "fcfs",
    long_prefill_token_threshold: int = 0,
    folder: Path | None = None,
) -> Sim:
    """A scheduler with an empty cache of ``num_blocks`` blocks, the null block included."""
    model = ModelConfig(
        model=str(folder or model_folder()),
        skip_tokenizer_init=True,
        dtype="float32",
        seed=0,
        max_model_len=8192,
    )
    cache = CacheConfig(block_size=block_size, enable_prefix_caching=True)
    cache.num_gpu_blocks = num_blocks
    config = VllmConfig(
        model_config=model,
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_model_len=8192,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            policy=policy,
            long_prefill_token_threshold=long_prefill_token_threshold,
            async_scheduling=asynchronous,
        ),
        additional_config={"xyserve": options or {}},
    )
    config.scheduler_config.async_scheduling = asynchronous
    # As our platforms set it; on engines without block copies the scheduler asks for it.
    config.parallel_config.worker_cls = "vllm_xyserve.worker.cpu.XyCPUWorker"
    spec = FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=32, dtype=torch.float32
    )
    kv_cache_config = KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    hash_fn = get_hash_fn_by_name("sha256")
    init_none_hash(hash_fn)
    base = AsyncScheduler if asynchronous else Scheduler
    cls = scheduler_class(base) if xyserve else base
    scheduler = cls(
        vllm_config=config,
        kv_cache_config=kv_cache_config,
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        hash_block_size=block_size,
        log_stats=True,
    )
    return Sim(scheduler, block_size, get_request_block_hasher(block_size, hash_fn))
