"""An OpenEnv environment as TRL's `environment_factory`, for the method grpo_async.

Each sample has a session of its own on the environment's server. While it waits it costs a coroutine, not a thread.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from openenv.core import GenericEnvClient


class OpenEnv:
    """One session with an environment's server; its reward is the sum of what the steps earned.

    Args:
        url: address of the server.
    """

    def __init__(self, url: str) -> None:
        self._client = GenericEnvClient(base_url=url)
        self._reward = 0.0
        self._done = False

    async def reset(self, seed: int | None = None, **row: Any) -> str:
        """Begin an episode; a column `seed` makes it the same for all samples of a row."""
        await self._client.disconnect()  # a server forgets sessions that idle
        result = await self._client.reset(**({} if seed is None else {"seed": seed}))
        self._reward, self._done = 0.0, result.done
        return f"\n{json.dumps(result.observation)}"

    async def step(self, action: dict) -> str:  # type: ignore[type-arg]  # the chat template shows what stands here
        """Act in the environment.

        Args:
            action: The action, such as {"message": "hello"}.
        """
        if self._done:
            raise ValueError("the episode is over")
        result = await self._client.step(action)
        self._reward += result.reward or 0.0
        self._done = result.done
        return json.dumps(result.observation)

    def get_reward(self) -> float:
        """Return what the episode earned."""
        return self._reward


def at(url: str) -> Callable[[], OpenEnv]:
    """Return a factory for the environment at an address."""
    return functools.partial(OpenEnv, url)
