"""LoRA adapters from a finished run to a vLLM server: published, checked, and kept loaded on every replica."""
