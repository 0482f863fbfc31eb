"""The tokens of one episode, in the order they were sampled or added. Nothing is ever encoded again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stoker.rollouts.records import Turn


@dataclass(slots=True)
class Trail:
    """What the policy has before it, and what of it the policy wrote.

    A chat template may render earlier messages anew, for example without their reasoning. The policy then continues a
    text that it did not write: the episode branches, and its row starts over with that text as its prompt.

    Attributes:
        prompt_ids: the prompt of the row.
        completion_ids: what came after it.
        mask: 1 where the policy wrote the token.
        logprobs: of the tokens; 0.0 where the mask is 0.
        branches: how often the episode branched.
        first: length of the first prompt.
        untrained: tokens that the policy wrote before the last branch, which no row holds.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    branches: int = 0
    untrained: int = 0
    first: int = field(init=False)

    def __post_init__(self) -> None:
        self.first = len(self.prompt_ids)

    @property
    def tokens(self) -> tuple[int, ...]:
        """All of it: the next prompt."""
        return (*self.prompt_ids, *self.completion_ids)

    @property
    def spent(self) -> int:
        """How many tokens came after the first prompt."""
        return len(self.prompt_ids) + len(self.completion_ids) - self.first

    def wrote(self, turn: Turn) -> None:
        """Add what the policy wrote."""
        self.completion_ids += turn.completion_ids
        self.mask += [1] * len(turn.completion_ids)
        self.logprobs += turn.logprobs

    def told(self, ids: Sequence[int]) -> None:
        """Add what the policy was told."""
        self.completion_ids += ids
        self.mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def rendered(self, ids: Sequence[int]) -> None:
        """Go on from the whole conversation as the chat template renders it now."""
        so_far = self.tokens
        if tuple(ids[: len(so_far)]) == so_far:
            self.told(ids[len(so_far) :])
            return
        self.branches += 1
        self.untrained += sum(self.mask)
        self.prompt_ids = tuple(ids)
        self.completion_ids, self.mask, self.logprobs = [], [], []
