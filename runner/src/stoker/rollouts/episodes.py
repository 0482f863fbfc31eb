"""Writes one group: prompts, answers of samplers, tools and environments, rewards."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.secrets import hide
from stoker.contract.words import write_line
from stoker.rollouts.background import together
from stoker.rollouts.chat import Chat, Message, Prompt, encoding, is_conversation
from stoker.rollouts.failures import UserCodeError, UserCodeLostError
from stoker.rollouts.records import Completer, Group, Judged, Request, Rewards, Sample, Scorer, Seeds, Turn
from stoker.rollouts.tooling import Episode, Tooling
from stoker.rollouts.trail import Trail

# The prompt of a row that has none: its environment says it all.
EMPTY: Prompt = [{"role": "user", "content": ""}]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How samples are drawn.

    Attributes:
        samples: of each group.
        max_tokens: after the prompt, tool texts included.
        temperature: 0.0 takes the likeliest token.
        stop: texts that end an answer.
        top_p: 1.0 samples from all tokens.
        top_k: 0 samples from all tokens.
        min_p: 0.0 samples from all tokens.
        repetition_penalty: 1.0 has no effect.
    """

    samples: int
    max_tokens: int
    temperature: float = 1.0
    stop: tuple[str, ...] = ()
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class _Played:
    """One sample before its rewards."""

    prompt: Prompt
    completion: Any
    trail: Trail
    turns: Sequence[Turn]
    episode: Episode | None
    began: float


