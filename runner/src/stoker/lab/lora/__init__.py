"""LoRA layers of our own: they train in a transformers model and serve in vLLM's fused layers, as the same tensors."""
