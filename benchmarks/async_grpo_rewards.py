"""The reward of benchmarks/async_grpo.py: 1 for the right sum, at once or after a wait.

The wait stands for what answers are judged with: a tool, a sandbox, another model. Only that it waits matters here.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

Rewards = list[float]


def right_sum(completions: list[Any], answer: list[str], **_: Any) -> Rewards:
    """Return 1.0 for each completion that is the sum, a text or the messages of one, and 0.0 for any other."""
    texts = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    return [float(text.strip() == right) for text, right in zip(texts, answer, strict=True)]


def wait_of(seconds: float, spread: float, key: str) -> float:
    """Return the wait of one group, the same for the same key.

    Args:
        seconds: the mean of all.
        spread: of their logarithms, which are normally distributed. 0.0: all are the mean.
        key: which group.
    """
    if not spread:
        return seconds
    return random.Random(key).lognormvariate(math.log(seconds) - spread**2 / 2, spread)


def after(seconds: float, spread: float = 0.0, places: int = 0) -> Callable[..., Awaitable[Rewards]]:
    """Return a reward function that waits before it judges a group.

    Args:
        seconds: the mean wait of a group.
        spread: as for `wait_of`.
        places: how many groups may wait at the same time, the others queue for it. 0: any number.
    """
    room = asyncio.Semaphore(places) if places else nullcontext()
    seen: Counter[str] = Counter()

    async def right_sum_later(prompts: list[str], completions: list[str], answer: list[str], **_: Any) -> Rewards:
        seen[prompts[0]] += 1
        async with room:
            await asyncio.sleep(wait_of(seconds, spread, f"{prompts[0]}{seen[prompts[0]]}"))
        return right_sum(completions, answer)

    return right_sum_later
