"""How much arithmetic a dense decoder needs for each token that it trains on, from its config.json. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# What a config has whose model is no dense decoder: only some of its weights meet a token.
_MIXTURES = ("num_experts", "num_local_experts", "n_routed_experts")


class UnknownModelError(Exception):
    """This arithmetic does not hold for the model; the message says why."""


def flops_per_token(config: Mapping[str, Any], context: float, trains_all: bool) -> float:
    """Return the floating point operations that training needs for one token.

    Counted are the products of the model, forward and backward: two operations for each weight of its matrices and each
    product of the attention. Backward costs as much again for the activations, and again for the weights if all are
    trained. What an adapter adds is left out, and so is what gradient checkpointing computes twice: the result is what
    the model needs, not what the GPU does.

    Args:
        config: the model's config.json.
        context: tokens that a token attends to, itself included, on average (see `mean_context`).
        trains_all: whether all weights are trained; else an adapter.

    Raises:
        UnknownModelError: the model is no dense decoder whose layers attend to all that came before.
    """
    weights, attended = _matrix_weights(config), _attention_width(config)
    passes = 3 if trains_all else 2
    # Scores and values are products of activations only, so both of their gradients are always needed.
    return 2 * weights * passes + 2 * 2 * attended * context * 3


def mean_context(lengths: Sequence[int]) -> float:
    """Return how many tokens a token attends to on average, in samples of these lengths that do not see each other."""
    return sum(length * (length + 1) / 2 for length in lengths) / sum(lengths)


def _matrix_weights(config: Mapping[str, Any]) -> int:
    """Return the weights that each token is multiplied with: all but the embedding, which is looked up, and norms."""
    mixture = [name for name in _MIXTURES if config.get(name)]
    if mixture:
        raise UnknownModelError(f"config.json has {mixture[0]}: only dense models can be measured")
    partial = sorted({*(config.get("layer_types") or ())} - {"full_attention"})
    if partial:
        raise UnknownModelError(f"config.json has layers of {partial[0]}: only full attention can be measured")
    hidden, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    groups = config.get("num_key_value_heads") or heads
    attention = 2 * hidden * _head(config) * (heads + groups)  # query and output; key and value
    mlp = 3 * hidden * _number(config, "intermediate_size")
    return _number(config, "num_hidden_layers") * (attention + mlp) + hidden * _number(config, "vocab_size")


def _attention_width(config: Mapping[str, Any]) -> int:
    """Return the numbers of all heads and layers that meet each attended token."""
    return _number(config, "num_hidden_layers") * _number(config, "num_attention_heads") * _head(config)


def _head(config: Mapping[str, Any]) -> int:
    return config.get("head_dim") or _number(config, "hidden_size") // _number(config, "num_attention_heads")


def _number(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int):
        raise UnknownModelError(f"config.json has no {name}: only dense decoders can be measured")
    return value
