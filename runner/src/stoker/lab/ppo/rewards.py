"""What judges answers: functions, reward models of transformers, and reward models that vLLM serves."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import read_json
from stoker.contract.words import say
from stoker.lab.config import LoRATrainConfig
from stoker.lab.errors import LabError
from stoker.lab.machine import dtype_of, loading, model_facts, positions_of
from stoker.lab.rows import is_conversation
from stoker.rollouts.classify import RewardModel
from stoker.rollouts.failures import UserCodeError
from stoker.rollouts.names import is_address
from stoker.rollouts.rewards import check_rewards

Result = TypeVar("Result")
Reward = Callable[..., Any] | str
"""A function as TRL's `reward_funcs` are, a reward model's folder or Hub id, or the address of one that vLLM serves."""

_WRITE = "write a function, a reward model's folder or Hub id, or the address of one that vLLM serves"
_KIND = "ForSequenceClassification"


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers to judge.

    Attributes:
        prompts: texts, or conversations.
        completions: in the same form.
        completion_ids: their tokens.
        columns: what else the prompts' rows have.
    """

    prompts: list[Any]
    completions: list[Any]
    completion_ids: list[list[int]]
    columns: Mapping[str, list[Any]]

    @staticmethod
    def of(prompts: list[Any], texts: Sequence[str], ids: list[list[int]], columns: Mapping[str, list[Any]]) -> Answers:
        """Return answers; those to conversations are messages, as TRL has them."""
        chat = is_conversation(prompts[0])
        return Answers(
            prompts, [[{"role": "assistant", "content": text}] for text in texts] if chat else [*texts], ids, columns
        )


class RewardSource(Protocol):
    """One source of rewards.

    Attributes:
        name: for metrics.
    """

    name: str

    def check(self, answers: Answers) -> None:
        """Refuse what can be refused before the policy is loaded; `answers` are like those to come."""

    def score(self, answers: Answers) -> Sequence[float | None]:
        """Return the reward of each answer; None where there is no opinion."""


