"""Kernels behind one registry: native (C++), and plain fp32 twins in `reference`.

`native` loads the library, `registry` says what exists and what ran, the other modules hold the
operations with their argument checks. Nothing here imports vLLM; importing the package alone does
not import torch.
"""
