"""Meta-Attention: one attention backend for prefill, decode, verify and any mix of them."""
