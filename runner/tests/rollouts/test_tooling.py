"""What an episode does with the time that its tools and its environment have."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from stoker.rollouts.tooling import Episode, Tooling, seconds_of
from stoker.rollouts.user_code import Functions, Limits, UserCode


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], 0),
        ([[5, 7]], 2),
        ([[9, 10], [5, 7]], 3),
        ([[5, 8], [6, 9]], 4),
        ([[5, 9], [6, 7], [8, 10]], 5),
    ],
    ids=["none", "one", "one after the other", "at once", "one beside others"],
)
def test_seconds_count_once_while_a_function_runs(spans: list[list[float]], seconds: float) -> None:
    assert seconds_of(spans) == seconds


class Busy:
    """A process of users' code whose functions took so long.

    Attributes:
        asked: how long the functions of each request may take.
    """

    life = 1
    functions = Functions(environments={"": "mine:Room"})
    limits = Limits(episode_seconds=600)

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def ask(self, do: str, seconds: float, limit: str, **request: Any) -> Any:
        """Answer at once."""
        self.asked.append(seconds)
        if do == "open":
            return {"shown": None, "ran": [[1, 3], [4, 5]]}
        return {"content": "4", "failed": False, "ran": [[10, 12]]}


def test_an_episode_pays_only_while_its_functions_run() -> None:
    code = Busy()

    async def play() -> None:
        episode = Episode(Tooling(cast(UserCode, code)), {"prompt": "2+2="}, 0)
        await episode.begin("2+2=")
        for _ in range(2):
            await episode.call([{"function": {"name": "double"}}] * 2)

    asyncio.run(play())
    assert code.asked == [600, 597, 597, 595, 595]