class FunctionJudge:
    """A function that takes `prompts`, `completions`, `completion_ids` and the columns by name; it may be async.

    Args:
        function: the function.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.name = str(getattr(function, "__name__", type(function).__name__))

    def check(self, answers: Answers) -> None:
        """Refuse a function that does not take what it gets."""
        try:
            signature = inspect.signature(self._function)
        except ValueError:  # it has none that could be read
            return
        try:
            signature.bind(**self._arguments(answers))
        except TypeError as error:
            raise LabError(
                f"the reward {self.name} cannot be called with {', '.join(self._arguments(answers))} ({error}): "
                "give it **kwargs, as TRL's reward functions have it"
            ) from error

    def score(self, answers: Answers) -> Sequence[float | None]:
        """Return what the function returns; what it raises is raised."""
        found = self._function(**self._arguments(answers))
        if inspect.isawaitable(found):
            awaited: Awaitable[Any] = found
            found = _waited(lambda: awaited)
        if isinstance(found, str | bytes) or not isinstance(found, Iterable):
            self._refuse(found)
        values = list(found)
        try:
            return [None if value is None else float(value) for value in values]
        except (TypeError, ValueError):
            self._refuse(values)

    def _refuse(self, found: object) -> NoReturn:
        told = repr(found) if len(repr(found)) < 60 else f"{repr(found)[:60]}…"
        raise LabError(
            f"the reward {self.name} returned {told}: return a list with a number for each completion, or with None "
            "where there is no opinion",
            ExitCode.BAD_DATA,
        )

    @staticmethod
    def _arguments(answers: Answers) -> dict[str, Any]:
        return {
            "prompts": answers.prompts,
            "completions": answers.completions,
            "completion_ids": answers.completion_ids,
            **answers.columns,
        }


class AddressJudge:
    """A reward model that vLLM serves.

    Args:
        address: of the server; `?model=NAME` names one of several models.
        seconds: how long to wait for it.
    """

    def __init__(self, address: str, seconds: float) -> None:
        self._address, self._seconds = address, seconds
        self.name = self._model().name

    def check(self, answers: Answers) -> None:
        """Wait until the server has judged an answer."""
        told: list[str] = []

        def waiting(text: str) -> None:
            if not told:
                say(text)
                told.append(text)

        _told(lambda: _waited(lambda: self._model().check(answers.prompts[0], waiting)))

    def score(self, answers: Answers) -> Sequence[float | None]:
        """Return the raw scores of the model."""
        return _told(lambda: _waited(lambda: self._model().score(answers.prompts, answers.completions)))

    def _model(self) -> RewardModel:
        # Each call has an event loop of its own, and so has each model.
        return RewardModel(self._address, self._seconds, "reward_seconds")


class ModelJudge:
    """A sequence-classification model with one label, loaded when it first judges.

    It reads texts as vLLM does: with the tokenizer's special tokens, and conversations by its chat template.

    Args:
        model: its folder or Hub id.
        config: says in which type to compute, as for the policy.
        batch_size: answers at a time.

    Raises:
        LabError: the folder has no such model.
    """

    def __init__(self, model: str, config: LoRATrainConfig, batch_size: int = 16) -> None:
        self.name = model.rstrip("/").rpartition("/")[2]
        self._model, self._config, self._batch_size = model, config, batch_size
        self._facts = model_facts(model)
        self._positions = self._facts.positions
        self._loaded: tuple[Any, Any] | None = None
        folder = self._facts.folder
        described = None if folder is None else read_json(folder / "config.json")
        if isinstance(described, dict):
            kinds = described.get("architectures") or [_KIND]
            # Two are transformers' default, which it does not write down.
            self._refuse_other(str(kinds[0]), len(described.get("id2label") or "01"))

    def check(self, answers: Answers) -> None:
        """Refuse a model of another kind that was not here to look at before: this fetches its config.json alone."""
        if self._facts.folder is not None:
            return
        from transformers import AutoConfig

        with loading(self._model):
            config = AutoConfig.from_pretrained(self._model)
        self._refuse_other((config.architectures or [_KIND])[0], config.num_labels)

    def score(self, answers: Answers) -> Sequence[float | None]:
        """Return the model's score of each answer."""
        import torch

        model, tokenizer = self._load()
        texts, chat = self._texts(tokenizer, answers), is_conversation(answers.prompts[0])
        found: list[float] = []
        for start in range(0, len(texts), self._batch_size):
            batch = tokenizer(
                texts[start : start + self._batch_size], return_tensors="pt", padding=True, padding_side="right",
                add_special_tokens=not chat,
            )  # fmt: skip
            longest = int(batch["attention_mask"].sum(1).max())
            if self._positions is not None and longest > self._positions:
                raise LabError(
                    f"the reward model {self._model} takes {self._positions} tokens, but an answer with its "
                    f"prompt has {longest}: lower max_new_tokens, or shorten the prompts",
                    ExitCode.BAD_DATA,
                )
            with torch.no_grad():
                found += model(**batch.to(model.device)).logits[:, 0].float().tolist()
        return found

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            import torch
            from transformers import AutoModelForSequenceClassification, AutoTokenizer

            from stoker.lab.data import pad_token_id

            device = "cuda" if torch.cuda.is_available() else "cpu"
            with loading(self._model):
                model = AutoModelForSequenceClassification.from_pretrained(
                    self._model, dtype=getattr(torch, dtype_of(self._config))
                )
                tokenizer = AutoTokenizer.from_pretrained(self._model)
            self._refuse_other(type(model).__name__, model.config.num_labels)
            self._positions = positions_of(self._facts)
            # The model reads its score at the last token that does not pad.
            model.config.pad_token_id = pad_token_id(tokenizer)
            if tokenizer.pad_token_id is None:
                tokenizer.pad_token = tokenizer.eos_token
            self._loaded = (model.to(device).eval(), tokenizer)
        return self._loaded

    def _texts(self, tokenizer: Any, answers: Answers) -> list[str]:
        pairs = zip(answers.prompts, answers.completions, strict=True)
        if not is_conversation(answers.prompts[0]):
            return [prompt + completion for prompt, completion in pairs]
        if not tokenizer.chat_template:
            raise LabError(
                f"the reward model {self._model} has no chat template for conversations: use another one, or prompts "
                "that are texts"
            )
        from stoker.lab.data import chat_template

        with chat_template(f"the reward model {self._model}", "use another reward model"):
            return [tokenizer.apply_chat_template([*said, *answer], tokenize=False) for said, answer in pairs]

    def _refuse_other(self, kind: str, labels: int) -> None:
        if not kind.endswith(_KIND):
            raise LabError(f"the reward {self._model} is a {kind}, not a model {_KIND} with one label: {_WRITE}")
        if labels != 1:
            raise LabError(
                f"the reward model {self._model} has {labels} labels: write one with a single label, whose score is "
                "the reward"
            )


