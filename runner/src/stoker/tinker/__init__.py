"""An endpoint that the public `tinker` client trains through: LoRA models on one base model, sampled from vLLM."""
