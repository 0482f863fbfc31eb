"""A served policy by its address: what a serving release, or any server with OpenAI's API, answers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any, TypeVar

from stoker.contract.exits import ExitCode
from stoker.lab.errors import LabError
from stoker.lab.generation import Completion, Prompt, checked_prompts
from stoker.lab.keys import key_in
from stoker.serve.vllm import PLAIN_SAMPLING

_KEY = "OPENAI_API_KEY"
# Requests that wait for an answer; a server computes them together.
_AT_ONCE = 32

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def answered(ask: Callable[[Asked], Answer], prompts: Sequence[Asked]) -> list[Answer]:
    """Ask several at once, and return the answers in the order of the prompts; the first failure is raised."""
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        return list(pool.map(ask, prompts))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class Served:
    """A server with OpenAI's API.

    Args:
        url: its address, such as `http://support-vllm-serving:8000`; with or without `/v1`.
        model: the name in requests, such as `support` or `support:3`; the base model by default.
        timeout: seconds to wait for an answer.

    Raises:
        LabError: the address is not a URL.
    """

    def __init__(self, url: object, model: str | None = None, timeout: float = 600.0) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise LabError(f"url is {url!r}: write the address of a server, such as 'http://127.0.0.1:8000'")
        self._url = url.rstrip("/").removesuffix("/v1")
        self._model, self._timeout = model, timeout

    def models(self) -> list[str]:
        """Return the names that it serves; the base model comes first.

        Raises:
            LabError: it does not answer.
        """
        cards = self._call("/v1/models", None)["data"]
        return [str(card["id"]) for card in sorted(cards, key=lambda card: card.get("parent") is not None)]

    def generate(self, prompts: Sequence[Prompt], sampling: Mapping[str, Any]) -> list[Completion]:
        """Return answers: all of the first prompt, then all of the next.

        Args:
            prompts: texts, or lists of token ids.
            sampling: fields of the request, such as `max_tokens`. What is left out has vLLM's defaults, as in
                this process, whatever the generation_config.json of the server's model says.

        Raises:
            LabError: it does not answer, or refuses the request.
        """
        asked = checked_prompts(prompts)
        model = self._model or self.models()[0]

        def ask(prompt: Prompt) -> Any:
            told = {"model": model, "prompt": prompt if isinstance(prompt, str) else list(prompt)}
            return self._call("/v1/completions", {**told, **PLAIN_SAMPLING, **sampling, "return_token_ids": True})

        found = []
        for prompt, answer in zip(asked, answered(ask, asked), strict=True):
            for choice in answer["choices"]:
                scores = (choice.get("logprobs") or {}).get("token_logprobs")
                found.append(
                    Completion(
                        prompt,
                        choice["text"],
                        tuple(choice.get("token_ids") or ()),
                        None if scores is None else tuple(scores),
                        choice.get("finish_reason"),
                    )
                )
        return found

    def _call(self, path: str, body: Mapping[str, Any] | None) -> Any:
        key = key_in(_KEY)
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            told = error.read().decode(errors="replace")[:500]
            fix = f"set {_KEY}" if error.code in (401, 403) else "see the server's log, or change the request"
            raise LabError(f"{self._url}{path} answered {error.code}: {told}: {fix}") from error
        except (OSError, HTTPException) as error:
            raise LabError(
                f"{self._url} does not answer ({error}): is the server up, and can this machine reach it?",
                ExitCode.UNAVAILABLE,
            ) from error
        except ValueError as error:
            raise LabError(f"{self._url}{path} does not answer as a server with OpenAI's API does: {error}") from error
