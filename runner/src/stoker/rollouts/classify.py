"""Asks a reward model that vLLM serves: its path `/classify`, with raw scores."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from http.client import HTTPException
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts.background import in_background
from stoker.rollouts.chat import is_conversation
from stoker.rollouts.failures import UserCodeError

# Requests at the same time, each in a thread.
_REQUESTS = 32
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_SECONDS_BETWEEN_SIGNS = 1.0
# What to write instead of an address with something else behind it.
_OF_A_SERVER = "write the address of a vLLM server with a reward model, and behind it ?model=NAME if it serves several"


class RewardModel:
    """A reward model behind an address.

    Args:
        address: of its server, such as `http://reward-model:8000`; `?model=NAME` names one of several.
        seconds: how long to try to have a request answered, from when it is first sent.
        setting: what the user sets the seconds with, for messages.

    Attributes:
        name: for metrics.
    """

    def __init__(self, address: str, seconds: float, setting: str = "--reward_seconds") -> None:
        parts = urllib.parse.urlsplit(address)
        self._model = dict(urllib.parse.parse_qsl(parts.query)).get("model")
        path = parts.path.rstrip("/")
        self._address = parts._replace(
            path=path if path.endswith("/classify") else f"{path}/classify", query=""
        ).geturl()
        self._seconds, self._setting = seconds, setting
        self._slots = asyncio.Semaphore(_REQUESTS)
        self.name = self._model or parts.hostname or address

    async def score(self, prompts: Sequence[Any], completions: Sequence[Any]) -> list[float | None]:
        """Return the model's score of each sample.

        Texts go in one request. Conversations go in one each, because the server applies the chat template to one.

        Raises:
            UserCodeError: the server refuses a sample, or does not serve a reward model.
            RunError: it does not answer (69).
        """
        if not isinstance(prompts[0], str):
            bodies = [{"messages": [*p, *c]} for p, c in zip(prompts, completions, strict=True)]
            return [score for scores in await asyncio.gather(*map(self._ask, bodies)) for score in scores]
        return await self._ask({"input": [p + c for p, c in zip(prompts, completions, strict=True)]})

    async def check(self, prompt: Any, waiting: Callable[[str], None]) -> None:
        """Wait until the server has judged a sample, so that a wrong address is told before the first step.

        Args:
            prompt: of a row of the data.
            waiting: called about once a second with what it waits for.

        Raises:
            RunError: it does not answer (69), or is no server of a reward model that takes this data (78).
        """
        completion = [{"role": "assistant", "content": "."}] if is_conversation(prompt) else "."
        asked = asyncio.ensure_future(self.score([prompt], [completion]))
        try:
            while not (await asyncio.wait([asked], timeout=_SECONDS_BETWEEN_SIGNS))[0]:
                waiting(f"waiting for the reward model at {self._address}")
            await asked
        except UserCodeError as error:
            raise RunError(
                ExitCode.CONFIG, f"the reward model at {self._address} {error.problem}: {error.advice}"
            ) from error
        finally:
            asked.cancel()

    async def _ask(self, body: dict[str, Any]) -> list[float | None]:
        body = {**body, "use_activation": False, **({"model": self._model} if self._model else {})}
        async with self._slots:
            end, pause = time.monotonic() + self._seconds, _FIRST_PAUSE
            while True:
                left = end - time.monotonic()
                try:
                    return self._scores(await in_background(partial(_post, self._address, body, max(left, 1.0))))
                except _AwayError as error:
                    if left < pause:
                        raise RunError(
                            ExitCode.UNAVAILABLE,
                            f"the reward model at {self._address} gave no answer in {self._seconds:g} s "
                            f"({self._setting}): {error}; look at its log",
                        ) from error
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _scores(self, answer: Any) -> list[float | None]:
        try:
            entries = sorted(answer["data"], key=lambda entry: int(entry["index"]))
            scores = [[float(score) for score in entry["probs"]] for entry in entries]
        except (LookupError, TypeError, ValueError) as error:
            problem = f"did not answer as vLLM's /classify does ({str(answer)[:200]})"
            raise UserCodeError(self.name, problem, advice=_OF_A_SERVER) from error
        if any(len(score) != 1 for score in scores):
            advice = "serve a reward model, which has one label (num_labels 1)"
            raise UserCodeError(self.name, f"gives {len(scores[0])} scores", advice=advice)
        return [score[0] for score in scores]


class _AwayError(Exception):
    """The server gave no answer, but may give one later."""


def _post(address: str, body: dict[str, Any], seconds: float) -> Any:
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")[:500]
        if error.code in (408, 429) or error.code >= 500:
            raise _AwayError(f"{error.code} {text}") from error
        advice = {400: "let it take longer texts, or shorten them", 404: _OF_A_SERVER}.get(
            error.code, "look at the server's log"
        )
        raise UserCodeError(address, f"refused a sample ({error.code} {text})", advice=advice) from error
    except (OSError, HTTPException, ValueError) as error:
        raise _AwayError(str(error) or type(error).__name__) from error
