"""What a child can do with an engine. Arguments and answers are plain JSON."""

from __future__ import annotations

import os
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import Any


def generate(
    llm: Any,
    prompts: list[Any],
    lora: list[str | None] | None = None,
    structured: dict[str, Any] | None = None,
    **sampling: Any,
) -> list[dict[str, Any]]:
    """Generate for all prompts at once.

    Args:
        llm: the engine.
        prompts: texts or token ids.
        lora: per prompt, an adapter's folder or None.
        structured: arguments of ``StructuredOutputsParams``.
        sampling: arguments of ``SamplingParams``.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    if structured is not None:
        sampling["structured_outputs"] = StructuredOutputsParams(**structured)
    params = SamplingParams(**sampling)
    requests = None if lora is None else [_lora_request(folder) for folder in lora]
    inputs = [_prompt(prompt) for prompt in prompts]
    outputs = llm.generate(inputs, params, lora_request=requests, use_tqdm=False)
    return [_request_answer(output) for output in outputs]


def generate_from_embeds(
    llm: Any, model: str, prompts: list[list[int]], **sampling: Any
) -> list[dict[str, Any]]:
    """Look the tokens up in the checkpoint's embedding and send the vectors as prompts, in turn."""
    from safetensors.torch import load_file
    from vllm import SamplingParams

    table = load_file(Path(model) / "model.safetensors")["model.embed_tokens.weight"]
    params = SamplingParams(**sampling)
    answers = []
    for prompt in prompts:
        embeds = {"prompt_embeds": table[prompt]}
        (output,) = llm.generate([embeds], params, use_tqdm=False)
        answers.append(_request_answer(output))
    return answers


def beam_search(llm: Any, prompts: list[str], **params: Any) -> list[list[dict[str, Any]]]:
    """Per prompt the beams, best first."""
    from vllm.sampling_params import BeamSearchParams

    outputs = llm.beam_search([{"prompt": p} for p in prompts], BeamSearchParams(**params))
    return [
        [{"tokens": list(beam.tokens), "logprob": beam.cum_logprob} for beam in output.sequences]
        for output in outputs
    ]


def embed(llm: Any, prompts: list[str]) -> list[list[float]]:
    """One vector per prompt."""
    return [list(output.outputs.embedding) for output in llm.embed(prompts, use_tqdm=False)]


def rpc(llm: Any, method: str, **kwargs: Any) -> Any:
    """Call a method of the worker; only whether it came back is kept."""
    return [repr(answer) for answer in llm.collective_rpc(method, kwargs=kwargs)]


def report(llm: Any) -> dict[str, Any]:
    """The plugin's own report, of the one worker."""
    (answer,) = llm.collective_rpc("xyserve_report")
    if isinstance(answer, dict):  # it came from another process
        return answer
    return {name: getattr(answer, name) for name in type(answer).__dataclass_fields__}


def look(llm: Any) -> dict[str, Any]:
    """What is loaded in the one worker, found without the plugin's help."""
    (answer,) = llm.collective_rpc(look_at_worker)
    return dict(answer)


def reset_prefix_cache(llm: Any) -> bool:
    """Forget all cached prefixes."""
    return bool(llm.reset_prefix_cache())


def metrics(llm: Any) -> dict[str, float]:
    """Sums of the engine's counters."""
    sums: dict[str, float] = {}
    for metric in llm.get_metrics():
        value = getattr(metric, "value", None)
        if isinstance(value, (int, float)):
            sums[metric.name] = sums.get(metric.name, 0.0) + value
    return sums


def compile_hash(llm: Any) -> str:
    """vLLM's key of the configuration in its compile cache."""
    return str(llm.llm_engine.vllm_config.compute_hash())


def look_at_worker(worker: Any) -> dict[str, Any]:
    """Runs in the worker."""
    import psutil
    from vllm.model_executor.layers import utils
    from vllm.platforms import current_platform

    worker = getattr(worker, "worker", worker)  # out of the wrapper that functions are given
    context = worker.vllm_config.compilation_config.static_forward_context
    layers = [layer for layer in context.values() if hasattr(layer, "impl")]
    linears = [vars(m).get("cpu_linear") for m in worker.get_model().modules()]
    dispatch = utils.dispatch_cpu_unquantized_gemm
    return {
        "pid": os.getpid(),
        "rss": psutil.Process().memory_info().rss,
        "platform": _path(type(current_platform)),
        "platform_bases": [_path(cls) for cls in type(current_platform).__mro__],
        "worker": _path(type(worker)),
        "backends": dict(Counter(_path(layer.attn_backend) for layer in layers)),
        "impls": dict(Counter(_path(type(layer.impl)) for layer in layers)),
        "paths": dict(Counter(str(getattr(layer.impl, "path", None)) for layer in layers)),
        "linears": dict(Counter(_path(type(x)) for x in linears if x is not None)),
        "dispatch_wrapped": hasattr(dispatch, "_xyserve_wrapped"),
        "ours_loaded": sorted(m for m in sys.modules if m.startswith("vllm_xyserve.")),
        "windows": [layer.impl.sliding_window for layer in layers],
        "softcaps": [layer.impl.logits_soft_cap for layer in layers],
        "alibi": [layer.impl.alibi_slopes is not None for layer in layers],
        "sinks": [layer.impl.sinks is not None for layer in layers],
        "num_kv_groups": len(worker.model_runner.kv_cache_config.kv_cache_groups),
    }


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _prompt(prompt: Any) -> Any:
    return {"prompt_token_ids": prompt} if isinstance(prompt, list) else prompt


def _lora_request(folder: str | None) -> Any:
    from vllm.lora.request import LoRARequest

    if folder is None:
        return None
    return LoRARequest(Path(folder).name, 1 + zlib.crc32(folder.encode()) % 10**6, folder)


def _request_answer(output: Any) -> dict[str, Any]:
    return {
        "num_prompt_tokens": len(output.prompt_token_ids or []),
        "num_cached_tokens": output.num_cached_tokens,
        "prompt_logprobs": _logprobs(output.prompt_logprobs),
        "outputs": [
            {
                "tokens": list(one.token_ids),
                "text": one.text,
                "finish_reason": one.finish_reason,
                "logprobs": _logprobs(one.logprobs),
            }
            for one in output.outputs
        ],
    }


def _logprobs(positions: Any) -> list[Any] | None:
    """Per position ``{token: logprob}`` with the tokens as text, since JSON has no other keys."""
    if positions is None:
        return None
    return [
        None if position is None else {str(t): lp.logprob for t, lp in position.items()}
        for position in positions
    ]
