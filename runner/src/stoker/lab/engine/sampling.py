"""How an engine samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from stoker.lab.errors import refuse
from stoker.lab.fields import is_whole, must_be, number


@dataclass(frozen=True)
class AnswerSampling:
    """How answers are sampled.

    Attributes:
        max_tokens: tokens that an answer may have.
        temperature: 0 takes the most likely token.
        top_p: probability that the tokens to choose from have together.
        top_k: tokens to choose from; 0 is all.
        seed: makes answers repeat, if it is not None.

    Raises:
        LabError: names every field that is wrong.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        refuse(self._problems())

    def _problems(self) -> Iterator[str]:
        if not is_whole(self, "max_tokens", 1):
            yield must_be(self, "max_tokens", "a whole number, 1 or more", "generate")
        if not 0 <= number(self, "temperature") < math.inf:
            yield must_be(self, "temperature", "a number, 0 or more", "generate")
        if not 0 < number(self, "top_p") <= 1:
            yield must_be(self, "top_p", "a number, more than 0 and at most 1", "generate")
        if not is_whole(self, "top_k", 0):
            yield must_be(self, "top_k", "a whole number; 0 is all tokens", "generate")
        if self.seed is not None and not is_whole(self, "seed", 0):
            yield must_be(self, "seed", "a whole number, 0 or more, or None", "generate")
