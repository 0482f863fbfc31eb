"""The example for OpenEnv against a server of the real package: `python openenv_cases.py PORT` prints what it saw.

Runs in an environment with `openenv-core`. PYTHONPATH has the example's folder.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_app

EXAMPLE: Any = importlib.import_module("openenv_environment")
STEPS = 2
SECONDS = 60.0


class Said(Action):
    """What the policy does."""

    message: str


class Heard(Observation):
    """What the environment says, and the seed of its episode."""

    heard: str = ""
    seed: int = 0


class Echo(Environment):
    """Says what it hears, and earns a point for each character of it; two steps end an episode."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._seed = self._steps = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **row: Any) -> Heard:
        """Begin an episode."""
        self._seed, self._steps = seed or 0, 0
        return Heard(seed=self._seed)

    def step(self, action: Said, timeout_s: float | None = None, **more: Any) -> Heard:
        """Answer."""
        self._steps += 1
        said = action.message
        return Heard(heard=said, seed=self._seed, reward=float(len(said)), done=self._steps == STEPS)

    @property
    def state(self) -> State:
        """How far it is."""
        return State(step_count=self._steps)


@contextmanager
def served(port: int) -> Iterator[str]:
    """Serve the environment while the body runs; yields its address."""
    app = create_app(Echo, Said, Heard, env_name="echo", max_concurrent_envs=2)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + SECONDS
    while not server.started:
        if time.monotonic() > deadline or not thread.is_alive():
            raise AssertionError("the server did not start")
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


async def play(url: str) -> dict[str, Any]:
    """Play two episodes at once, in turns, and begin a third; return what was seen."""
    factory = EXAMPLE.at(url=url)
    one, other = factory(), factory()
    begun = [await one.reset(seed=3, prompt="p", answer="4"), await other.reset(seed=5)]
    said = [
        await one.step({"message": "hello"}),
        await other.step({"message": "hi"}),
        await one.step({"message": "bye"}),
    ]
    try:
        await one.step({"message": "again"})
    except ValueError as error:
        over = str(error)
    else:
        over = ""
    rewards = [one.get_reward(), other.get_reward()]
    begun.append(await one.reset())
    return {
        "begun": [json.loads(text) for text in begun],
        "said": [json.loads(text) for text in said],
        "over": over,
        "rewards": [*rewards, one.get_reward()],
    }


def main() -> None:
    """Serve and play."""
    with served(int(sys.argv[1])) as url:
        print(json.dumps(asyncio.run(play(url))))


if __name__ == "__main__":
    main()
