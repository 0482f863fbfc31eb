"""How many weights a model has and where they lie, from its `config.json`. Pure.

The families are decoders as transformers 5 builds them. Tests compare every family with the models themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# Bytes of a number by the names that configurations and flags use.
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# No model has a larger size.
_LARGEST = 2**24


@dataclass(frozen=True, slots=True)
class Linear:
    """Linear layers of one name.

    Attributes:
        name: its name in a block, for example `q_proj`.
        inputs: numbers that go in.
        outputs: numbers that come out.
        count: how many the model has.
    """

    name: str
    inputs: int
    outputs: int
    count: int

    @property
    def weights(self) -> int:
        """The weights of all of them, without biases."""
        return self.inputs * self.outputs * self.count


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The weights of a model.

    Attributes:
        family: `model_type` of its configuration.
        linears: the linear layers of its blocks.
        experts: weights of experts, which lie in one tensor for all experts of a block and are not linear layers.
        expert_width: numbers that go into and come out of the experts' matrices, all together: an adapter has at least
            so many weights per rank on them.
        others: all other weights: embeddings, output head, norms, biases, routers.
        dtype: the type of the stored weights, for example `bfloat16`.
        head_size: size of an attention head.
        drops_attention: whether attention has dropout in training.
    """

    family: str
    linears: tuple[Linear, ...]
    experts: int
    expert_width: int
    others: int
    dtype: str
    head_size: int
    drops_attention: bool

    @property
    def weights(self) -> int:
        """All weights."""
        return sum(linear.weights for linear in self.linears) + self.experts + self.others


@dataclass(frozen=True, slots=True)
class _Family:
    """What distinguishes a family.

    Attributes:
        biased: the projections that have a bias, given the configuration.
        norms: norms of a block, each as wide as the model.
        head_norms: weights of a block's norms of queries and keys, from heads, key heads and head size.
        head_size: size of a head where the configuration has none; None for the width divided by the heads.
        tied: whether output head and embeddings are one, where the configuration does not say.
        fused: True if queries, keys and values are one projection, and so are gate and up.
    """

    biased: Callable[[Mapping[str, Any]], tuple[str, ...]]
    norms: int = 2
    head_norms: Callable[[int, int, int], int] = lambda heads, key_heads, size: 0
    head_size: int | None = None
    tied: bool = False
    fused: bool = False


_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")


def _attention_as_configured(config: Mapping[str, Any]) -> tuple[str, ...]:
    return _ATTENTION if config.get("attention_bias") else ()


def _as_configured(config: Mapping[str, Any]) -> tuple[str, ...]:
    return _attention_as_configured(config) + (_MLP if config.get("mlp_bias") else ())


def _one_norm_per_head(heads: int, key_heads: int, size: int) -> int:
    return 2 * size


def _none(config: Mapping[str, Any]) -> tuple[str, ...]:
    return ()


_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(_as_configured),
    "granite": _Family(_as_configured),
    "smollm3": _Family(_as_configured, tied=True),
    "mistral": _Family(_none),
    "mixtral": _Family(_none),
    "phi3": _Family(_none, fused=True),
    "qwen2": _Family(lambda config: _ATTENTION[:3]),
    "qwen3": _Family(_attention_as_configured, head_norms=_one_norm_per_head, head_size=128),
    "qwen3_moe": _Family(_attention_as_configured, head_norms=_one_norm_per_head),
    "olmo2": _Family(_attention_as_configured, head_norms=lambda heads, key_heads, size: (heads + key_heads) * size),
    "gemma2": _Family(_attention_as_configured, norms=4, head_size=256, tied=True),
    "gemma3_text": _Family(_attention_as_configured, norms=4, head_norms=_one_norm_per_head, head_size=256, tied=True),
}
FAMILIES = tuple(_FAMILIES)


def shape_of(config: Mapping[str, Any]) -> ModelShape | None:
    """Return the weights of the model with this `config.json`.

    None if its family is not known, a size is missing, or the stored weights are quantized.
    """
    family = _FAMILIES.get(str(config.get("model_type")))
    try:
        return None if family is None or config.get("quantization_config") else _shape(config, family)
    except (KeyError, TypeError, ValueError):
        return None


def _size(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a size of a configuration, or the default if it has none.

    Raises:
        KeyError: it has none, and there is no default.
        ValueError: it is not a size.
    """
    size = config[name] if default is None else config.get(name)
    if size is None and default is not None:
        return default
    if type(size) is not int or not 0 < size <= _LARGEST:
        raise ValueError(f"{name} is {size!r}")
    return size


def _shape(config: Mapping[str, Any], family: _Family) -> ModelShape:
    width, layers = _size(config, "hidden_size"), _size(config, "num_hidden_layers")
    heads = _size(config, "num_attention_heads")
    key_heads = _size(config, "num_key_value_heads", heads)
    size = _size(config, "head_dim", family.head_size or width // heads)
    sparse, experts, routers = _experts(config, width, layers)
    inner = _size(config, "intermediate_size") if sparse < layers else 0

    linears = _attention(family, width, heads * size, key_heads * size, layers)
    if inner:
        linears += _mlp(family, width, inner, layers - sparse)
    biases = sum(linear.outputs * linear.count for linear in linears if linear.name in family.biased(config))
    embeddings = _size(config, "vocab_size") * width
    tied = config.get("tie_word_embeddings")
    others = embeddings * (1 if (family.tied if tied is None else tied) else 2)
    others += width + layers * (family.norms * width + family.head_norms(heads, key_heads, size))
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    others += biases + routers
    drops = bool(config.get("attention_dropout"))
    return ModelShape(str(config["model_type"]), linears, *experts, others, dtype, size, drops)


def _attention(family: _Family, width: int, queries: int, keys: int, layers: int) -> tuple[Linear, ...]:
    out = Linear("o_proj", queries, width, layers)
    if family.fused:
        return Linear("qkv_proj", width, queries + 2 * keys, layers), out
    q, k, v = (Linear(f"{name}_proj", width, size, layers) for name, size in (("q", queries), ("k", keys), ("v", keys)))
    return q, k, v, out


def _mlp(family: _Family, width: int, inner: int, layers: int) -> tuple[Linear, ...]:
    down = Linear("down_proj", inner, width, layers)
    if family.fused:
        return Linear("gate_up_proj", width, 2 * inner, layers), down
    return Linear("gate_proj", width, inner, layers), Linear("up_proj", width, inner, layers), down


def _experts(config: Mapping[str, Any], width: int, layers: int) -> tuple[int, tuple[int, int], int]:
    """Return how many blocks have experts, the experts' weights and width, and the weights of the routers."""
    names = [name for name in ("num_experts", "num_local_experts") if config.get(name)]
    if not names:
        return 0, (0, 0), 0
    count = _size(config, names[0])
    inner = _size(config, "moe_intermediate_size" if config.get("moe_intermediate_size") else "intermediate_size")
    step, dense = _size(config, "decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
    sparse = sum(1 for layer in range(layers) if layer not in dense and (layer + 1) % step == 0)
    matrices = sparse * count
    return sparse, (matrices * 3 * width * inner, matrices * (2 * width + 3 * inner)), matrices * width
