"""Models of the tests: the prepared SmolLM2, and tiny ones with random weights."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

NAME = "SmolLM2-135M-Instruct"
# Wide weights: with the usual 0.02 all attention weights are about equal, so that a lost window or
# soft cap would hardly change an answer, and the logits lie close together.
INIT_STD = 0.2


def smollm2() -> Path:
    """The prepared real model.

    Raises:
        FileNotFoundError: it is not there; a test that needs it fails then.
    """
    if given := os.environ.get("XYSERVE_TEST_MODEL"):
        folder = Path(given)
    else:
        user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        cache = Path(os.environ.get("XYSERVE_CACHE") or user_cache / "vllm-xyserve")
        folder = cache / "models" / NAME
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"the tests need {NAME} at {folder}; run 'make setup', or set XYSERVE_TEST_MODEL"
        )
    return folder


def tiny_llama(folder: Path, seed: int = 0, init_std: float = INIT_STD) -> Path:
    """Two layers, 4 query and 2 KV heads of 32, with the tokenizer of SmolLM2."""
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        **{**_common(), "initializer_range": init_std},
    )
    return _save(config, folder, seed)


def quantised(
    folder: Path,
    source: Path,
    *,
    static: bool = False,
    symmetric: bool = True,
    per_channel: bool = True,
    calibration: str = "",
) -> Path:
    """A Llama checkpoint in compressed-tensors' W8A8 int8 format, from one in floating point.

    Weights are rounded to a scale per channel or per tensor. Activations: a scale per token, found
    while serving (``static`` False), or one per tensor from the extremes that ``calibration`` has;
    with a zero point unless ``symmetric``.
    """
    import torch
    from safetensors.torch import load_file, save_file

    ranges = _input_ranges(source, calibration) if static else {}
    tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if not module.endswith("_proj"):
            tensors[name] = tensor
            continue
        weight = tensor.float()
        largest = weight.abs().amax(dim=1, keepdim=True) if per_channel else weight.abs().max()
        scale = largest / 127
        tensors[name] = (weight / scale).round().to(torch.int8)
        tensors[f"{module}.weight_scale"] = scale if per_channel else scale.reshape(1)
        if static:
            low, high = ranges[module]
            widest = max(-low, high) / 127
            in_scale = widest if symmetric else (max(high, 0.0) - min(low, 0.0)) / 255
            tensors[f"{module}.input_scale"] = torch.tensor([in_scale])
            if not symmetric:
                zero = round(-128 - min(low, 0.0) / in_scale)
                tensors[f"{module}.input_zero_point"] = torch.tensor([zero], dtype=torch.int8)
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    eight_bits = {"num_bits": 8, "type": "int"}
    activations = {
        **eight_bits,
        "symmetric": symmetric,
        "strategy": "tensor" if static else "token",
        "dynamic": not static,
    }
    weights = {
        **eight_bits,
        "symmetric": True,
        "strategy": "channel" if per_channel else "tensor",
        "dynamic": False,
    }
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": activations,
            }
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _input_ranges(model: Path, text: str) -> dict[str, tuple[float, float]]:
    """Smallest and largest input of each linear layer while the model reads a text."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    reader: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ranges: dict[str, tuple[float, float]] = {}
    for name, module in reader.named_modules():
        if isinstance(module, torch.nn.Linear):

            def note(_: Any, inputs: Any, name: str = name) -> None:
                ranges[name] = (float(inputs[0].min()), float(inputs[0].max()))

            module.register_forward_pre_hook(note)
    with torch.no_grad():
        reader(**AutoTokenizer.from_pretrained(model)(text, return_tensors="pt"))
    return ranges


def tiny_gemma2(folder: Path) -> Path:
    """Gemma-2: window on the first of two layers, soft cap on scores and on logits."""
    from transformers import Gemma2Config

    config = Gemma2Config(
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        query_pre_attn_scalar=32,
        max_position_embeddings=2048,
        sliding_window=24,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=30.0,
        pad_token_id=2,
        **_common(),
    )
    return _save(config, folder, seed=1, norm_std=3.0)  # else the embedding drowns the layers


def tiny_bloom(folder: Path) -> Path:
    """Bloom: alibi instead of rotary positions, two heads of 32."""
    from transformers import BloomConfig

    common = {**_common(), "initializer_range": 0.5}  # else the embedding drowns the layers
    config = BloomConfig(hidden_size=64, n_head=2, n_layer=2, pad_token_id=2, **common)
    return _save(config, folder, seed=2)


def tiny_gpt_oss(folder: Path) -> Path:
    """GPT-OSS: attention sinks, window on the first of two layers, a mixture of four experts."""
    from transformers import GptOssConfig

    config = GptOssConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=24,
        max_position_embeddings=2048,
        rope_parameters={
            "rope_type": "yarn",  # vLLM reads no other for this architecture
            "rope_theta": 10000.0,
            "factor": 2.0,
            "original_max_position_embeddings": 1024,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
        },
        tie_word_embeddings=False,
        pad_token_id=2,
        **_common(),
    )
    return _save(config, folder, seed=3)


def tiny_bert(folder: Path) -> Path:
    """BERT: an encoder without a KV cache, two heads of 32."""
    from transformers import BertConfig

    config = BertConfig(
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
        pad_token_id=2,
        **_common(),
    )
    return _save(config, folder, seed=4, causal=False)


def lora_adapter(folder: Path, model: Path, seed: int, rank: int = 8) -> Path:
    """A random adapter for a Llama model in PEFT's file format, written by hand."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    num_kv_heads, inner = config["num_key_value_heads"], config["intermediate_size"]
    shapes = {  # (out, in)
        "self_attn.q_proj": (heads * head_dim, hidden),
        "self_attn.k_proj": (num_kv_heads * head_dim, hidden),
        "self_attn.v_proj": (num_kv_heads * head_dim, hidden),
        "self_attn.o_proj": (hidden, heads * head_dim),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (num_out, num_in) in shapes.items():
            base = f"base_model.model.model.layers.{layer}.{name}"
            weights[f"{base}.lora_A.weight"] = INIT_STD * torch.randn(
                rank, num_in, generator=generator
            )
            weights[f"{base}.lora_B.weight"] = INIT_STD * torch.randn(
                num_out, rank, generator=generator
            )
    folder.mkdir(parents=True)
    save_file(weights, folder / "adapter_model.safetensors")
    adapter_config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.rpartition(".")[2] for name in shapes}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(adapter_config))
    return folder


def _common() -> dict[str, Any]:
    return {
        "vocab_size": 49152,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": INIT_STD,
    }


def _save(
    config: Any, folder: Path, seed: int, causal: bool = True, norm_std: float = INIT_STD
) -> Path:
    import torch
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(seed)
    auto: Any = AutoModelForCausalLM if causal else AutoModel
    model = auto.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms, biases and sinks start at a constant
                parameter.add_(norm_std * torch.randn_like(parameter))
    model.to(torch.float32).save_pretrained(folder)
    AutoTokenizer.from_pretrained(smollm2()).save_pretrained(folder)
    return folder
