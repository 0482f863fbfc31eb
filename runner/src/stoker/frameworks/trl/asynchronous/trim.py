"""Cuts the padding from micro-batches that only rows of others need.

Only training processes import this module, because it imports torch.
"""

from __future__ import annotations

from typing import Any

import torch

# Tensors of a micro-batch with a column per token: of the prompt, padded on its left, and of the answer, on its right.
_OF_PROMPTS = ("prompt_ids", "prompt_mask")
_OF_ANSWERS = (
    *("completion_ids", "completion_mask", "tool_mask"),
    *("old_per_token_logps", "sampling_per_token_logps", "importance_sampling_ratio", "ref_per_token_logps"),
)


def trimmed(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return a micro-batch without the columns that only rows of other micro-batches need."""
    first = _columns(inputs["prompt_mask"].flip(-1))
    last = _columns(inputs["completion_mask"])
    found = dict(inputs)
    for name in _OF_PROMPTS:
        found[name] = inputs[name][:, inputs[name].size(1) - first :]
    width = inputs["completion_ids"].size(1)
    for name in _OF_ANSWERS:
        # A ratio of whole answers has one column.
        if inputs.get(name) is not None and inputs[name].size(1) == width:
            found[name] = inputs[name][:, :last]
    return found


def _columns(mask: torch.Tensor) -> int:
    """Return how many columns, from the left, have a token in any row; at least one."""
    used = mask.bool().any(dim=0).nonzero()
    return int(used.max()) + 1 if len(used) else 1
