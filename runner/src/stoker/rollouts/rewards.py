"""Judges groups: users' reward functions and environments in their process, reward models behind addresses."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts.background import together
from stoker.rollouts.classify import RewardModel
from stoker.rollouts.failures import UserCodeError
from stoker.rollouts.loading import OF_SAMPLES
from stoker.rollouts.names import is_address, unreadable
from stoker.rollouts.records import Judged
from stoker.rollouts.user_code import UserCode

# What TRL keeps away from reward functions: they get these of each sample.
_OF_SAMPLES = (*OF_SAMPLES, "completion_ids")


class Judges:
    """All reward functions of a run, in the order of their names and weights. It is the engine's `Scorer`.

    Args:
        rewards: as the user named them, addresses of reward models among them.
        code: the process of their code, which was started with the others.
        own: names of environments that judge themselves, as `UserCode.start` returned them after the functions.
        seconds: how long judging a group may take.

    Attributes:
        names: of all rewards, for metrics: those of `rewards`, then the environments.
    """

    def __init__(self, rewards: Sequence[str], code: UserCode | None, loaded: Sequence[str], seconds: float) -> None:
        functions = iter(loaded)
        self._sources: list[RewardModel | str] = [
            RewardModel(text, seconds) if is_address(text) else next(functions) for text in rewards
        ]
        self._own = list(functions)
        self._code = code
        self._seconds = seconds
        self.names = [source if isinstance(source, str) else source.name for source in self._sources] + self._own

    def check(self, prompt: Any, waiting: Callable[[str], None]) -> None:
        """Wait until every reward model has judged a sample; blocks.

        Args:
            prompt: of a row of the data.
            waiting: called about once a second with what it waits for.

        Raises:
            RunError: one does not answer (69), or some are no reward models for this data (78).
        """
        wrong = []
        for model in (source for source in self._sources if isinstance(source, RewardModel)):
            try:
                asyncio.run(model.check(prompt, waiting))
            except RunError as error:
                if error.code is not ExitCode.CONFIG:
                    raise
                wrong.append(error.message)
        if wrong:
            raise RunError(ExitCode.CONFIG, "\n".join(wrong))

    async def score(
        self,
        columns: Mapping[str, Any],
        prompts: list[Any],
        completions: list[Any],
        completion_ids: list[list[int]],
        episodes: Sequence[int] = (),
    ) -> Judged:
        """Return the rewards of each sample of one group.

        Args:
            columns: the group's row.
            prompts: of each sample, in the form of the data: a text or messages.
            completions: of each sample, in the same form.
            completion_ids: of each sample.
            episodes: number of the open episode of each sample, if there are environments.

        Raises:
            UserCodeError: a function failed.
            UserCodeLostError: the process of their code is gone.
            RunError: a reward model does not answer (69).
        """
        models = [source for source in self._sources if isinstance(source, RewardModel)]
        (by_function, logged), *by_model = await together(
            [
                self._by_functions(columns, prompts, completions, completion_ids, episodes),
                *(model.score(prompts, completions) for model in models),
            ]
        )
        functions, scored = iter(by_function), iter(by_model)
        given = [next(functions if isinstance(source, str) else scored) for source in self._sources] + list(functions)
        for name, column in zip(self.names, given, strict=True):
            check_rewards(name, column, len(prompts))
        return Judged(list(zip(*given, strict=True)), logged)

    async def _by_functions(
        self,
        columns: Mapping[str, Any],
        prompts: list[Any],
        completions: list[Any],
        completion_ids: list[list[int]],
        episodes: Sequence[int],
    ) -> tuple[list[list[float | None]], dict[str, float]]:
        if self._code is None or not (self._own or any(isinstance(source, str) for source in self._sources)):
            return [], {}
        answer = await self._code.ask(
            "score",
            self._seconds,
            f"the {self._seconds:g} s that the rewards of a group have (--reward_seconds)",
            columns={name: value for name, value in columns.items() if name not in _OF_SAMPLES},
            prompts=prompts,
            completions=completions,
            completion_ids=completion_ids,
            episodes=list(episodes),
        )
        logged: dict[str, list[float]] = {}
        for name, value in answer["logged"]:
            logged.setdefault(name, []).append(value)
        return answer["rewards"], {name: fmean(values) for name, values in logged.items()}


def functions_among(rewards: Sequence[str]) -> tuple[str, ...]:
    """Return the rewards that are functions, after a look at how all are written.

    Raises:
        RunError: one names neither a function nor an address (64).
    """
    problems = list(unreadable(rewards, (), ()))
    if problems:
        raise RunError(ExitCode.USAGE, "\n".join(problems))
    return tuple(text for text in rewards if not is_address(text))


def check_rewards(name: str, rewards: Sequence[float | None], samples: int) -> None:
    """Refuse rewards that are not one finite number, or None, for each sample.

    Raises:
        UserCodeError: says which are wrong.
    """
    if len(rewards) != samples:
        problem, advice = f"returned {len(rewards)} rewards for {samples} completions", "return one for each completion"
        raise UserCodeError(name, problem, advice=advice)
    for index, reward in enumerate(rewards):
        if reward is not None and not math.isfinite(reward):
            advice = "return a finite number, or None where there is no reward"
            raise UserCodeError(name, f"returned {reward} for completion {index}", advice=advice)
