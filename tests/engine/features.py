"""The engines and steps behind the rows of docs/features.md, on tiny models with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers import models
from tests.helpers.engine import Engine

TEXT = (
    "The harbour lay quiet that morning. Two fishing boats had come in before dawn, and their "
    "crews were already sorting the catch into crates of ice. A dog slept on a heap of nets. "
    "Above the quay the baker opened his shutters one after the other, as he had done every day "
    "for thirty years, and put the first loaves on the sill to cool. Nobody spoke. The only sound "
    "was the slap of water against the hulls and, from time to time, the cry of a gull."
)
PROMPTS = [
    TEXT,
    TEXT[:190] + " What happened then was not written down by anyone.",
    "def median(values):\n    ordered = sorted(values)\n    half = len(ordered) // 2\n",
    "Once",
]
REPEATED = ["one two three four five six seven eight " * 6, "red green blue " * 12, "Once"]
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
BLOCK = 32


@dataclass(frozen=True, slots=True)
class Models:
    """Folders of the models and adapters."""

    llama: Path
    other_llama: Path
    """Same shapes as ``llama``, other weights."""
    looping_llama: Path
    """Its layers add little, so it often repeats a token: something for ngram to guess right."""
    gemma2: Path
    bloom: Path
    gpt_oss: Path
    bert: Path
    adapter_a: Path
    adapter_b: Path


def make_models(folder: Path) -> Models:
    """Write all models below a folder."""
    llama = models.tiny_llama(folder / "llama")
    return Models(
        llama=llama,
        other_llama=models.tiny_llama(folder / "other-llama", seed=5),
        looping_llama=models.tiny_llama(folder / "looping-llama", seed=6, init_std=0.08),
        gemma2=models.tiny_gemma2(folder / "gemma2"),
        bloom=models.tiny_bloom(folder / "bloom"),
        gpt_oss=models.tiny_gpt_oss(folder / "gpt-oss"),
        bert=models.tiny_bert(folder / "bert"),
        adapter_a=models.lora_adapter(folder / "adapter-a", llama, seed=1),
        adapter_b=models.lora_adapter(folder / "adapter-b", llama, seed=2),
    )


def engines(made: Models) -> list[Engine]:
    """What every setting runs."""
    return [
        decoder(made),
        lora(made),
        preemption(made, "tight", num_gpu_blocks=8),
        reload(made),
        Engine(
            "pooling",
            _llm(made.llama, runner="pooling"),
            [_step("look"), _step("embed", prompts=PROMPTS)],
        ),
        Engine(
            "encoder",
            _llm(made.bert, runner="pooling", max_num_batched_tokens=512),  # no chunks there
            [_step("look"), _step("embed", prompts=PROMPTS)],
        ),
        Engine("fp8-kv", _llm(made.llama, kv_cache_dtype="fp8"), [_step("look"), _greedy()]),
        *[Engine(name, _llm(model), [_step("look"), _greedy()]) for name, model in layered(made)],
        # Last: what its JIT compiler leaves behind keeps vLLM from starting another engine.
        ngram(made, "ngram", {"method": "ngram", "num_speculative_tokens": 4, **LOOKUP}),
    ]


def yardsticks(made: Models) -> list[Engine]:
    """What only stock runs: answers that others must equal, or must differ from."""
    wide = {"hf_overrides": {"sliding_window": 1024}}
    flat = {"hf_overrides": {"attn_logit_softcapping": None}}
    return [
        preemption(made, "roomy", num_gpu_blocks=64),
        Engine("other", _llm(made.other_llama), [_greedy()]),
        ngram(made, "no-ngram", None),
        Engine("gemma2-wide", _llm(made.gemma2, **wide), [_greedy()]),
        Engine("gemma2-flat", _llm(made.gemma2, **flat), [_greedy()]),
    ]


LOOKUP = {"prompt_lookup_max": 3, "prompt_lookup_min": 1}


def layered(made: Models) -> list[tuple[str, Path]]:
    """Models whose attention is more than causal."""
    return [("gemma2", made.gemma2), ("bloom", made.bloom), ("gpt-oss", made.gpt_oss)]


def decoder(made: Models) -> Engine:
    """Prompt embeddings, logprobs, beams and choices in one engine."""
    overlapping = [TEXT, TEXT[:100], TEXT[:300]]
    embedded = [list(range(100, 140)), list(range(200, 240))]
    return Engine(
        "decoder",
        _llm(made.llama, enable_prompt_embeds=True),
        [
            _step("look"),
            _greedy("cold", prompts=overlapping),
            _greedy("prompt-logprobs", prompts=overlapping, prompt_logprobs=5, logprobs=3),
            _greedy("warm", prompts=overlapping),
            _step("beam_search", prompts=PROMPTS[1:3], beam_width=3, max_tokens=8),
            _greedy("tokens", prompts=embedded),
            _step("generate_from_embeds", model=str(made.llama), prompts=embedded, **GREEDY),
            _step("generate", "choice", prompts=PROMPTS, structured={"choice": CHOICES}, **CHOOSE),
            _greedy(),
        ],
    )


def lora(made: Models) -> Engine:
    """Two adapters and the base model in one batch, cold and warm; then seeded samples.

    An engine of its own: with LoRA on, vLLM's CPU build fails at prompt logprobs, and it fails at
    seeded samples of a prompt that comes in chunks.
    """
    sampled = {"n": 4, "temperature": 0.8, "seed": 7, "max_tokens": 16, "ignore_eos": True}
    adapters = [str(made.adapter_a), str(made.adapter_b), None, str(made.adapter_a)]
    return Engine(
        "lora",
        _llm(
            made.llama,
            enable_lora=True,
            max_loras=2,
            max_lora_rank=8,
            max_num_batched_tokens=512,
        ),
        [
            _step("look"),
            _greedy(prompts=[TEXT] * 4, lora=adapters),
            _greedy("warm", prompts=[TEXT] * 4, lora=adapters),
            _step("reset_prefix_cache"),
            _step("generate", "n-cold", prompts=[TEXT], **sampled),
            _step("generate", "n-warm", prompts=[TEXT], **sampled),
        ],
    )


CHOICES = ["north", "south-west"]
CHOOSE: dict[str, Any] = {"temperature": 0.0, "max_tokens": 16}


def ngram(made: Models, name: str, speculation: dict[str, Any] | None) -> Engine:
    """Repetitive prompts, and tails of 1 to 9 tokens behind a cached prefix.

    A tail of 1 + num_speculative_tokens looks like a verified draft if lengths alone are read.
    """
    llm = _llm(made.looping_llama, **({"speculative_config": speculation} if speculation else {}))
    prefix = list(range(1000, 1000 + 3 * BLOCK))
    tails = [prefix + list(range(2000, 2000 + n)) for n in range(1, 10)]
    return Engine(
        name,
        llm,
        [
            _greedy(prompts=REPEATED),
            _greedy("prefix", prompts=[prefix]),
            _greedy("tails", prompts=tails),
            _greedy("short", prompts=[list(range(3000, 3000 + n)) for n in range(1, 10)]),
            _step("metrics"),
        ],
    )


def preemption(made: Models, name: str, num_gpu_blocks: int) -> Engine:
    """Two requests of 66 + 70 tokens, five blocks each."""
    prompts = [list(range(500, 566)), list(range(700, 766))]
    llm = _llm(made.llama, num_gpu_blocks_override=num_gpu_blocks, max_model_len=160)
    return Engine(name, llm, [_greedy(prompts=prompts, max_tokens=70), _step("metrics")])


def reload(made: Models) -> Engine:
    """Answers before and after the weights are replaced in a running engine."""
    return Engine(
        "reload",
        _llm(made.llama),
        [
            _greedy("before"),
            _step("rpc", "load", method="reload_weights", weights_path=str(made.other_llama)),
            _step("reset_prefix_cache"),
            _greedy("after"),
        ],
    )


def tensor_parallel(made: Models) -> Engine:
    """Two ranks, each with two query heads and one KV head; the second prompt's tail is a hit."""
    return Engine(
        "tensor-parallel",
        _llm(made.llama, tensor_parallel_size=2),
        [_greedy(), _greedy("again", prompts=[TEXT + " The tide turned."])],
    )


def compiled(made: Models) -> Engine:
    """The first answers of `reload` through torch.compile, and what was compiled."""
    engine = reload(made)
    steps = [engine.steps[0], _step("look"), _step("report"), _step("compile_hash", "hash")]
    return Engine(engine.name, {**engine.llm, "enforce_eager": False}, steps)


def _llm(model: Path, **more: Any) -> dict[str, Any]:
    return {
        "model": str(model),
        "max_model_len": 512,
        "max_num_batched_tokens": 64,  # below most prompts, so that they come in chunks
        "block_size": BLOCK,
        "disable_log_stats": False,
        **more,
    }


def _step(do: str, name: str | None = None, **arguments: Any) -> dict[str, Any]:
    return {"name": name or do, "do": do, **arguments}


def _greedy(name: str = "greedy", **more: Any) -> dict[str, Any]:
    return _step("generate", name, **{"prompts": PROMPTS, **GREEDY, **more})
