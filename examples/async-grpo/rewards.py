"""The reward of this example: the answer is right, or it is not."""

from typing import Any


def right_sum(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """Return 1.0 for each completion that is the sum, 0.0 for any other.

    Args:
        completions: what the samplers wrote.
        answer: the data's column of this name, one per completion.
    """
    return [float(completion.strip() == right) for completion, right in zip(completions, answer, strict=True)]
