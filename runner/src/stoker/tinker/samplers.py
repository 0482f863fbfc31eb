"""Samples from vLLM, and publishes LoRA models there."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.contract.exits import RunError
from stoker.serve.adapters import live
from stoker.serve.vllm import Server, ServerError
from stoker.tinker.messages import Sampled
from stoker.tinker.refusals import RefusedError

_LOOK_SECONDS = 0.2
_TELL_SECONDS = 5.0
_AGAIN_SECONDS = 1.0
# No answer, no such version, too much to do, and what a server or its proxy says when vLLM is gone, ends or starts.
_ELSEWHERE = frozenset({0, 404, 408, 425, 429, *range(500, 600)})


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """What to sample.

    Attributes:
        prompt: its tokens.
        count: answers.
        settings: of vLLM's request for completions.
        prompt_logprobs: the prompt's log-probabilities are asked for too.
    """

    prompt: Sequence[int]
    count: int
    settings: Mapping[str, Any]
    prompt_logprobs: bool = False


class Samplers:
    """vLLM servers that serve what a folder holds.

    Args:
        addresses: one of each server; those that nobody is at, or not yet, are left out.
        folder: their folder of published versions.
        run: the run's name.
        owner: what all attempts of the run have in common with no other.
        model: the base model, for the manifests.
        key: for requests; empty for none.
        seconds: how long a version may take until every server has it, and an answer until it is there; a server that
            is gone may come back meanwhile.

    Raises:
        RunError: the folder cannot be written to (78).
    """

    def __init__(
        self,
        addresses: Sequence[str],
        folder: Path,
        run: str,
        owner: str,
        model: str,
        *,
        key: str = "",
        seconds: float = 600.0,
    ) -> None:
        self._servers = [Server(address, seconds, key) for address in addresses]
        self._folder, self._seconds = folder, seconds
        self._base_model = {"name_or_path": model, "revision": None}
        self._name = live.claim(folder, run, owner)
        self._lock = threading.Lock()
        self._numbers, self._turns = itertools.count(1), itertools.count()
        self._there = self._servers
        self._live: set[str] = set()

    def publish(self, write: Callable[[Path], None]) -> str:
        """Publish what a function writes as a new version, and return its name in requests.

        Raises:
            RefusedError: the folder cannot be written to.
        """
        with self._lock:
            number = next(self._numbers)
        try:
            name = live.publish(self._folder, self._name, number, write, self._base_model).name
        except RunError as error:
            raise RefusedError(f"the weights could not be published: {error.message}", 500) from error
        with self._lock:
            self._live.add(name)
        return name

    def wait(self, name: str) -> None:
        """Wait until every server that is there has a version, and one is. A version that is not there in time goes.

        Raises:
            RefusedError: one has not in time.
        """
        until = time.monotonic() + self._seconds
        for server in self._servers:
            with suppress(ServerError):  # a watcher that is not told looks by itself
                server.patient(_TELL_SECONDS).look(name)
        while True:
            having: list[Server] = []
            lacking: list[Server] = []
            why = ""
            for server in self._servers:
                try:
                    (having if name in server.models() else lacking).append(server)
                except ServerError as error:
                    why = str(error)
            if having and not lacking:
                with self._lock:
                    self._there = having
                return
            if time.monotonic() > until:
                self.retract(name)
                raise RefusedError(
                    f"a sampler does not serve {name} after {self._seconds:g} s "
                    f"({'it does not list it' if lacking else why}): look at its log, and give "
                    "samplers and endpoint the same folder",
                    503,
                )
            time.sleep(_LOOK_SECONDS)

    def retract(self, name: str) -> None:
        """Remove a version.

        Raises:
            RunError: the folder cannot be written to (78).
        """
        with self._lock:
            self._live.discard(name)
        live.retract(self._folder, self._name, int(name.rpartition(":")[2]))

    def close(self) -> None:
        """Remove all versions.

        Raises:
            OSError: the folder cannot be written to.
        """
        live.clear(self._folder, self._name)

    def sample(self, name: str | None, asked: SampleRequest) -> tuple[list[Sampled], list[float | None] | None]:
        """Return answers, and the prompt's log-probabilities if they were asked for.

        Servers take turns at being asked first. The others are asked if it cannot answer, and all of them again until
        the time is over.

        Args:
            name: a version; None for the base model.
            asked: what to sample.

        Raises:
            RefusedError: a server refuses the request, none answers in time, or one does not answer as vLLM does.
        """
        until = time.monotonic() + self._seconds
        while True:
            try:
                return self._ask(name, asked, until)
            except ServerError as error:
                with self._lock:
                    removed = error.status == 404 and name is not None and name not in self._live
                if removed or error.status not in _ELSEWHERE:
                    raise RefusedError(f"the sampler answered: {error}", error.status) from error
                if time.monotonic() + _AGAIN_SECONDS > until:
                    raise RefusedError(
                        f"no sampler has answered within {self._seconds:g} s ({error}): look at the samplers' logs, or "
                        "raise --answer_seconds if answers take longer",
                        503,
                    ) from error
                time.sleep(_AGAIN_SECONDS)

    def _ask(
        self, name: str | None, asked: SampleRequest, until: float
    ) -> tuple[list[Sampled], list[float | None] | None]:
        """Return the answer of the first server that gives one."""
        with self._lock:
            there, turn = self._there, next(self._turns)
        first = turn % len(there)
        failed: ServerError | None = None
        for server in [*there[first:], *there[:first], *(one for one in self._servers if one not in there)]:
            left = until - time.monotonic()
            if failed and left <= 0:
                break
            try:
                return _read(server.patient(left).complete(_request(name or _base(server), asked)), asked)
            except ServerError as error:
                if error.status not in _ELSEWHERE:
                    raise
                failed = failed or error  # the first had the model before
        assert failed is not None
        raise failed


def _request(model: str, asked: SampleRequest) -> dict[str, Any]:
    more = {"prompt_logprobs": 0} if asked.prompt_logprobs else {}
    return {
        **asked.settings,
        "model": model,
        "prompt": list(asked.prompt),
        "n": asked.count,
        "logprobs": 0,
        "return_token_ids": True,
        **more,
    }


def _base(server: Server) -> str:
    """Return the name of a server's base model."""
    names = [name for name, (_, adapter) in server.models().items() if not adapter]
    if not names:
        raise ServerError("it serves no base model")
    return names[0]


