"""A run's samplers: decides vLLM's flags from what the trainer asks for, and writes them before vLLM starts."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.samplers import SamplerRequest, request_path
from stoker.contract.variables import workspace_of
from stoker.contract.words import say
from stoker.serve.adapters.check import ALLOWED_RANKS, snapped
from stoker.serve.adapters.files import read_base_model
from stoker.serve.weights import workers

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BETWEEN_MESSAGES = 30.0


@dataclass(frozen=True, slots=True)
class VllmFlag:
    """A flag of vLLM.

    Attributes:
        name: without dashes.
        value: its value.
        reason: why.
    """

    name: str
    value: str | int | bool
    reason: str


def flags_of(request: SamplerRequest) -> tuple[VllmFlag, ...]:
    """Return vLLM's flags for a run.

    Raises:
        RunError: vLLM serves no adapter of this rank (78).
    """
    found = [
        VllmFlag("model", request.model, "the model that the run trains"),
        VllmFlag("served-model-name", request.name, "the name of version 0"),
        VllmFlag("dtype", request.dtype, "the trainer's type of weights"),
        # Of what was really drawn, so that the trainer can compare its own.
        VllmFlag("logprobs-mode", "processed_logprobs", "log-probabilities of the distribution that was sampled from"),
        VllmFlag("generation-config", "vllm", "no sampling default of the model's own"),
    ]
    if request.rank is None:
        found.append(VllmFlag("worker-extension-cls", workers.CLASS, "the run trains all weights, which vLLM reloads"))
    if request.length is None:
        # Otherwise vLLM refuses to start where one sequence of the model's own limit does not fit.
        found.append(VllmFlag("max-model-len", -1, "as much context as the model has and the memory holds"))
    else:
        found.append(VllmFlag("max-model-len", request.length, "the run's longest prompt and answer"))
    if request.rank is not None:
        room = snapped(request.rank)
        if room is None:
            raise RunError(
                ExitCode.CONFIG,
                f"rank {request.rank} is too large: vLLM serves ranks up to {ALLOWED_RANKS[-1]}; lower --lora_r",
            )
        found += [
            VllmFlag("enable-lora", True, "each version is an adapter"),
            VllmFlag("max-lora-rank", room, f"the smallest room that vLLM has for rank {request.rank}"),
            VllmFlag("max-loras", request.versions, "versions that one batch may name"),
            VllmFlag("max-cpu-loras", request.versions, "every version that may be asked for stays in memory"),
        ]
    return tuple(found)


def adapter_settings(request: SamplerRequest) -> dict[str, Any]:
    """Return the settings of `stoker adapters watch` for a run's versions (see `stoker.serve.adapters.settings`)."""
    model = {
        "path": request.model,
        "name": request.name,
        "source": request.source,
        "revision": request.revision,
    }
    if request.rank is None:
        return {"model": model, "weights": {"folder": request.adapters}}
    return {
        "model": model,
        "published": {"folder": request.adapters, "keep": request.versions},
        "lora": {
            "maxRank": request.rank,
            "maxLoras": request.versions,
            "maxCpuLoras": request.versions,
            "requireManifest": True,  # each version has one of its own, which says that it is live
        },
    }


def prepare(environ: Mapping[str, str], output: Path, wait_seconds: float) -> threading.Event:
    """Write `vllm.yaml` for vLLM's --config, and `adapters.yaml` for `stoker adapters watch`.

    Args:
        environ: the pod's environment.
        output: folder to write to.
        wait_seconds: how long to wait for the trainer's request.

    Returns:
        set by SIGTERM and SIGINT from now on.

    Raises:
        RunError: the trainer did not say what to serve, or a signal came before it did (75); the folder cannot be
            written to, or vLLM cannot serve it (78); the model is missing (66).
    """
    stop = _stop_by_signal()
    request = wait_for_request(environ, wait_seconds, stop)
    flags = flags_of(request)
    read_base_model(Path(request.model), request.source, request.revision)
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, content in (
            ("vllm.yaml", {flag.name: flag.value for flag in flags}),
            ("adapters.yaml", adapter_settings(request)),
        ):
            (output / name).write_text(yaml.safe_dump(content, sort_keys=False))
        if request.rank is None:
            workers.place_code(output)
    except OSError as error:
        raise RunError(
            ExitCode.CONFIG, f"{output} cannot be written to ({error.strerror}): name another folder with --output"
        ) from error
    for flag in flags:
        say(f"{flag.name} {flag.value}: {flag.reason}")
    return stop


def _stop_by_signal() -> threading.Event:
    stop = threading.Event()

    def stopped(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    # The first process of a container ignores a signal that it does not handle.
    signal.signal(signal.SIGTERM, stopped)
    signal.signal(signal.SIGINT, stopped)
    return stop


def wait_for_request(environ: Mapping[str, str], seconds: float, stop: threading.Event | None = None) -> SamplerRequest:
    """Return what the run's trainer asks of its samplers, as soon as it has said so.

    Args:
        environ: the pod's environment.
        seconds: how long to wait.
        stop: ends the wait.

    Raises:
        RunError: it did not in time, or the wait was ended (75); or it is of another version (78).
    """
    stop = stop or threading.Event()
    path = request_path(
        workspace_of(environ), environ.get("STOKER_JOB_ID", ""), int(environ.get("STOKER_RESTART_ATTEMPT") or 0)
    )
    deadline = time.monotonic() + seconds
    told = 0.0
    while (request := SamplerRequest.read(path)) is None:
        now = time.monotonic()
        if now >= deadline:
            raise RunError(
                ExitCode.STOPPED,
                f"the trainer has not written {path} in {seconds:.0f} s: see the log of the pod node-0-0; trainer and "
                "samplers must share one workspace",
            )
        if now > told + _SECONDS_BETWEEN_MESSAGES:
            say(f"waiting for the trainer to write {path}")
            told = now
        if stop.wait(_SECONDS_BETWEEN_LOOKS):
            raise RunError(ExitCode.STOPPED, "stopped while waiting for the trainer")
    return request