class Episodes:
    """Writes groups. It is the engine's `Writer`.

    Args:
        completer: asks the samplers.
        judge: gives the rewards.
        chat: makes tokens.
        training: how samples are drawn.
        evaluation: the same in evaluations; None for one greedy answer to each row.
        tooling: the process of users' code, with its tools and environments; None if there is none.
        context: the most tokens that the samplers take, prompt and answer; None if they take all.
    """

    def __init__(
        self,
        completer: Completer,
        judge: Scorer,
        chat: Chat,
        training: Sampling,
        *,
        evaluation: Sampling | None = None,
        tooling: Tooling | None = None,
        context: int | None = None,
    ) -> None:
        self._completer = completer
        self._judge = judge
        self._chat = chat
        self._training = training
        self._evaluation = evaluation or replace(training, samples=1, temperature=0.0)
        self._tooling = tooling
        self._context = context
        self._numbers = itertools.count()
        self._traced = False

    async def write(self, group: Group, seeds: Seeds) -> tuple[Sample, ...]:
        """Return all samples of the group, in the order of their indices.

        If the process of users' code dies, it is started again. Samples whose environment died with it are written
        again from their first turn; samples that only wait for their rewards stay.

        Raises:
            RunError: the run must end: users' code or the data is at fault (65), or a server is away (69).
        """
        tooling, played = self._tooling, None
        while True:
            try:
                if played is None:
                    played = await self._played(group, seeds)
                judged = await self._judged(group, played)
                break
            except UserCodeLostError as death:
                if tooling is None:
                    raise
                await tooling.code.revive(death.life)
                played = None if tooling.environments else played
            except UserCodeError as failure:
                raise self._ending(group, failure) from failure
        if tooling is not None:
            tooling.code.group_written()
        pairs = zip(played, judged.rewards, strict=True)
        return tuple(self._sample(one, given, judged.logged) for one, given in pairs)

    async def _played(self, group: Group, seeds: Seeds) -> list[_Played]:
        sampling = self._evaluation if group.evaluation else self._training
        return await together([self._play(group, index, seeds, sampling) for index in range(sampling.samples)])

    async def _judged(self, group: Group, played: Sequence[_Played]) -> Judged:
        prompts, completions = [one.prompt for one in played], [one.completion for one in played]
        ids = [list(one.trail.completion_ids) for one in played]
        if self._tooling is None or not self._tooling.environments:
            return await self._judge.score(group.columns, prompts, completions, ids)
        episodes = [one.episode for one in played if one.episode is not None]
        for episode in episodes:
            if episode.life != self._tooling.code.life:
                raise UserCodeLostError(episode.life)
        numbers = [episode.number for episode in episodes]
        try:
            return await self._judge.score(group.columns, prompts, completions, ids, numbers)
        finally:
            self._tooling.code.close(numbers)

    async def _play(self, group: Group, index: int, seeds: Seeds, sampling: Sampling) -> _Played:
        began = time.monotonic()
        prompt = self._prompt(group)
        episode = Episode(self._tooling, group.columns, next(self._numbers)) if self._tooling is not None else None
        if episode is not None:
            prompt = await episode.begin(prompt)
        tools = episode.tools if episode is not None else ()
        with encoding(_row(group)):
            trail = Trail(tuple(self._chat.encode(prompt, tools)))
        completion: list[Message] = []
        turns: list[Turn] = []
        while True:
            turns.append(await self._turn(group, self._request(group, index, len(turns), seeds, sampling, trail)))
            trail.wrote(turns[-1])
            if not is_conversation(prompt):
                break
            completion.append(self._chat.parse(turns[-1].completion_ids, turns[-1].prompt_ids, tools))
            calls = completion[-1].get("tool_calls")
            if episode is None or not tools or not calls or turns[-1].finish == "length" or not episode.may_call():
                break
            answers = await episode.call(calls)
            if not self._tell(trail, [*prompt, *completion], answers, tools, sampling):
                break
            completion += answers
        return _Played(prompt, completion or self._chat.decode(trail.completion_ids), trail, turns, episode, began)

    async def _turn(self, group: Group, request: Request) -> Turn:
        try:
            return await self._completer.complete(request)
        except RunError as error:
            if error.code is ExitCode.STOPPED:  # nobody answers, whatever is asked
                raise
            raise RunError(error.code, f"{_row(group)}: {error.message}") from error

    def _prompt(self, group: Group) -> Prompt:
        if "prompt" in group.columns:
            return group.columns["prompt"]
        if self._tooling is not None and self._tooling.environments:
            return EMPTY
        raise RunError(ExitCode.BAD_DATA, f"{_row(group)} has no column prompt: add it")

    def _request(self, group: Group, index: int, turn: int, seeds: Seeds, sampling: Sampling, trail: Trail) -> Request:
        tokens = trail.tokens
        room = sampling.max_tokens - trail.spent
        if not tokens:
            raise RunError(
                ExitCode.BAD_DATA,
                f"the prompt of {_row(group)} has no tokens: write a text or messages, or let the environment's reset "
                "return a text",
            )
        if self._context is not None and len(tokens) >= self._context:
            raise RunError(
                ExitCode.BAD_DATA,
                f"the prompt of {_row(group)} has {len(tokens)} tokens, but the samplers take {self._context} with the "
                "answer: shorten the prompt, or raise `--max-model-len` of the samplers",
            )
        return Request(
            prompt_ids=tokens,
            version=group.version,
            ordinal=group.ordinal,
            index=index,
            turn=turn,
            max_tokens=room if self._context is None else min(room, self._context - len(tokens)),
            temperature=sampling.temperature,
            seed=seeds(index, turn),
            stop=sampling.stop,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
        )

    def _tell(
        self,
        trail: Trail,
        before: Sequence[Message],
        answers: list[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
    ) -> bool:
        """Add the answers of tools. If they leave no room for another turn, add nothing and return False."""
        suffix = self._suffix(answers)
        ids = self._chat.encode([*before, *answers], tools) if suffix is None else suffix
        length = len(ids) if suffix is None else len(trail.tokens) + len(ids)
        most = trail.first + sampling.max_tokens
        if length >= (most if self._context is None else min(most, self._context)):
            return False
        if suffix is None:
            trail.rendered(ids)
        else:
            trail.told(ids)
        return True

    def _suffix(self, answers: list[Message]) -> Sequence[int] | None:
        try:
            return None if self._chat.suffix is None else self._chat.suffix(answers)
        except ValueError:  # the chat template changes what came before for these answers
            return None

    def _ending(self, group: Group, failure: UserCodeError) -> RunError:
        if failure.trace and not self._traced:
            self._traced = True  # many groups may fail for one reason
            write_line(sys.stderr, hide(failure.trace.rstrip()))
        above = " (its traceback is above)" if failure.trace else ""
        message = f"{failure.function} {failure.problem}, for {_row(group)}{above}: {failure.advice}"
        return RunError(ExitCode.BAD_DATA, message)

    def _sample(self, played: _Played, rewards: Rewards, logged: Mapping[str, float]) -> Sample:
        trail, turns = played.trail, played.turns
        metrics: dict[str, float] = {"turns": len(turns)}
        if played.episode is not None and played.episode.tools:
            metrics |= {**played.episode.metrics, "branches": trail.branches, "branches/untrained": trail.untrained}
        return Sample(
            prompt_ids=trail.prompt_ids,
            completion_ids=tuple(trail.completion_ids),
            mask=tuple(trail.mask),
            logprobs=tuple(trail.logprobs),
            oldest=min(turn.version for turn in turns),
            newest=max(turn.version if turn.newest is None else turn.newest for turn in turns),
            rewards=rewards,
            text=self._chat.decode(trail.completion_ids),
            finish=turns[-1].finish,
            replica=max(turns, key=lambda turn: len(turn.completion_ids)).replica,
            seconds=time.monotonic() - played.began,
            metrics=metrics,
            logged=logged,
        )


def _row(group: Group) -> str:
    where = "the evaluation" if group.evaluation else f"epoch {group.epoch}"
    return f"row {group.row} of {where} (group {group.ordinal})"
