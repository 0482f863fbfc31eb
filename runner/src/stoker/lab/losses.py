"""The two losses as modules, for training loops of one's own: equal to those of transformers and TRL."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from stoker.lab.data import IGNORED


class CausalLMLoss(nn.Module):
    """Cross entropy of the next token, in float32, where the label is not -100.

    It takes the mean over the tokens of the batch. With gradient accumulation a batch is a part of a step: hand over
    the number of tokens of the whole step, and the parts add up to the mean of the step.
    """

    def forward(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the loss.

        Args:
            logits: of shape (rows, tokens, vocabulary).
            labels: the token ids, of shape (rows, tokens); -100 where nothing is learned.
            attention_mask: 0 where a batch is padded: no loss there, whatever the labels say.
            num_items_in_batch: tokens to divide by; those of this batch by default.
        """
        if attention_mask is not None:
            labels = labels.masked_fill(attention_mask == 0, IGNORED)
        learned = labels[..., 1:].reshape(-1).to(logits.device)
        total = functional.cross_entropy(
            logits[..., :-1, :].reshape(-1, logits.size(-1)).float(), learned, ignore_index=IGNORED, reduction="sum"
        )
        count = (learned != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        # A batch without a token to learn has no loss, rather than 0 / 0.
        return total / torch.as_tensor(count, device=total.device).clamp(min=1)


class DPOLoss(nn.Module):
    """Direct preference optimization: how sure the policy is of each pair, beyond what the reference is.

    Args:
        beta: how close the policy keeps to the reference: more is closer.
    """

    def __init__(self, beta: float = 0.1) -> None:
        super().__init__()
        self.beta = beta

    def forward(
        self,
        policy_chosen_logps: torch.Tensor,
        policy_rejected_logps: torch.Tensor,
        ref_chosen_logps: torch.Tensor,
        ref_rejected_logps: torch.Tensor,
    ) -> torch.Tensor:
        """Return the mean loss of pairs, from the log-probability of each whole answer."""
        chosen = policy_chosen_logps - ref_chosen_logps
        rejected = policy_rejected_logps - ref_rejected_logps
        return -functional.logsigmoid(self.beta * (chosen - rejected)).mean()
