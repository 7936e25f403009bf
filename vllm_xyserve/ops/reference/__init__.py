"""Plain fp32 torch twins of the kernels: to compare with, and where nothing else runs."""
