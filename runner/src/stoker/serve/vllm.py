"""The client of vLLM's HTTP API, which only this pod can reach: models, adapters, one token, log-probabilities."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any

# Every adapter changes the probabilities of this text, unless it changes nothing.
_PROBE = "Question: What is the capital of France?\nAnswer: The capital of France is Paris, and it is known for"

PLAIN_SAMPLING: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""vLLM's own defaults of a request. A server takes those that a request leaves out from the model's
generation_config.json, unless it runs with --generation-config vllm."""


class ServerError(Exception):
    """vLLM failed at a request.

    Args:
        message: what vLLM answered.
        status: the HTTP status; 0 if there was no answer.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """A vLLM server.

    Args:
        address: such as `http://127.0.0.1:8000`.
        timeout: seconds to wait for an answer.
        key: sent as a bearer token; empty for none.
        proxies: of requests, by scheme; by default none, because the server is in this pod, whatever proxy the
            environment may name.
    """

    def __init__(
        self, address: str, timeout: float = 60.0, key: str = "", *, proxies: Mapping[str, str] | None = None
    ) -> None:
        self._address = address.rstrip("/")
        self._timeout, self._key = timeout, key
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._proxies = dict(proxies or {})
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler(self._proxies)).open

    def patient(self, timeout: float) -> Server:
        """Return the same server, which may take more seconds to answer."""
        return Server(self._address, timeout, self._key, proxies=self._proxies)

    def models(self) -> dict[str, tuple[str, bool]]:
        """Return every name that it serves: its folder, and whether it is an adapter.

        Raises:
            ServerError: it does not answer, or not as vLLM does.
        """
        path = "/v1/models"
        answer = self._call(path)
        with _understood(path):
            return {str(card["id"]): (str(card["root"]), card["parent"] is not None) for card in answer["data"]}

    def healthy(self) -> bool:
        """Return whether it answers and its engine lives."""
        try:
            self._call("/health")
        except ServerError:
            return False
        return True

    def load(self, name: str, path: str) -> None:
        """Load an adapter.

        Raises:
            ServerError: it could not; status 404 if it does not see the folder.
        """
        self._call("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})

    def unload(self, name: str) -> None:
        """Unload an adapter.

        Raises:
            ServerError: it could not; status 404 if it has no such name.
        """
        self._call("/v1/unload_lora_adapter", {"lora_name": name})

    def look(self, name: str) -> None:
        """Have the watcher that a proxy has at the same address look for a version now.

        Raises:
            ServerError: there is no watcher, or it did not look.
        """
        self._call("/look", {"published": [name]})

    def answers(self, model: str) -> None:
        """Let a model generate one token, or embed a text if it cannot generate.

        Raises:
            ServerError: it did not.
        """
        try:
            self._call("/v1/completions", {"model": model, "prompt": _PROBE, "max_tokens": 1, "temperature": 0})
        except ServerError as error:
            if error.status != 404:
                raise
            # vLLM only has paths for what the model can do; a reward model has neither.
            try:
                self._call("/v1/embeddings", {"model": model, "input": _PROBE})
            except ServerError as other:
                if other.status != 404:
                    raise

    def complete(self, request: Mapping[str, Any]) -> Any:
        """Return vLLM's answer to a request for completions, as it is.

        Raises:
            ServerError: it did not answer.
        """
        return self._call("/v1/completions", dict(request))

    def log_probabilities(self, model: str) -> list[float]:
        """Return a model's log-probability of each token of a fixed text except the first, in nats.

        Raises:
            ServerError: it did not answer, or not as vLLM does.
        """
        path = "/v1/completions"
        answer = self._call(
            path, {"model": model, "prompt": _PROBE, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        )
        with _understood(path):
            entries = [entry for entry in answer["choices"][0]["prompt_logprobs"] if entry]
            # Each entry maps token ids to log-probabilities; with 0 it only has the text's own token.
            return [float(token["logprob"]) for entry in entries for token in [*entry.values()][:1]]

    def pause(self) -> None:
        """Let no token be generated until `resume`. Requests under way are kept; what was cached is computed anew.

        Raises:
            ServerError: it did not.
        """
        self._call("/pause?mode=keep", {})

    def resume(self) -> None:
        """Go on generating.

        Raises:
            ServerError: it did not.
        """
        self._call("/resume", {})

    def is_paused(self) -> bool:
        """Return whether it generates no token until `resume`.

        Raises:
            ServerError: it does not answer, or not as vLLM does.
        """
        path = "/is_paused"
        answer = self._call(path)
        with _understood(path):
            return bool(answer["is_paused"])

    def reset_cache(self) -> None:
        """Drop cached keys and values. Those of requests under way are computed anew.

        Raises:
            ServerError: it did not.
        """
        path = "/reset_prefix_cache?reset_running_requests=true"
        answer = self._call(path, {})
        with _understood(path):
            if not answer["success"]:
                raise ServerError("its cache could not be dropped: requests still use it")

    def sleep(self, level: int) -> None:
        """Let no token be generated until `wake_up`, and free the memory of the device. Requests under way are kept.

        A build for CPUs frees nothing: there `pause` does as much.

        Args:
            level: 1 moves the weights to host memory, 2 drops them; both drop what was cached.

        Raises:
            ServerError: it did not; status 404 if it was not started to.
        """
        self._call(f"/sleep?level={level}&mode=keep", {})

    def wake_up(self, *tags: str) -> None:
        """Take the memory of the device again, and go on generating once there is all of it.

        Args:
            tags: which memory: `weights`, `kv_cache`; all without any.

        Raises:
            ServerError: it did not.
        """
        self._call("/wake_up" + "".join(f"{'&' if number else '?'}tags={tag}" for number, tag in enumerate(tags)), {})

    def is_sleeping(self) -> bool:
        """Return whether it sleeps or is paused.

        Raises:
            ServerError: it does not answer, or not as vLLM does.
        """
        path = "/is_sleeping"
        answer = self._call(path)
        with _understood(path):
            return bool(answer["is_sleeping"])

    def load_now(self) -> int:
        """Return how many requests it has, waiting ones too: always 0 without `--enable-server-load-tracking`.

        Raises:
            ServerError: it does not answer, or not as vLLM does.
        """
        path = "/load"
        answer = self._call(path)
        with _understood(path):
            return int(answer["server_load"])

    def workers(self, method: str, **arguments: Any) -> list[dict[str, Any]]:
        """Call a method of each worker, and return what each returned.

        Raises:
            ServerError: it has no such method, or failed at it.
        """
        path = "/collective_rpc"
        answer = self._call(path, {"method": method, "kwargs": arguments})
        with _understood(path):
            return [dict(found or {}) for found in answer["results"]]

    def _call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self._address}{path}", data, self._headers, method="POST" if data else "GET"
        )
        try:
            with self._open(request, timeout=self._timeout) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise ServerError(_message(error), error.code) from error
        except (OSError, HTTPException) as error:
            raise ServerError(f"vLLM does not answer: {str(error) or type(error).__name__}") from error
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text.decode(errors="replace")


@contextmanager
def _understood(path: str) -> Iterator[None]:
    """Turn an answer of another form than vLLM's into a ServerError."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ServerError(f"the answer to {path} is not vLLM's ({type(error).__name__}: {error})") from error


def _message(error: urllib.error.HTTPError) -> str:
    try:
        text = error.read().decode(errors="replace")
    except (OSError, HTTPException) as lost:
        return f"{error.code} {error.reason}, and its text was lost: {lost}"
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return f"{error.code} {error.reason}: {text[:200]}"
