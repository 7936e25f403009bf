"""A stand-in for torch_npu, so that vllm-ascend's Python runs without an NPU."""
