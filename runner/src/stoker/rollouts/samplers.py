"""What a trainer asks of one sampler: an answer to a prompt, and which versions it serves."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from stoker.contract.samplers import API_KEY
from stoker.rollouts.connections import Answer, Connections, LostError
from stoker.rollouts.records import Request

_CONTROL_SECONDS = 5.0
_SHOWN = 500


class SamplerError(Exception):
    """A sampler did not do what it was asked for."""


class BusyError(SamplerError):
    """It has too much to do."""


class AbsentError(SamplerError):
    """It has no such model."""


class FaultError(SamplerError):
    """It failed, or answered something that cannot be trained."""


class UnfitError(SamplerError):
    """It is none that this run can ask, whatever it asks for: another server, or one of another key."""


class SamplerRefusedError(SamplerError):
    """It refuses the request, as any other sampler would."""


@dataclass(frozen=True, slots=True)
class Written:
    """An answer to a prompt.

    Attributes:
        ids: its tokens.
        logprobs: of each token.
        finish: `stop` or `length`.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str


@dataclass(frozen=True, slots=True)
class Shown:
    """What a sampler says of itself.

    Attributes:
        ready: it takes requests.
        loaded: names of the versions that it serves.
        problems: why it does not serve a version, by name.
        server: its base model (`model`, `source`, `revision`, `fingerprint`) and its room (`max_loras`, `max_rank`).
        sees: whether it sees the folder of a run, if it was asked; None if it does not say.
    """

    ready: bool
    loaded: frozenset[str]
    problems: Mapping[str, str] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    sees: bool | None = None


@dataclass(frozen=True, slots=True)
class Base:
    """The base model of a sampler.

    Attributes:
        name: what requests call it.
        length: the most tokens of a prompt and its answer; None if not known.
    """

    name: str
    length: int | None


class Sampler:
    """One sampler.

    Args:
        connections: to its address.
        watcher: to the one who says what it serves.
    """

    def __init__(self, connections: Connections, watcher: Connections) -> None:
        self._connections, self._watcher = connections, watcher

    async def complete(self, request: Request, model: str, seconds: float) -> Written:
        """Let a model answer.

        Args:
            request: the prompt and how to sample. Every setting is sent, as servers have defaults of their own.
            model: the name of the version.
            seconds: how long to wait.

        Raises:
            LostError: no answer came.
            SamplerError: the sampler did not do it.
        """
        body: dict[str, Any] = {
            "model": model,
            "prompt": request.prompt_ids,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "min_p": request.min_p,
            "repetition_penalty": request.repetition_penalty,
            "seed": request.seed,
            "logprobs": 0,  # of the tokens that were sampled, and no others
            "return_token_ids": True,
        }
        if request.stop:
            body["stop"] = request.stop
        answer = await self._connections.request(
            "POST", "/v1/completions", json.dumps(body, separators=(",", ":")).encode(), seconds=seconds
        )
        self._raise_for(answer)
        return _written(_json(answer), model)

    async def shown(self) -> Shown:
        """Return what it serves, as of its last look.

        Raises:
            LostError: no answer came.
            SamplerError: it does not say.
        """
        return await self._shown("GET", "/adapters", b"", _CONTROL_SECONDS)

    async def look(self, published: Iterable[str], seconds: float = _CONTROL_SECONDS, *, folder: str = "") -> Shown:
        """Let it look for versions now, and return what it serves then.

        Args:
            published: names of versions that are there.
            seconds: how long to wait.
            folder: name of a run's versions, to learn whether it sees their folder; empty not to ask.

        Raises:
            LostError: no answer came.
            SamplerError: it does not say.
        """
        body = {"published": [*published], **({"folder": folder} if folder else {})}
        return await self._shown("POST", "/look", json.dumps(body).encode(), seconds)

    async def base(self) -> Base:
        """Return its base model.

        Raises:
            LostError: no answer came.
            SamplerError: it does not say.
        """
        answer = await self._connections.request("GET", "/v1/models", seconds=_CONTROL_SECONDS)
        self._raise_for(answer)
        try:
            card = next(card for card in _json(answer)["data"] if card.get("parent") is None)
            length = card.get("max_model_len")
            return Base(str(card["id"]), length if isinstance(length, int) else None)
        except (AttributeError, LookupError, StopIteration, TypeError) as error:
            raise FaultError("its list of models is not vLLM's") from error

    async def _shown(self, method: str, path: str, body: bytes, seconds: float) -> Shown:
        answer = await self._watcher.request(method, path, body, seconds=seconds)
        if answer.status == 404:
            raise UnfitError(
                f"it has no {path}: name the port of a sampler or, as http://NAME-control:8090, that of a serving "
                "release with rl.enabled"
            )
        self._raise_for(answer)
        data = _json(answer)
        try:
            problems = {str(name): str(problem) for name, problem in data["problems"].items()}
            server, sees = dict(data.get("server") or {}), data.get("sees")
            return Shown(bool(data["ready"]), frozenset(data["loaded"]), problems, server, sees)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise FaultError(f"its answer to {path} is not of `stoker adapters watch`") from error

    def _raise_for(self, answer: Answer) -> None:
        """Raise the error that a status stands for."""
        if answer.status in (401, 403):
            keyed = self._connections.keyed
            what = f"it refuses the key in {API_KEY}" if keyed else f"it asks for a key: set {API_KEY}"
            raise UnfitError(f"{what} ({_text_of(answer)}): take it from the Secret in its release's api.keySecret")
        _raise_for(answer)


def _raise_for(answer: Answer) -> None:
    """Raise the error that a status stands for."""
    if answer.status == 200:
        return
    text = _text_of(answer)
    if answer.status in (429, 503):
        raise BusyError(text)
    if answer.status in (502, 504):  # from a proxy: what is behind it is gone
        raise LostError(text)
    if answer.status == 404 and "does not exist" in text:
        raise AbsentError(text)
    if 400 <= answer.status < 500 and answer.status not in (404, 408, 409, 425):
        raise SamplerRefusedError(text)
    raise FaultError(text)


def _json(answer: Answer) -> Any:
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise FaultError("its answer is not JSON") from error


def _text_of(answer: Answer) -> str:
    text = answer.body.decode(errors="replace")
    with suppress(ValueError, LookupError, TypeError, RecursionError):
        text = str(json.loads(text)["error"]["message"])
    return f"{answer.status}: {' '.join(text.split())[:_SHOWN]}"


def _written(data: Any, model: str) -> Written:
    """Return the answer in vLLM's JSON."""
    try:
        (choice,) = data["choices"]
        served, finish = data["model"], choice["finish_reason"]
        ids = tuple(int(token) for token in choice["token_ids"])
        logprobs = tuple(float(logprob) for logprob in choice["logprobs"]["token_logprobs"])
    except (LookupError, TypeError, ValueError) as error:
        raise FaultError("its answer has no tokens with log-probabilities, as vLLM's has") from error
    if served != model:
        raise FaultError(f"it was asked for {model}, and {served} answered")
    if finish not in ("stop", "length"):  # `abort`: it is about to end
        raise LostError(f"it stopped in the middle of the answer ({finish})")
    # An empty answer would be trained as one that is worth nothing.
    if not ids or len(ids) != len(logprobs) or not all(map(math.isfinite, logprobs)):
        raise FaultError(
            f"{len(ids)} tokens with {len(logprobs)} log-probabilities is an invalid answer: the counts differ, there "
            "are none, or a value is not finite"
        )
    return Written(ids, logprobs, finish)
