"""What the parts of a rollout hand to each other: plain records, and the protocols of those who make them.

A version v is the policy after v optimizer steps; version 0 is the base model. A step t is the number of optimizer
steps before the update. A sample of version v that step t trains has staleness t - v.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stoker.contract.exits import ExitCode, RunError

# Gives the seed of one answer: index of the sample in its group, turn of the sample.
Seeds = Callable[[int, int], int]
# Rewards of one sample, one per reward function; None where the function does not apply.
Rewards = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """What a sampler is asked: one answer to one prompt, by one version.

    Attributes:
        prompt_ids: the tokens to continue.
        version: the policy that must answer.
        ordinal: number of the group; negative for an evaluation.
        index: number of the sample in its group, from 0.
        turn: number of the answer in its sample, from 0.
        max_tokens: the answer's longest length in tokens.
        temperature: 0.0 takes the likeliest token.
        seed: of the answer, 63 bits. A repeated request has the same one.
        stop: texts that end the answer.
        top_p: 1.0 samples from all tokens.
        top_k: 0 samples from all tokens.
        min_p: 0.0 samples from all tokens.
        repetition_penalty: 1.0 has no effect.
    """

    prompt_ids: tuple[int, ...]
    version: int
    ordinal: int
    index: int
    turn: int
    max_tokens: int
    temperature: float
    seed: int
    stop: tuple[str, ...] = ()
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of a sampler.

    Attributes:
        prompt_ids: the tokens that were sent.
        completion_ids: the tokens that came back.
        logprobs: natural logarithm of each token's probability when it was sampled.
        version: the policy that answered.
        finish: `stop`, or `length` if `max_tokens` cut the answer.
        replica: who answered.
        seconds: from the request to the answer, retries included.
        newest: the newest version that may have written a token of it, where a sampler's weights change under its
            requests; `version` is then the oldest one. None: the same version.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    version: int
    finish: str
    replica: str
    seconds: float
    newest: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One complete answer to a prompt, with its rewards: one row to train.

    Attributes:
        prompt_ids: tokens of the prompt.
        completion_ids: everything after the prompt, tool texts included.
        mask: one per completion token; 1 where the policy wrote it, 0 where a tool or the user did.
        logprobs: one per completion token; 0.0 where the mask is 0.
        oldest: the oldest version that wrote a token of it; staleness counts from this one.
        newest: the newest version that wrote a token of it.
        rewards: one per reward function.
        text: the completion as text.
        finish: `stop`, or `length` if it was cut.
        replica: who wrote it, or most of it.
        seconds: from its first request to its rewards.
        metrics: numbers to show, by name.
        logged: numbers that reward functions logged for its group, by their names for them.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    oldest: int
    newest: int
    rewards: Rewards
    text: str
    finish: str
    replica: str
    seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    logged: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judged:
    """What reward functions say of a group.

    Attributes:
        rewards: of each sample.
        logged: numbers that they logged, by name; the mean if there are several of a name.
    """

    rewards: Sequence[Rewards]
    logged: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """One prompt on its way through the samplers; its samples come later.

    Attributes:
        ordinal: number of the group since the start of the run. An evaluation has its own, from -1 downward.
        epoch: how often the data had been gone through before; -1 in an evaluation.
        row: number of the row in the data.
        columns: the row.
        version: the policy that must write the samples.
        deadline: the last step that may train them.
    """

    ordinal: int
    epoch: int
    row: int
    columns: Mapping[str, Any]
    version: int
    deadline: int

    @property
    def evaluation(self) -> bool:
        """True if the samples are judged only, never trained."""
        return self.ordinal < 0


Written = tuple[Group, tuple[Sample, ...]]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one optimizer step trains.

    Attributes:
        step: the step that trains it.
        groups: each group with its samples, in the order of the ordinals.
        staleness: of each group, in steps, from the oldest version of its samples.
        waited: seconds that the trainer waited for it.
        reason: what it waited for last; empty if it did not wait.
        depth: how many batches may be under way beside the one in training.
        outstanding: groups that are being written or wait to be trained, without this batch.
        idle: seconds since the batch before in which nothing was being written, because the trainer held it up.
    """

    step: int
    groups: tuple[Written, ...]
    staleness: tuple[int, ...]
    waited: float
    reason: str
    depth: int
    outstanding: int
    idle: float = 0.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the schedule must keep to.

    Attributes:
        batch: groups per optimizer step.
        staleness: the most steps between the version of a sample and the step that trains it.
        depth: how many batches may be under way beside the one in training. None: the fewest that hide the wait.
        publish_every: steps from one version to the next.

    Raises:
        ValueError: a number is too small.
        RunError: they contradict each other; code 78.
    """

    batch: int
    staleness: int
    depth: int | None = None
    publish_every: int = 1

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("staleness", 0), ("publish_every", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, but at least {least} is needed")
        if self.depth is not None and self.depth < 0:
            raise ValueError(f"depth is {self.depth}, but at least 0 is needed")
        needed = (self.depth or 0) + self.publish_every - 1
        if self.staleness < needed:
            depth = f"`--depth {self.depth}` with " if self.depth else ""
            raise RunError(
                ExitCode.CONFIG,
                f"`--max_staleness {self.staleness}` is too small for {depth}`--publish_every {self.publish_every}`: "
                f"write `--max_staleness {needed}` or more",
            )

    @property
    def deepest(self) -> int:
        """The largest depth that the bound on staleness allows."""
        return self.staleness - self.publish_every + 1


class Writer(Protocol):
    """Writes the samples of a group: asks samplers, runs tools, scores."""

    async def write(self, group: Group, seeds: Seeds) -> tuple[Sample, ...]:
        """Return all samples of the group, in the order of their indices.

        It must end soon when it is cancelled.

        Raises:
            RunError: the run must end, with this code.
        """
        ...


class Completer(Protocol):
    """Has samplers answer."""

    async def complete(self, request: Request) -> Turn:
        """Return the answer of a sampler. A lost sampler is no error: another one is asked.

        Raises:
            RunError: the run must end, with this code.
        """
        ...


class Scorer(Protocol):
    """Judges the samples of a group."""

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
            RunError: a reward function failed; code 65.
        """
        ...