def judges_of(reward: Reward | Sequence[Reward], config: LoRATrainConfig, seconds: float) -> list[RewardSource]:
    """Return what judges answers; the rewards of several are added.

    Args:
        reward: one source of rewards, or several.
        config: the policy's.
        seconds: how long to wait for a reward model behind an address.

    Raises:
        LabError: one is neither a function nor a reward model.
    """
    sources: Any = [reward] if isinstance(reward, str) or callable(reward) else reward
    if not isinstance(sources, Sequence) or not sources:
        raise LabError(f"the reward is {reward!r}: {_WRITE}")
    return _with_own_names([_judge(source, config, seconds) for source in sources])


def rewards_of(judges: Sequence[RewardSource], answers: Answers) -> list[list[float | None]]:
    """Return the rewards of each judge for each answer.

    Raises:
        LabError: a judge's reward is not a number, or every judge returned None for an answer.
    """
    found = []
    for judge in judges:
        found.append(_checked(judge.name, list(judge.score(answers)), len(answers.prompts)))
    for number, of_one in enumerate(zip(*found, strict=True)):
        if all(score is None for score in of_one):
            raise LabError(
                f"every reward returned None for answer {number}, {answers.completions[number]!r}: return a number for "
                "each answer from one of them",
                ExitCode.BAD_DATA,
            )
    return found


def _checked(name: str, scores: list[float | None], answers: int) -> list[float | None]:
    _told(lambda: check_rewards(name, scores, answers))
    return scores


def _with_own_names(judges: list[RewardSource]) -> list[RewardSource]:
    """Number the second and further ones of a name: metrics are by name."""
    taken: set[str] = set()
    for judge in judges:
        name, number = judge.name, 1
        while judge.name in taken:
            number += 1
            judge.name = f"{name}_{number}"
        taken.add(judge.name)
    return judges


def _judge(source: object, config: LoRATrainConfig, seconds: float) -> RewardSource:
    if callable(source):
        return FunctionJudge(source)
    if not isinstance(source, str) or not source:
        raise LabError(f"the reward is {source!r}: {_WRITE}")
    return AddressJudge(source, seconds) if is_address(source) else ModelJudge(source, config)


def _waited(make: Callable[[], Awaitable[Result]]) -> Result:
    """Await something in a thread: a notebook has an event loop in this one already."""

    async def run() -> Result:
        return await make()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, run()).result()


def _told(what: Callable[[], Result]) -> Result:
    """Do something, and tell how it fails as this package does."""
    try:
        return what()
    except UserCodeError as error:
        raise LabError(f"the reward {error.function} {error.problem}: {error.advice}", ExitCode.BAD_DATA) from error
    except RunError as error:
        raise LabError(error.message, error.code) from error
