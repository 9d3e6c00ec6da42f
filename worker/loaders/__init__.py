"""Weights from files: GGUF, safetensors, or random ones of the right shape."""
