"""What stands for torch's FlashAttention where there is no GPU: the same attention, sample by sample."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention


def varlen_on_cpus(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: torch.Tensor,
    key_bounds: torch.Tensor,
    longest: int,
    longest_keys: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> torch.Tensor:
    """Return what `torch.nn.attention.varlen.varlen_attn` returns; arguments as there."""
    assert bounds is key_bounds
    assert query.dtype == key.dtype == value.dtype
    lengths = bounds.diff().tolist()
    assert (longest, longest_keys) == (max(lengths), max(lengths))
    before, after = window_size
    assert after == 0
    found = []
    for sample in zip(*(each.split(lengths) for each in (query, key, value)), strict=True):
        places = torch.arange(len(sample[0]))
        distance = places[:, None] - places[None, :]
        seen = (distance >= 0) & ((distance <= before) if before >= 0 else True)
        heads_first = [each.transpose(0, 1)[None] for each in sample]
        seen_by = scaled_dot_product_attention(*heads_first, attn_mask=seen, scale=scale, enable_gqa=enable_gqa)
        found.append(seen_by[0].transpose(0, 1))
    return torch.cat(found)
