"""Meta-Attention on Ascend, on top of vllm-ascend's attention backend."""
