"""Configurations of published models, without their weights."""

from __future__ import annotations

from typing import Any

QWEN = {"model_type": "qwen3", "head_dim": 128, "vocab_size": 151936, "num_key_value_heads": 8}
QWEN_8B = {
    **QWEN,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
LLAMA = {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8}
GEMMA = {"model_type": "gemma3_text", "vocab_size": 262144, "num_attention_heads": 4, "num_key_value_heads": 1}


def sized(width: int, inner: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    """Return the sizes that every configuration has."""
    sizes = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers}
    return {**sizes, "num_attention_heads": heads, **more}


# Configuration → how many weights the published model has.
PUBLISHED = {
    "Qwen3-0.6B": ({**QWEN, **sized(1024, 3072, 28, 16), "tie_word_embeddings": True}, 596_049_920),
    "Qwen3-1.7B": ({**QWEN, **sized(2048, 6144, 28, 16), "tie_word_embeddings": True}, 1_720_574_976),
    "Qwen3-4B": ({**QWEN, **sized(2560, 9728, 36, 32), "tie_word_embeddings": True}, 4_022_468_096),
    "Qwen3-8B": (QWEN_8B, 8_190_735_360),
    "Qwen3-14B": ({**QWEN, **sized(5120, 17408, 40, 40), "tie_word_embeddings": False}, 14_768_307_200),
    "Qwen3-32B": ({**QWEN, **sized(5120, 25600, 64, 64), "tie_word_embeddings": False}, 32_762_123_264),
    "Qwen3-30B-A3B": (
        {
            **sized(2048, 6144, 48, 32, moe_intermediate_size=768, num_experts=128, head_dim=128),
            "model_type": "qwen3_moe",
            "vocab_size": 151936,
            "num_key_value_heads": 4,
        },
        30_532_122_624,
    ),
    "Qwen2.5-1.5B": (
        {**sized(1536, 8960, 28, 12, num_key_value_heads=2), "model_type": "qwen2", "vocab_size": 151936}
        | {"tie_word_embeddings": True},
        1_543_714_304,
    ),
    "Llama-3.2-1B": ({**LLAMA, **sized(2048, 8192, 16, 32), "tie_word_embeddings": True}, 1_235_814_400),
    "Llama-3.2-3B": ({**LLAMA, **sized(3072, 8192, 28, 24), "tie_word_embeddings": True}, 3_212_749_824),
    "Llama-3.1-8B": ({**LLAMA, **sized(4096, 14336, 32, 32)}, 8_030_261_248),
    "Llama-3.3-70B": ({**LLAMA, **sized(8192, 28672, 80, 64)}, 70_553_706_496),
    "gemma-3-270m": ({**GEMMA, **sized(640, 2048, 18, 4), "head_dim": 256}, 268_098_176),
    "gemma-3-1b": ({**GEMMA, **sized(1152, 6912, 26, 4), "head_dim": 256}, 999_885_952),
    "Phi-3-mini": ({**sized(3072, 8192, 32, 32), "model_type": "phi3", "vocab_size": 32064}, 3_821_079_552),
    "Mistral-7B-v0.3": (
        {**sized(4096, 14336, 32, 32, num_key_value_heads=8), "model_type": "mistral", "vocab_size": 32768},
        7_248_023_552,
    ),
}
