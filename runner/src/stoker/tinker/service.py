"""What the client's requests do: sessions, models, checkpoints and samples. HTTP is in :mod:`stoker.tinker.server`."""

from __future__ import annotations

import math
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from stoker.contract.exits import RunError
from stoker.contract.words import say
from stoker.tinker import messages
from stoker.tinker.checkpoints import SAMPLER_WEIGHTS, WEIGHTS, CheckpointPath, Checkpoints, checked_name, checkpoint_at
from stoker.tinker.fields import Body, number_in, read_sampling, text_in
from stoker.tinker.futures import Future, Futures
from stoker.tinker.lora import ALPHA, Adam, Shape, read_about
from stoker.tinker.refusals import RefusedError, refuse_client
from stoker.tinker.samplers import Samplers
from stoker.tinker.sources import SampleSource, Sources

if TYPE_CHECKING:  # torch takes seconds to import, and this module is tested without it too
    from stoker.tinker.trainer import Trainer

_SAMPLING_THREADS = 128
# A client that lives says so every ten seconds, and gives up after two minutes (tinker 0.38).
_GONE_SECONDS = 120.0
# Versions without a name that a model keeps for clients that still sample from them.
_UNNAMED = 8
_POLL_SECONDS = 20.0
# Of a number in a list of Python.
_NUMBER_BYTES = 36
_UNEMBED = (
    "vLLM serves no adapter of the output head: train_unembed has no effect, and only attention and feed-forward "
    "layers are trained"
)

Answer = Mapping[str, Any] | bytes


