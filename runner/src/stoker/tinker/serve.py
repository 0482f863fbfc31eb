"""Serves an endpoint until a signal, the idle limit or a hang ends it."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.samplers import Traffic, api_key, request_path
from stoker.contract.variables import workspace_of
from stoker.contract.words import say
from stoker.fetch.selection import RECORD
from stoker.serve.web import port_errors
from stoker.tinker.checkpoints import Checkpoints
from stoker.tinker.options import TinkerOptions, checked_key, fetched_from
from stoker.tinker.samplers import Samplers
from stoker.tinker.server import Endpoint
from stoker.tinker.service import Service

_LOOK_SECONDS = 1.0
_MOST_SECONDS_BETWEEN_LOOKS = 10.0


def serve(
    options: TinkerOptions,
    addresses: Sequence[str],
    environ: Mapping[str, str],
    traffic: Callable[[str], Traffic],
) -> ExitCode:
    """Serve, and return the exit code of the pod.

    Args:
        options: of the endpoint.
        addresses: URLs of the samplers.
        environ: the pod's.
        traffic: returns the requests of the samplers, whose key it is given.

    Raises:
        RunError: a key or a folder is wrong (78), or the model cannot be loaded (66).
    """
    key = _key(options, environ)
    sampler_key = _read(options.samplers_key_file).strip() if options.samplers_key_file else api_key(environ)
    name = options.base_model or _fetched(Path(options.model)) or options.model
    owner = environ.get("STOKER_JOB_ID") or str(options.output_dir.resolve())
    if Path(options.model).is_absolute() and not (Path(options.model) / "config.json").is_file():
        raise RunError(
            ExitCode.NO_INPUT, f"{options.model} has no model: config.json is missing; correct --model_name_or_path"
        )
    if options.asks_samplers:
        _ask(options, environ)

    from stoker.tinker.trainer import Trainer  # torch takes seconds; what is wrong above is told at once

    try:
        trainer = Trainer(
            options.model,
            name=name,
            dtype=options.dtype,
            batch_tokens=options.batch_tokens,
            most=options.max_models,
            largest_rank=options.max_rank,
        )
    except (OSError, ValueError) as error:
        raise RunError(
            ExitCode.NO_INPUT,
            f"the model {options.model!r} cannot be loaded ({error}): correct --model_name_or_path",
        ) from error
    samplers = Samplers(
        addresses,
        options.adapters,
        options.run,
        owner,
        options.model,
        key=sampler_key,
        seconds=options.answer_seconds,
    )
    service = Service(trainer, Checkpoints(options.output_dir / "checkpoints"), samplers)
    if options.idle_seconds and options.asks_samplers:
        seconds = min(options.idle_seconds / 4, _MOST_SECONDS_BETWEEN_LOOKS)
        threading.Thread(
            target=_notice, args=(service, lambda: traffic(sampler_key), seconds), name="idle", daemon=True
        ).start()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with port_errors(options.host, options.port):
        made = Endpoint((options.host, options.port), service, key)
    with made as endpoint:
        threading.Thread(target=endpoint.serve_forever, name="http", daemon=True).start()
        say(f"serving {name} to tinker clients at port {endpoint.server_address[1]}")
        code = _watch(service, options, ended)
        endpoint.shutdown()
    # What hangs is not waited for.
    service.close(0.0 if code is ExitCode.CRASHED else 60.0)
    return code


def _notice(service: Service, traffic: Callable[[], Traffic], seconds: float) -> None:
    """Count what others ask the session's samplers as use of the endpoint; samplers that do not answer prove nothing.

    Args:
        service: the endpoint.
        traffic: returns the requests of the samplers.
        seconds: between two looks.
    """
    before: Traffic = {}
    while True:
        seen = traffic()
        if seen != before or not seen or any(under_way for _, under_way in seen.values()):
            service.use()
        before = seen
        time.sleep(seconds)


def _watch(service: Service, options: TinkerOptions, ended: threading.Event) -> ExitCode:
    while not ended.wait(_LOOK_SECONDS):
        if 0 < options.idle_seconds < service.idle_seconds:
            say(f"no request for {options.idle_seconds:g} s: the endpoint ends")
            return ExitCode.FINISHED
        if 0 < options.hang_seconds < service.busy_seconds:
            faulthandler.dump_traceback(sys.stderr)
            say(
                f"one request has been under way for {options.hang_seconds} s: the endpoint hangs, and its stacks are "
                "above; raise STOKER_HANG_TIMEOUT_SECONDS if requests take longer"
            )
            return ExitCode.CRASHED
    return ExitCode.STOPPED


def _ask(options: TinkerOptions, environ: Mapping[str, str]) -> None:
    """Tell the samplers of the same TrainJob what to serve: they wait for it."""
    attempt = int(environ.get("STOKER_RESTART_ATTEMPT") or 0)
    path = request_path(workspace_of(environ), environ.get("STOKER_JOB_ID", ""), attempt)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        options.request().write(path)
    except OSError as error:
        raise RunError(
            ExitCode.CONFIG, f"{path} cannot be written ({error.strerror}): mount a workspace that can be written to"
        ) from error


def _fetched(model: Path) -> str:
    try:
        return fetched_from((model / RECORD).read_text())
    except OSError:
        return ""


def _key(options: TinkerOptions, environ: Mapping[str, str]) -> str:
    if options.key_file is None:
        return checked_key(api_key(environ))
    try:
        return checked_key(_read(options.key_file))
    except ValueError as error:
        raise RunError(ExitCode.CONFIG, f"--key_file {options.key_file}: {error}") from error


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        raise RunError(
            ExitCode.CONFIG, f"{file} cannot be read ({error.strerror}): mount the Secret with the key there"
        ) from error
