"""vllm-ascend's worker environment on a CPU: patches, configuration, one-rank process groups."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "vocab_size": 512,
    "torch_dtype": "bfloat16",
}


@contextlib.contextmanager
def entered() -> Iterator[None]:
    """Everything that holds for a whole process."""
    import vllm.utils.torch_utils as torch_utils

    original = torch_utils.direct_register_custom_op

    def on_cpu(*args: Any, **kw: Any) -> None:
        if kw.get("dispatch_key") == "PrivateUse1":
            kw["dispatch_key"] = "CPU"
        original(*args, **kw)

    torch_utils.direct_register_custom_op = on_cpu
    from tests.ascend_stub import xyserve_ops

    xyserve_ops.register()
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    current_platform.pre_register_and_update()
    import vllm_ascend.ops  # noqa: F401
    from vllm_ascend.utils import adapt_patch

    adapt_patch()
    yield


def model_folder(**changes: Any) -> str:
    """A folder with the config of a tiny Llama; weights are never loaded."""
    folder = Path(tempfile.mkdtemp(prefix="xyserve-ascend-model-"))
    (folder / "config.json").write_text(json.dumps(LLAMA | changes))
    return str(folder)


def make_config(options: dict[str, Any] | None = None, **args: Any) -> Any:
    """A whole configuration, as the front end makes it."""
    from vllm.engine.arg_utils import EngineArgs

    args = {
        "model": model_folder(**args.pop("model_config", {})),
        "skip_tokenizer_init": True,
        "max_model_len": 2048,
        "max_num_seqs": 16,
        "dtype": "bfloat16",
        "additional_config": {"xyserve": options or {}},
    } | args
    return EngineArgs(**args).create_engine_config()


@contextlib.contextmanager
def using(config: Any) -> Iterator[Any]:
    """The configuration as the current one, with vllm-ascend's made of it."""
    from vllm.config import set_current_vllm_config
    from vllm_ascend.ascend_config import clear_ascend_config, init_ascend_config
    from vllm_ascend.attention.utils import enable_cp, needs_layer_aware_fia_graph_replay

    clear_ascend_config()
    init_ascend_config(config)
    for cached in (enable_cp, needs_layer_aware_fia_graph_replay):
        cached.cache_clear()
    with set_current_vllm_config(config):
        yield config


NATIVE = {"attention": "native", "linear": "native"}


def close(ours: torch.Tensor, expected: torch.Tensor, tolerance: float = 2e-2) -> None:
    """Compare, with NaN and infinities as failures."""
    assert torch.isfinite(ours.float()).all()
    torch.testing.assert_close(ours.float(), expected.float(), atol=tolerance, rtol=tolerance)