class Service:
    """The endpoint's state. Models are trained one request after the other, in one thread.

    Args:
        trainer: the base model.
        checkpoints: where checkpoints are.
        samplers: who samples.
        gone_seconds: after so long without a word from its client, a session's models make room for others.
    """

    def __init__(
        self,
        trainer: Trainer,
        checkpoints: Checkpoints,
        samplers: Samplers,
        *,
        gone_seconds: float = _GONE_SECONDS,
    ) -> None:
        self._trainer, self._checkpoints, self._samplers = trainer, checkpoints, samplers
        self._life = secrets.token_hex(4)
        self._futures = Futures(self._life)
        self._lock = threading.Lock()
        self._gone_seconds = gone_seconds
        self._sessions: dict[str, float] = {}  # when each was last heard of
        # Id of a sampling session → what it samples from: a checkpoint, a version without one, or the base model.
        self._sampling: dict[str, SampleSource | str | None] = {}
        self._sources = Sources(checkpoints, samplers)
        self._turned_away: dict[str, set[int]] = {}  # model → parts of batches that must be sent again
        self._unnamed: dict[str, deque[str]] = {}  # model → its versions without a name
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._asked = time.monotonic()
        self._busy: float | None = None  # since when the training thread does the request that it does
        self._thread = threading.Thread(target=self._run, name="training", daemon=True)
        self._thread.start()
        for number in range(_SAMPLING_THREADS):
            # Daemons: an answer that takes minutes does not hold up the end, as the threads of an executor would.
            threading.Thread(target=self._sample, name=f"sampling-{number}", daemon=True).start()

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last use; a client that lives asks every ten seconds."""
        return time.monotonic() - self._asked

    def use(self) -> None:
        """Count as used now."""
        self._asked = time.monotonic()

    @property
    def busy_seconds(self) -> float:
        """Seconds that the request has taken so far which is being trained; 0 if there is none."""
        busy = self._busy
        return 0.0 if busy is None else time.monotonic() - busy

    def close(self, seconds: float = 60.0) -> None:
        """End after the request under way, and remove what was published.

        Args:
            seconds: how long to wait for that request.
        """
        self._work.put(None)
        self._thread.join(seconds)
        for _ in range(_SAMPLING_THREADS):
            self._waiting.put(None)
        self._samplers.close()

    def answer(self, path: str, body: bytes | Body) -> Future | Mapping[str, Any]:
        """Answer a POST request; `body` is protobuf for `forward_backward` and JSON for all others.

        Args:
            path: after `/api/v1/`.
            body: what was sent.

        Returns:
            the answer, or the future whose answer was asked for.

        Raises:
            RefusedError: it cannot be fulfilled.
        """
        self.use()
        if path == "forward_backward":
            return self._forward_backward(body)
        handlers: Mapping[str, Callable[[Body], Future | Mapping[str, Any]]] = {
            "asample": self._asample,
            "client/config": self._client_config,
            "client/dynamic_config": self._client_dynamic_config,
            "create_model": self._create_model,
            "create_sampling_session": self._create_sampling_session,
            "create_session": self._create_session,
            "get_info": self._get_info,
            "load_weights": self._load_weights,
            "optim_step": self._optim_step,
            "retrieve_future": self._retrieve_future,
            "save_weights": self._save_weights,
            "save_weights_for_sampler": self._save_weights_for_sampler,
            "session_heartbeat": self._session_heartbeat,
            "telemetry": lambda _: {"status": "accepted"},  # nothing is kept
            "unload_model": self._unload_model,
            "weights_info": self._weights_info,
        }
        if path not in handlers:
            raise RefusedError(f"/api/v1/{path} does not exist: this endpoint has {', '.join(sorted(handlers))}", 404)
        if not isinstance(body, Mapping):
            raise RefusedError("the body is protobuf: send JSON", 415)
        return handlers[path](body)

    def show(self, path: str) -> Mapping[str, Any]:
        """Answer a GET request.

        Raises:
            RefusedError: there is nothing at this path.
        """
        if path == "healthz":  # Kubernetes asks it, which is no use of the endpoint
            return {"status": "ok"}
        self.use()
        if path == "get_server_capabilities":
            model = {
                "model_name": self._trainer.model,
                "max_context_length": self._trainer.context,
                "trainable": True,
                "sampleable": True,
            }
            return {"supported_models": [model]}
        if path.startswith("samplers/"):
            name = path.removeprefix("samplers/")
            self._sampled(name)
            return {"sampler_id": name, "base_model": self._trainer.model, "model_path": None}
        raise RefusedError(f"/api/v1/{path} does not exist: look at healthz or get_server_capabilities", 404)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            self._busy = time.monotonic()
            work()
            self._busy = None

    def _sample(self) -> None:
        while (work := self._waiting.get()) is not None:
            work()

    def _later(
        self, key: Hashable | None, work: Callable[[], Answer], check: Callable[[], None] = lambda: None, size: int = 0
    ) -> Future:
        """Queue work for the training thread; a request that is sent twice is done once.

        Args:
            key: what is the same when a client sends the request again.
            work: what is to be done.
            check: refuses a new request at once.
            size: bytes that the request holds.
        """

        def begin(future: Future) -> None:
            check()
            self._work.put(partial(_done, future, work))

        return self._futures.open(key, begin, size)

    def _ordered(self, body: Body, work: Callable[[], Answer]) -> Future:
        """Queue work about a model."""
        model_id, number = text_in(body, "model_id"), body.get("seq_id")
        return self._later(None if number is None else (model_id, number), work)

    # Start

    def _client_config(self, body: Body) -> Mapping[str, Any]:
        refuse_client(text_in(body, "sdk_version"))
        # One chunk after the other, so that gradients are always added up in the same order.
        return {"pjwt_auth_enabled": False, "parallel_fwdbwd_chunks": False, "proto_compress_fwdbwd": False}

    def _client_dynamic_config(self, body: Body) -> Mapping[str, Any]:
        refuse_client(text_in(body, "sdk_version"))
        return {"sample_cancel_enabled": False}

    def _create_session(self, body: Body) -> Mapping[str, Any]:
        refuse_client(text_in(body, "sdk_version"))
        with self._lock:
            session = f"s{self._life}-{len(self._sessions) + 1}"
            self._sessions[session] = time.monotonic()
        return {"type": "create_session", "session_id": session, "info_message": _UNEMBED}

    def _session_heartbeat(self, body: Body) -> Mapping[str, Any]:
        self._session(body)
        return {"type": "session_heartbeat"}

    def _session(self, body: Body) -> str:
        """Return a session that is there."""
        session = text_in(body, "session_id")
        with self._lock:
            if session not in self._sessions:
                raise RefusedError(
                    f"the session {session!r} does not exist (the endpoint has started again): make a new "
                    "ServiceClient",
                    410,
                )
            self._sessions[session] = time.monotonic()
        return session

    def _refuse_more(self) -> None:
        """Refuse another model if there is no room, and no client is gone that could make some."""
        if not any(map(self._is_gone, self._trainer.models())):
            self._trainer.refuse_more()

    def _is_gone(self, model_id: str) -> bool:
        """Return whether nothing was heard of a model's client for long."""
        heard = self._sessions[model_id.partition(":")[0]]
        return time.monotonic() - heard > self._gone_seconds

    def _make_room(self) -> None:
        """Unload models whose clients are gone, the oldest first, until there is room for one."""
        for model_id in self._trainer.models():
            if not self._trainer.full:
                return
            if self._is_gone(model_id):
                say(f"model {model_id} is unloaded: nothing was heard of its client for {self._gone_seconds:g} s")
                self._unload(model_id)

    def _unload(self, model_id: str) -> None:
        self._trainer.unload(model_id)
        for version in self._unnamed.pop(model_id, ()):
            self._samplers.retract(version)

    # Training

    def _create_model(self, body: Body) -> Future:
        model_id = f"{self._session(body)}:train:{number_in(body, 'model_seq_id')}"
        self._refuse_base(text_in(body, "base_model"))
        _refuse_optimizer(body)
        lora = body.get("lora_config")
        if not isinstance(lora, Mapping):
            raise RefusedError("lora_config is missing: this endpoint trains LoRA models, not the base model itself")
        shape = Shape(
            rank=number_in(lora, "rank"),
            seed=number_in(lora, "seed") if lora.get("seed") is not None else 0,
            train_mlp=bool(lora.get("train_mlp", True)),
            train_attn=bool(lora.get("train_attn", True)),
            # The client of Tinker does not send it, and stoker.lab does.
            alpha=number_in(lora, "alpha") if lora.get("alpha") is not None else ALPHA,
        )

        def work() -> Answer:
            self._make_room()
            self._trainer.create(model_id, shape)
            say(f"model {model_id}: rank {shape.rank}")
            return {"model_id": model_id, "type": "create_model"}

        self._trainer.refuse(shape)
        return self._later((model_id, "create"), work, self._refuse_more)

    def _get_info(self, body: Body) -> Mapping[str, Any]:
        model_id, model = text_in(body, "model_id"), self._trainer.model
        shape = self._trainer.shape(model_id)
        return {
            "type": "get_info",
            "model_data": {"model_name": model, "tokenizer_id": model},
            "model_id": model_id,
            "is_lora": True,
            "lora_rank": shape.rank,
            "model_name": model,
        }

    def _forward_backward(self, body: bytes | Body) -> Future:
        if not isinstance(body, bytes):
            raise RefusedError("the body is JSON: send protobuf, as tinker 0.38's client does", 415)
        try:
            request = messages.read_forward_backward(body)
            self._trainer.shape(request.model_id)
            messages.refuse_sizes(request, self._trainer.vocabulary, self._trainer.context)
        except RefusedError as error:
            # The client cuts a batch into several requests, and sends the step before it reads their answers.
            self._work.put(partial(self._trainer.discard, messages.model_in(body), error.message))
            raise

        def work() -> Answer:
            logprobs, loss = self._trainer.forward_backward(request)
            return messages.forward_backward_output(logprobs, {"loss:sum": loss})

        model_id, seq_id = request.model_id, request.seq_id
        try:
            future = self._later((model_id, seq_id), work, size=len(body))
        except RefusedError:
            if not request.forward_only:
                self._turned_away.setdefault(model_id, set()).add(seq_id)
            raise
        self._turned_away.get(model_id, set()).discard(seq_id)
        return future

    def _optim_step(self, body: Body) -> Future:
        if "adam_params" not in body:
            raise RefusedError("adam_params is missing: this endpoint steps with AdamW; call optim_step(AdamParams(…))")
        given = body["adam_params"]
        try:
            adam = Adam(**{one.name: float(given[one.name]) for one in fields(Adam) if one.name in given})
        except (OverflowError, TypeError, ValueError) as error:
            raise RefusedError(f"adam_params has a value that is not a number ({error}): correct it") from error
        for name, value in asdict(adam).items():
            if not math.isfinite(value):
                raise RefusedError(f"adam_params: {name} is {value}: write a finite number")
        if min(adam.learning_rate, adam.eps, adam.weight_decay) < 0 or not (
            0 <= adam.beta1 < 1 and 0 <= adam.beta2 < 1
        ):
            raise RefusedError(
                "adam_params is out of range: learning_rate, eps and weight_decay are 0 or more, betas from 0 below 1"
            )
        model_id = text_in(body, "model_id")
        if self._turned_away.pop(model_id, None):
            why = "it was turned away because too many requests wait, and not sent again"
            self._work.put(partial(self._trainer.discard, model_id, why))

        def work() -> Answer:
            return {"metrics": {"grad_norm": self._trainer.optim_step(model_id, adam)}}

        return self._ordered(body, work)

    def _unload_model(self, body: Body) -> Future:
        model_id = text_in(body, "model_id")

        def work() -> Answer:
            self._unload(model_id)
            return {"model_id": model_id, "type": "unload_model"}

        return self._later(None, work)

    # Checkpoints

    def _save_weights(self, body: Body) -> Future:
        model_id = text_in(body, "model_id")
        place = CheckpointPath(model_id, WEIGHTS, checked_name(text_in(body, "path")))

        def work() -> Answer:
            write = partial(self._trainer.write_checkpoint, model_id)
            self._trainer.shape(model_id)
            self._checkpoints.save(place, write, overwrite=bool(body.get("overwrite")))
            self._sources.overwritten(place)
            return {"path": place.uri, "type": "save_weights"}

        return self._ordered(body, work)

    def _load_weights(self, body: Body) -> Future:
        folder = self._checkpoints.find(checkpoint_at(text_in(body, "path")))
        if body.get("base_model") is not None:
            self._refuse_base(text_in(body, "base_model"))
        _refuse_optimizer(body)
        new = body.get("model_id") is None
        model_id = (
            f"{self._session(body)}:train:{number_in(body, 'model_seq_id')}" if new else text_in(body, "model_id")
        )
        if not new:
            self._trainer.shape(model_id)

        def work() -> Answer:
            if new:
                self._make_room()
            self._trainer.load(model_id, folder, optimizer=bool(body.get("optimizer")))
            return {"path": body["path"], "model_id": model_id, "type": "load_weights"}

        if new:
            return self._later((model_id, "create"), work, self._refuse_more)
        return self._ordered(body, work)

    def _weights_info(self, body: Body) -> Mapping[str, Any]:
        about = read_about(self._checkpoints.find(checkpoint_at(text_in(body, "tinker_path"))))
        return {
            "base_model": about["base_model"],
            "is_lora": True,
            "lora_rank": about["rank"],
            "train_unembed": False,
            "train_mlp": about["train_mlp"],
            "train_attn": about["train_attn"],
        }

    def _save_weights_for_sampler(self, body: Body) -> Future:
        model_id = text_in(body, "model_id")
        if body.get("kind", "snapshot") != "snapshot":
            raise RefusedError("inflight samplers are not supported: leave kind at 'snapshot'")
        place = None
        if body.get("path") is not None:
            place = CheckpointPath(model_id, SAMPLER_WEIGHTS, checked_name(text_in(body, "path")))
        session = model_id.partition(":")[0] + f":sample:{body.get('sampling_session_seq_id')}"
        self._trainer.shape(model_id)

        def begin(future: Future) -> None:
            self._work.put(partial(_done, future, partial(self._publish, future, model_id, place, session)))

        return self._futures.open((model_id, body.get("seq_id")) if body.get("seq_id") is not None else None, begin)

    def _publish(self, future: Future, model_id: str, place: CheckpointPath | None, session: str) -> None:
        """Publish a model, and let another thread wait for the samplers, so that training goes on."""
        write = partial(self._trainer.write_adapter, model_id)
        if place is not None:
            self._checkpoints.save(place, write)
        try:
            version = self._samplers.publish(write)
        except RefusedError:
            self._take_back(place)
            raise

        def work() -> Answer:
            try:
                self._samplers.wait(version)
            except RefusedError:
                self._take_back(place)
                raise
            if place is not None:
                self._sources.add(place, version)
                return {"path": place.uri, "type": "save_weights_for_sampler"}
            with self._lock:
                self._sampling[session] = version
                kept = self._unnamed.setdefault(model_id, deque())
                kept.append(version)
                old = kept.popleft() if len(kept) > _UNNAMED else None
            if old is not None:
                self._samplers.retract(old)
            return {"sampling_session_id": session, "type": "save_weights_for_sampler"}

        self._waiting.put(partial(_done, future, work))

    def _take_back(self, place: CheckpointPath | None) -> None:
        """Remove what could not be published, so that its name is free for another try."""
        if place is not None:
            self._checkpoints.remove(place)

    # Samples

    def _create_sampling_session(self, body: Body) -> Mapping[str, Any]:
        session = f"{self._session(body)}:sample:{number_in(body, 'sampling_session_seq_id')}"
        source = None
        if body.get("model_path") is not None:
            source = self._sources.at(checkpoint_at(text_in(body, "model_path")))
        else:
            self._refuse_base(text_in(body, "base_model"))
        with self._lock:
            self._sampling[session] = source
        return {"type": "create_sampling_session", "sampling_session_id": session}

    def _sampled(self, session: str) -> SampleSource | str | None:
        with self._lock:
            if session not in self._sampling:
                raise RefusedError(
                    f"the sampling session {session!r} does not exist (the endpoint has started again): make a new "
                    "ServiceClient and sampling client",
                )
            return self._sampling[session]

    def _asample(self, body: Body) -> Future:
        for name in ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k"):
            if body.get(name):
                raise RefusedError(f"{name} is not supported: leave it at 0")
        for name in ("target_prompt_logprobs", "prompt_logprobs_last_n", "record_stability_info"):
            if body.get(name):
                raise RefusedError(f"{name} is not supported: leave it out")
        if body.get("sampling_session_id") is not None:
            session = text_in(body, "sampling_session_id")
            source = self._sampled(session)
        else:
            raise RefusedError("sampling_session_id is missing: sample through a SamplingClient")
        asked = read_sampling(body)
        key = (session, body["seq_id"]) if body.get("seq_id") is not None else None

        def work() -> Answer:
            with self._sources.used(source) if isinstance(source, SampleSource) else nullcontext(source) as version:
                return messages.sample_response(*self._samplers.sample(version, asked))

        def begin(future: Future) -> None:
            future.answers = asked.count
            self._waiting.put(partial(_done, future, work))

        return self._futures.open(key, begin, _NUMBER_BYTES * len(asked.prompt))

    # Futures

    def _retrieve_future(self, body: Body) -> Future:
        future = self._futures.find(text_in(body, "request_id"))
        if not future.wait(_POLL_SECONDS):
            raise RefusedError("the answer is not there yet: ask again", 408)
        return future

    def _refuse_base(self, name: str) -> None:
        if name != self._trainer.model:
            raise RefusedError(
                f"the base model {name!r} is not served: this endpoint has {self._trainer.model!r}; write that, or "
                "start another endpoint",
                404,
            )


def _done(future: Future, work: Callable[[], Answer | None]) -> None:
    """Do work, and set its answer; None says that another thread sets it."""
    try:
        answer = work()
        if answer is not None:
            future.finish(answer)
    except RefusedError as error:
        future.fail(error.message, user=error.status < 500)
    except RunError as error:
        future.fail(error.message, user=False)
    except Exception as error:  # noqa: BLE001 - one client's request must not end the others'
        say(f"request {future.request_id} failed: {type(error).__name__}: {error}")
        future.fail(f"the endpoint failed ({type(error).__name__}: {error}): look at its log", user=False)


def _refuse_optimizer(body: Body) -> None:
    optimizer = body.get("optimizer_config")
    if isinstance(optimizer, Mapping) and optimizer.get("type", "adamw") != "adamw":
        raise RefusedError(f"the optimizer {optimizer.get('type')!r} is not supported: leave it out for AdamW")