def _read(answer: Any, asked: SampleRequest) -> tuple[list[Sampled], list[float | None] | None]:
    """Return what an answer says.

    Raises:
        ServerError: the server ended the answer before its end.
        RefusedError: it is not vLLM's.
    """
    try:
        if any(choice["finish_reason"] == "abort" for choice in answer["choices"]):
            raise ServerError("it stopped in the middle of an answer")
        return _answers(answer, asked)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise RefusedError(
            f"the sampler's answer is not vLLM's ({type(error).__name__}: {error}): name a vLLM server in --samplers",
            502,
        ) from error


def _answers(answer: Any, asked: SampleRequest) -> tuple[list[Sampled], list[float | None] | None]:
    choices = answer["choices"]
    if len(choices) != asked.count:
        raise ValueError(f"{len(choices)} answers instead of {asked.count}")
    found = []
    for choice in choices:
        tokens = tuple(map(int, choice["token_ids"]))
        logprobs = tuple(map(float, choice["logprobs"]["token_logprobs"]))
        if len(tokens) != len(logprobs) or not all(map(math.isfinite, logprobs)):
            raise ValueError(f"{len(tokens)} tokens with {len(logprobs)} log-probabilities")
        if choice["finish_reason"] not in ("stop", "length"):
            raise ValueError(f"an answer ended by {choice['finish_reason']!r}")
        found.append(Sampled(tokens, logprobs, choice["finish_reason"] == "length"))
    if not asked.prompt_logprobs:
        return found, None
    # Each entry maps token ids to log-probabilities, the prompt's own token first; the first token has none.
    entries = choices[0]["prompt_logprobs"]
    return found, [
        None if entry is None else float(entry[str(token)]["logprob"])
        for entry, token in zip(entries, asked.prompt, strict=True)
    ]
