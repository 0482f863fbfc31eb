"""Holds what users named in the process that runs it, and answers what the run asks of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import report_traceback
from stoker.rollouts import loading
from stoker.rollouts.calls import Calls, Clock
from stoker.rollouts.failures import UserCodeError, said_by
from stoker.rollouts.names import ENVIRONMENTS, REWARDS, TOOLS, named


@dataclass(slots=True)
class _Episode:
    """An open episode.

    Attributes:
        name: of its environment.
        environment: the environment.
        turn: held by a method that is not async. An answer's calls of such methods follow each other, as in TRL.
        spent: seconds that these methods took.
    """

    name: str
    environment: Any
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    spent: float = 0.0

    @asynccontextmanager
    async def in_turn(self, clock: Clock) -> AsyncIterator[Clock]:
        """Wait for the methods that were called before; what they take meanwhile is taken off the clock."""
        before = self.spent
        async with self.turn:
            left = clock.seconds - (self.spent - before)
            try:
                yield replace(clock, seconds=left)
            finally:
                self.spent += sum(ended - began for began, ended in clock.ran)


class Host:
    """What users named, imported, and the episodes that are open."""

    def __init__(self) -> None:
        self._rewards: list[Callable[..., Any]] = []
        self._tools: list[Callable[..., Any]] = []
        self._factories: dict[str, Callable[[], Any]] = {}
        # Environments to reuse: TRL constructs once and resets often.
        self._idle: dict[str, list[Any]] = {}
        # Classes of environments that judge themselves.
        self._judging: list[type] = []
        self._episodes: dict[int, _Episode] = {}
        self._calls = Calls()

    def load(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Import everything; return what the run must know of it.

        Raises:
            RunError: something cannot be used (64, 65, 66, 78).
        """
        columns = request["columns"]
        self._rewards = [loading.reward_function(named(REWARDS, text), columns) for text in request["rewards"]]
        for text in request["tools"]:
            self._tools += loading.tool_functions(named(TOOLS, text))
        standalone = loading.schemas(TOOLS, self._tools)
        described = {} if request["environments"] else {"": standalone}
        for name, text in request["environments"].items():
            factory = loading.environment_factory(named(ENVIRONMENTS, text))
            environment = _constructed(factory, text)
            self._factories[name], self._idle[name] = factory, [environment]
            described[name] = standalone + loading.schemas(ENVIRONMENTS, loading.tools_of(environment))
            if hasattr(type(environment), "get_reward") and type(environment) not in self._judging:
                self._judging.append(type(environment))
        names = [*map(loading.name_of, self._rewards), *(kind.__name__ for kind in self._judging)]
        return {"rewards": names, "tools": described}

    async def do(self, request: Mapping[str, Any]) -> Any:
        """Carry out a request; `ping` does nothing.

        Raises:
            UserCodeError: the user's function failed.
        """
        match request["do"]:
            case "score":
                return await self._score(request)
            case "open":
                return await self._open(request)
            case "tool":
                return await self._tool(request)
            case "close":
                for number in request["episodes"]:
                    if number in self._episodes:
                        episode = self._episodes.pop(number)
                        self._idle[episode.name].append(episode.environment)
        return None

    async def _score(self, request: Mapping[str, Any]) -> Any:
        count = len(request["prompts"])
        logged: list[tuple[str, float]] = []
        environments = [self._episodes[number].environment for number in request["episodes"]]
        arguments = {
            **{name: [value] * count for name, value in request["columns"].items()},
            "prompts": request["prompts"],
            "completions": request["completions"],
            "completion_ids": request["completion_ids"],
            "log_extra": lambda name, values: None,  # TRL's table of completions, which this run does not have
            "log_metric": lambda name, value: logged.append((str(name), float(value))),
            **({"environments": environments} if environments else {}),
        }
        clock = _clock(request)
        rewards = await _together(
            [
                *(self._judge(function, arguments, clock) for function in self._rewards),
                *(self._own_rewards(kind, environments, clock) for kind in self._judging),
            ]
        )
        return {"rewards": rewards, "logged": logged}

    async def _judge(self, function: Callable[..., Any], arguments: Mapping[str, Any], clock: Clock) -> list[Any]:
        name = loading.name_of(function)
        given = await self._calls.call(name, function, clock, **loading.accepted(function, arguments))
        return _numbers(name, given)

    async def _own_rewards(self, kind: type[Any], environments: Sequence[Any], clock: Clock) -> list[Any]:
        """Return what environments of a class say of their own episodes; None for others."""
        name = f"{kind.__name__}.get_reward"

        async def one(environment: Any) -> Any:
            own = getattr(environment, "get_reward", None) if type(environment) is kind else None
            return None if own is None else await self._calls.call(name, own, clock)

        return _numbers(name, await _together([one(environment) for environment in environments]))

    async def _open(self, request: Mapping[str, Any]) -> Any:
        name, clock = request["name"], _clock(request)
        if name not in self._factories:
            advice = f"write one of {', '.join(self._factories)} into the column `environment`"
            raise UserCodeError("the data", f"names the environment {name!r}, which does not exist", advice=advice)
        idle, factory = self._idle[name], self._factories[name]
        environment = idle.pop() if idle else await self._calls.call(loading.name_of(factory), factory, clock)
        self._episodes[request["episode"]] = _Episode(name, environment)
        reset = f"{type(environment).__name__}.reset"
        shown = await self._calls.call(reset, environment.reset, clock, **request["columns"])
        return {"shown": shown if shown is None or isinstance(shown, list) else str(shown), "ran": clock.ran}

    async def _tool(self, request: Mapping[str, Any]) -> Any:
        """Call a tool as TRL does: what it raises is told to the policy, which may have called it wrongly."""
        name, episode, clock = request["name"], self._episodes.get(request["episode"]), _clock(request)
        methods = [] if episode is None else loading.tools_of(episode.environment)
        tool = {tool.__name__: tool for tool in [*self._tools, *methods]}.get(name)
        try:
            if tool is None:
                raise ValueError(f"Tool {name} not found.")
            if episode is not None and tool in methods and not loading.is_async(tool):
                async with episode.in_turn(clock) as left:
                    result = await self._calls.call(name, tool, left, told=True, **request["arguments"])
            else:
                result = await self._calls.call(name, tool, clock, told=True, **request["arguments"])
        except UserCodeError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the policy is told
            return {"content": str({"error": str(error)}), "failed": True, "ran": clock.ran}
        return {"content": result if isinstance(result, list) else str(result), "failed": False, "ran": clock.ran}


