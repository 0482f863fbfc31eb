"""Attention of packed rows by torch's own FlashAttention, which computes nothing between the samples of a row.

Only training processes import this module, because it imports torch and transformers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from stoker.contract.exits import ExitCode, RunError
from stoker.frameworks.trl.known_words import VARLEN
from stoker.plan.model_shape import FAMILIES


def register_varlen_attention() -> None:
    """Make transformers know this attention by its name."""
    AttentionInterface.register(VARLEN, attend)
    AttentionMaskInterface.register(VARLEN, mask_unless_causal)


def mask_unless_causal(
    *,
    q_length: int,
    kv_length: int,
    config: PreTrainedConfig,
    attention_mask: torch.Tensor | None = None,
    use_vmap: bool = False,
    **options: Any,
) -> torch.Tensor | None:
    """Return the mask of padded rows, and of models whose masks are unknown; None where `attend` knows what is seen.

    `use_vmap` is true for masks that a model adds to: it may see what comes later.
    """
    if attention_mask is None and q_length == kv_length and not use_vmap and config.model_type in FAMILIES:
        return None
    return sdpa_mask(
        q_length=q_length,
        kv_length=kv_length,
        config=config,
        attention_mask=attention_mask,
        use_vmap=use_vmap,
        **options,
    )


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    position_ids: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return the causal attention of each sample to itself, as transformers' attentions do.

    Args:
        module: the layer.
        query: of all tokens: rows × heads × tokens × size; so are key and value, which may have fewer heads.
        key: see query.
        value: see query.
        attention_mask: what each token sees, where this attention does not know it; torch's `sdpa` computes that.
        scaling: of the scores; None for the usual one.
        sliding_window: how many tokens each one sees, itself included; None for all before it.
        position_ids: place of each token in its sample, where the collator does not say where samples begin.
        cu_seq_lens_q: where each sample begins, and the end of the last one.
        max_length_q: tokens of the longest sample.
        options: other options of transformers' attentions.

    Raises:
        RunError: the model needs what this attention cannot compute.
    """
    wanted = {
        "dropout of scores": options.get("dropout") or None,
        "cap on scores": options.get("softcap"),
        "attention sinks": options.get("s_aux"),
    }
    for name, asked in wanted.items():
        if asked is not None:
            raise RunError(
                ExitCode.USAGE, f"--attn_implementation {VARLEN} has no {name}, as the model needs: leave it out"
            )
    if attention_mask is not None or query.shape[2] != key.shape[2]:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)[0], None
    rows, heads, length, _ = query.shape
    if cu_seq_lens_q is None or max_length_q is None:
        cu_seq_lens_q, max_length_q = _bounds(position_ids, rows, length, query.device)
    # Norms and adapters may give float32, which autocast rounds for torch's own attention, but not for this one.
    device = query.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else value.dtype
    tokens = [tensor.transpose(1, 2).flatten(0, 1).to(dtype) for tensor in (query, key, value)]
    window = (-1 if sliding_window is None else sliding_window - 1, 0)
    bounds = (cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q)
    found = varlen_attn(*tokens, *bounds, scale=scaling, window_size=window, enable_gqa=True)
    return found.view(rows, length, heads, -1), None


def _bounds(
    position_ids: torch.Tensor | None, rows: int, length: int, device: torch.device
) -> tuple[torch.Tensor, int]:
    """Return where each sample begins, with the end of the last one, and the tokens of the longest."""
    begins = torch.zeros(rows, length, dtype=torch.bool, device=device)
    begins[:, 0] = True
    if position_ids is not None:
        begins[:, 1:] = position_ids.expand(rows, length).diff() != 1
    end = torch.tensor([rows * length], device=device)
    bounds = torch.cat([begins.flatten().nonzero().flatten(), end]).to(torch.int32)
    return bounds, int(bounds.diff().max())
