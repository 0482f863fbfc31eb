"""A session's endpoint for training by requests: the part of the tinker client's protocol that the lab needs."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import urllib.error
import urllib.request
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from itertools import pairwise
from typing import Any

from stoker.contract.exits import ExitCode
from stoker.lab.errors import LabError
from stoker.lab.keys import key_in
from stoker.tinker.refusals import CLIENTS
from stoker.tinker.wire import field, fields

KEY = "TINKER_API_KEY"
_JSON, _PROTOBUF = "application/json", "application/x-protobuf"
_FLOAT32, _INT64 = 1, 2
# A model whose client says nothing for two minutes makes room for others.
_HEARTBEAT_SECONDS = 10.0
_PROBE_SECONDS = 10.0
_ASK_AGAIN = 408
_NOT_YET = 500
# The checkpoint that holds a model while its gradients are forgotten.
_INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Passed:
    """One row to learn from.

    Attributes:
        tokens: what the model reads.
        targets: for each of them the token whose probability counts.
        weights: what each target counts.
    """

    tokens: Sequence[int]
    targets: Sequence[int]
    weights: Sequence[float]


class EndpointClient:
    """An endpoint by its address.

    Args:
        url: its address, such as `http://127.0.0.1:8000`.
        timeout: seconds to wait for an answer.
    """

    def __init__(self, url: str, timeout: float = 600.0) -> None:
        self.url, self._timeout = url.rstrip("/"), timeout
        self._session = ""
        # Numbers of requests, which several threads take.
        self._numbers = itertools.count(1)
        self._end = threading.Event()

    def is_there(self) -> bool | None:
        """Return whether this address is an endpoint's; None without an answer."""
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/healthz", timeout=_PROBE_SECONDS) as answer:
                return bool(json.loads(answer.read()) == {"status": "ok"})
        except urllib.error.HTTPError as error:
            return None if error.code >= _NOT_YET else False  # a proxy whose endpoint still starts
        except ValueError:
            return False
        except (OSError, HTTPException):
            return None

    def model(self) -> tuple[str, int]:
        """Return the base model's name, and the tokens that it reads.

        Raises:
            LabError: the endpoint does not answer, or the key is wrong.
        """
        (found,) = self._call("get_server_capabilities", None)["supported_models"]
        return str(found["model_name"]), int(found["max_context_length"])

    def create(self, model: str, rank: int, alpha: int, seed: int, *, attention: bool, feed_forward: bool) -> str:
        """Return the name of a new LoRA model.

        Raises:
            LabError: the endpoint refuses.
        """
        self._session = str(self._call("create_session", {"sdk_version": f"{CLIENTS}.0"})["session_id"])
        threading.Thread(target=self._live, daemon=True).start()
        lora = {"rank": rank, "alpha": alpha, "seed": seed, "train_attn": attention, "train_mlp": feed_forward}
        asked = {"session_id": self._session, "model_seq_id": 0, "base_model": model, "lora_config": lora}
        return str(self._done("create_model", asked)["model_id"])

    def forward(self, model_id: str, rows: Iterable[Passed], *, learn: bool) -> list[list[float]]:
        """Return the log-probability of each target; with `learn`, add up the gradients of weighted rows."""
        body = b"".join(
            (
                field(1, model_id),
                field(2, self._next()),
                *(field(3, _datum(row)) for row in rows),
                field(4, "cross_entropy"),
                *(() if learn else (field(6, 1),)),
            )
        )
        return _logprobs(self._done("forward_backward", body))

    def step(self, model_id: str, learning_rate: float, longest_gradient: float) -> float:
        """Change the model by the gradients so far, and return their length."""
        adam = {"learning_rate": learning_rate, "beta2": 0.999, "eps": 1e-8, "grad_clip_norm": longest_gradient}
        done = self._done("optim_step", {"model_id": model_id, "seq_id": self._next(), "adam_params": adam})
        return float(done["metrics"]["grad_norm"])

    def forget(self, model_id: str) -> None:
        """Forget gradients that no step has followed; the protocol has no request for that alone."""
        path = self.save(model_id, _INTERRUPTED)
        self._done("load_weights", {"model_id": model_id, "seq_id": self._next(), "path": path, "optimizer": True})

    def save(self, model_id: str, name: str) -> str:
        """Save the model as it is now as a checkpoint, in place of one of that name, and return its address."""
        asked = {"model_id": model_id, "seq_id": self._next(), "path": name, "overwrite": True}
        return str(self._done("save_weights", asked)["path"])

    def sampler(self, model_id: str) -> str:
        """Let the samplers have the model as it is now, and return what to ask them by."""
        asked = {"model_id": model_id, "seq_id": self._next(), "sampling_session_seq_id": self._next()}
        return str(self._done("save_weights_for_sampler", asked)["sampling_session_id"])

    def sample(
        self, sampler: str, tokens: Sequence[int], count: int, sampling: Mapping[str, Any]
    ) -> list[tuple[tuple[int, ...], tuple[float, ...], bool]]:
        """Return tokens, log-probabilities and whether it was cut, of each answer to a prompt."""
        prompt = {"chunks": [{"type": "encoded_text", "tokens": [*tokens]}]}
        asked = {"sampling_session_id": sampler, "seq_id": self._next(), "num_samples": count, "prompt": prompt}
        body = self._done("asample", {**asked, "sampling_params": dict(sampling)})
        found = []
        for number, answer in fields(body):
            if number == 1 and isinstance(answer, bytes):
                parts = dict(fields(answer))
                found.append(
                    (tuple(_numbers("i", parts.get(2, b""))), tuple(_numbers("f", parts.get(3, b""))), 1 in parts)
                )
        return found

    def close(self) -> None:
        """Let the endpoint have the model's room."""
        self._end.set()

    def _live(self) -> None:
        while not self._end.wait(_HEARTBEAT_SECONDS):
            try:
                self._call("session_heartbeat", {"session_id": self._session})
            except LabError:  # the next request says why
                continue

    def _next(self) -> int:
        return next(self._numbers)

    def _done(self, path: str, body: Mapping[str, Any] | bytes) -> Any:
        """Return what comes of a request whose answer comes later."""
        asked = {"request_id": self._call(path, body)["request_id"]}
        while (answer := self._call("retrieve_future", asked)) is None:
            continue
        if isinstance(answer, Mapping) and answer.get("error"):
            raise LabError(f"{self.url}: {answer['error']}")
        return answer

    def _call(self, path: str, body: Mapping[str, Any] | bytes | None) -> Any:
        """Return an answer: JSON, or bytes; None if it is not there yet."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = _PROTOBUF if isinstance(body, bytes) else _JSON
        headers = {"Content-Type": kind, "X-API-Key": key_in(KEY)}
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                text = answer.read()
                return text if answer.headers["Content-Type"] == _PROTOBUF else json.loads(text)
        except urllib.error.HTTPError as error:
            if error.code == _ASK_AGAIN:
                return None
            told = error.read().decode(errors="replace")[:500]
            fix = f": set {KEY} to the session's key" if error.code == 401 else ""
            raise LabError(f"{self.url} answered {error.code}: {told}{fix}") from error
        except (OSError, HTTPException) as error:
            raise no_answer(self.url, error) from error


def no_answer(url: str, error: Exception | None = None) -> LabError:
    """Return what to say of an address that does not answer.

    Args:
        url: the address.
        error: why it does not; None if that is not known.
    """
    why = f" ({error})" if error else ""
    told = f"{url} does not answer{why}: is the session up, and can this machine reach it?"
    return LabError(told, ExitCode.UNAVAILABLE)


def _datum(row: Passed) -> bytes:
    chunk = field(1, field(1, field(1, _bytes("i", row.tokens))))
    return chunk + _column("target_tokens", "q", _INT64, row.targets) + _column("weights", "f", _FLOAT32, row.weights)


def _column(name: str, letter: str, kind: int, values: Sequence[float]) -> bytes:
    tensor = field(1, _bytes(letter, values)) + field(3, kind) + field(4, len(values))
    return field(2, field(1, name) + field(2, tensor))


def _logprobs(body: bytes) -> list[list[float]]:
    """Return the rows of the tensor `logprobs` in a ForwardBackwardOutput."""
    found: list[list[float]] = []
    for number, value in fields(body):
        if number != 2 or not isinstance(value, bytes):
            continue
        for inner, entry in fields(value):
            if inner == 2 and isinstance(entry, bytes):
                tensor = dict(fields(_raw(dict(fields(entry))[2])))
                rows, ends = _raw(tensor[1]), _numbers("q", tensor[2])  # where rows end, in bytes
                found += [_numbers("f", rows[a:b]) for a, b in pairwise(ends)]
    return found


def _raw(value: int | bytes) -> bytes:
    return value if isinstance(value, bytes) else b""


def _numbers(letter: str, data: int | bytes) -> list[Any]:
    values: array[Any] = array(letter, _raw(data))
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def _bytes(letter: str, values: Sequence[float]) -> bytes:
    found = array(letter, values)
    if sys.byteorder == "big":
        found.byteswap()
    return found.tobytes()
