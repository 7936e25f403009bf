"""Predicted time of the Ascend 910B kernels, from published numbers. docs/ascend-model.md."""
