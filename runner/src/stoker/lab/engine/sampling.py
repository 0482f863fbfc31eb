"""How an engine samples."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sampling:
    """How answers are sampled.

    Attributes:
        max_tokens: tokens that an answer may have.
        temperature: 0 takes the most likely token.
        top_p: probability that the tokens to choose from have together.
        top_k: tokens to choose from; 0 is all.
        seed: makes answers repeat, if it is not None.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
