"""The tools and environments of episodes, as the policy calls them. They run in the process of users' code."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.rollouts.background import together
from stoker.rollouts.chat import Message, Prompt, Tools
from stoker.rollouts.failures import UserCodeLostError
from stoker.rollouts.user_code import UserCode

# The column that chooses among several environments, as in TRL.
_CHOICE = "environment"


@dataclass(frozen=True, slots=True)
class Tooling:
    """What samples are written with.

    Attributes:
        code: the process that runs it.
        tools: name of the environment → its tools, as `UserCode.start` returned them.
        calls: how often a sample may call tools; None for no bound but its length.
    """

    code: UserCode
    tools: Mapping[str, Tools] = field(default_factory=dict)
    calls: int | None = None

    @property
    def environments(self) -> Mapping[str, str]:
        """Name → class of the environments; the name is empty for one that all rows share."""
        return self.code.functions.environments

    def environment_of(self, columns: Mapping[str, Any]) -> str:
        """Return the name of a row's environment."""
        return str(columns.get(_CHOICE)) if self._chooses else ""

    def arguments_of(self, columns: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what `reset` gets of a row: all of it but the choice."""
        return {name: value for name, value in columns.items() if not (self._chooses and name == _CHOICE)}

    @property
    def _chooses(self) -> bool:
        return bool(self.environments) and "" not in self.environments


class Episode:
    """One sample's tools and environment.

    Args:
        tooling: what there is.
        columns: the sample's row.
        number: of the episode, unlike any other's.

    Attributes:
        number: of the episode.
        life: the life of the process that has its environment.
        tools: what the policy may call.
        metrics: numbers to show.
    """

    def __init__(self, tooling: Tooling, columns: Mapping[str, Any], number: int) -> None:
        self.number = number
        self.life = tooling.code.life
        name = tooling.environment_of(columns)
        self.tools = tooling.tools.get(name, ())
        self.metrics = {"tools/calls": 0.0, "tools/failures": 0.0}
        self._tooling = tooling
        self._columns = columns
        self._name = name
        self._rounds = 0
        self._left = tooling.code.limits.episode_seconds

    async def begin(self, prompt: Prompt) -> Prompt:
        """Reset the environment; return the prompt with what it shows added to the last message.

        Raises:
            UserCodeError: it failed.
            UserCodeLostError: the process is gone.
        """
        if not self._tooling.environments:
            return prompt
        arguments = self._tooling.arguments_of(self._columns)
        answer = await self._ask("open", name=self._name, columns=arguments)
        self._left -= seconds_of(answer["ran"])
        return prompt if answer["shown"] is None else _observed(prompt, answer["shown"])

    def may_call(self) -> bool:
        """Return whether the policy may call tools once more, and count it."""
        self._rounds += 1
        return self._tooling.calls is None or self._rounds <= self._tooling.calls

    async def call(self, calls: Sequence[Mapping[str, Any]]) -> list[Message]:
        """Run the tools that an answer calls; return their messages in the same order.

        They run at once, but for methods of the environment that are not async: these follow each other.

        Raises:
            UserCodeError: one took too long. What a tool raises is told to the policy, as in TRL.
            UserCodeLostError: the process is gone.
        """
        answers = await together([self._call(call) for call in calls])
        self._left -= seconds_of(span for _, ran in answers for span in ran)
        return [message for message, _ in answers]

    async def _call(self, call: Mapping[str, Any]) -> tuple[Message, list[list[float]]]:
        """Return the message of a tool, and when it ran."""
        function = call.get("function", {})
        name = str(function.get("name", "unknown"))
        answer = await self._ask("tool", name=name, arguments=function.get("arguments") or {})
        self.metrics["tools/calls"] += 1
        self.metrics["tools/failures"] += answer["failed"]
        return {"role": "tool", "name": name, "content": answer["content"]}, answer["ran"]

    async def _ask(self, do: str, **request: Any) -> Any:
        code = self._tooling.code
        if self._tooling.environments and code.life != self.life:
            raise UserCodeLostError(self.life)
        limit = f"the {code.limits.episode_seconds:g} s that an episode has (--episode_seconds)"
        return await code.ask(do, max(self._left, 0.0), limit, episode=self.number, **request)


def seconds_of(spans: Iterable[list[float]]) -> float:
    """Return for how many seconds at least one function ran.

    Args:
        spans: when each began and when it ended, in seconds.
    """
    total, until = 0.0, -math.inf
    for began, ended in sorted(spans):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


def _observed(prompt: Prompt, shown: Any) -> Prompt:
    """Add what an environment shows to the last message of a prompt, as TRL does."""
    if isinstance(prompt, str):
        return prompt + str(shown)
    content = prompt[-1]["content"]
    if isinstance(shown, list) and isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if isinstance(shown, str) and isinstance(content, list):
        shown = [{"type": "text", "text": shown}]
    return [*prompt[:-1], {**prompt[-1], "content": content + shown}]