def _clock(request: Mapping[str, Any]) -> Clock:
    return Clock(request["seconds"], request["limit"])


async def _together(coroutines: Sequence[Any]) -> list[Any]:
    """Await all, then raise the first failure: none is left without a listener."""
    results = await asyncio.gather(*coroutines, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return list(results)


def _numbers(name: str, given: Any) -> list[float | None]:
    advice = "return a list with one number or None for each completion"
    if isinstance(given, str | bytes | Mapping) or not hasattr(given, "__iter__"):
        raise UserCodeError(name, f"returned a {type(given).__name__}", advice=advice)
    rewards: list[float | None] = []
    for value in given:
        try:
            if isinstance(value, str | bytes):
                raise TypeError
            rewards.append(None if value is None else float(value))
        except (TypeError, ValueError):
            raise UserCodeError(name, f"returned a {type(value).__name__} among its rewards", advice=advice) from None
    return rewards


def _constructed(factory: Callable[[], Any], text: str) -> Any:
    try:
        environment = factory()
    except BaseException as error:
        report_traceback()
        raise RunError(
            ExitCode.CONFIG,
            f"{ENVIRONMENTS} {text} cannot be constructed: it raised {said_by(error)}; its traceback is above",
        ) from error
    if not callable(getattr(type(environment), "reset", None)):
        kind = type(environment).__name__
        raise RunError(ExitCode.USAGE, f"{ENVIRONMENTS} {text} makes a {kind}, which has no `reset`: add the method")
    return environment
