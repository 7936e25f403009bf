"""Everything that depends on the vLLM version or reaches into vLLM; found by probing features."""
