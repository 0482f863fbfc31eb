"""Sessions from Python: what `stoker rl up` and `down` do, for a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.runs.client import connect
from stoker.sessions import render
from stoker.sessions.command_line import SessionOptions, endpoint_trainjob
from stoker.sessions.down import down
from stoker.sessions.render import Session
from stoker.sessions.sharing import claim_in
from stoker.sessions.up import runtime_of, up, wait
from stoker.submit.base import LLMBackend
from stoker.submit.initializer import Initialized, Initializer, Source, Stored
from stoker.submit.trainjob import trainjob


def start_session(
    config: LLMBackend | None,
    name: str,
    *,
    runtime: str = "trl-grpo-async",
    initializer: Initialized | None = None,
    env: Mapping[str, str] | None = None,
    samplers: int | None = None,
    time_limit: int | None = None,
    idle_limit: int | None = None,
    queue: str | None = None,
    device_claim: str | None = None,
    device_limit: int | None = None,
    turns: bool = False,
    wait_seconds: float = 1800.0,
    namespace: str | None = None,
    context: str | None = None,
) -> str:
    """Start a session, wait until it answers, and return the address inside the cluster of its samplers or endpoint.

    Args:
        config: what it runs; None for an endpoint for the tinker client, such as of the runtime `trl-tinker`.
        name: its name, and the TrainJob's.
        runtime: one with samplers of its own.
        initializer: the Kubeflow SDK's `Initializer`, or ours, which can name a Secret.
        env: variables of the trainer container; `STOKER_ARG_<FLAG>` sets a flag of `stoker tinker`.
        samplers: how many; None for the runtime's number.
        time_limit: seconds after which it ends.
        idle_limit: seconds without a request and without a step after which it ends.
        queue: the queue of Kueue that lets it start; None for none.
        device_claim: a device that it shares, as `NAME=DEVICECLASS` of a ResourceClaim; None for none.
        device_limit: how many sessions may use that claim at once; None for any number.
        turns: True to make the Lease by which its samplers take turns at the device, if it is not there.
        wait_seconds: how long to wait for it; 0 not to wait.
        namespace: None for the kubeconfig's.
        context: of the kubeconfig; None for its current one.

    Raises:
        ValueError: the config is wrong.
        RunError: the runtime is not for the config (64), or see :func:`stoker.sessions.up.up`.
    """
    client = connect(context, namespace)
    fetched = None if initializer is None else Initializer(_source(initializer.dataset), _source(initializer.model))
    if config is None:
        made = _endpoint_trainjob(name, runtime, client.namespace, fetched, env)
    else:
        made = trainjob(config, name, runtime=runtime, initializer=fetched, env=env, namespace=client.namespace)
    found = runtime_of(client, made)
    endpoint = render.endpoint_of(found)
    if (endpoint is None) is (config is None):
        advice = "runs a method: write a config" if config is None else "serves the tinker client: write None as config"
        raise RunError(ExitCode.USAGE, f"runtime {runtime} {advice}")
    session = Session(samplers, time_limit, idle_limit, queue)
    claim = claim_in(device_claim, device_limit, client.namespace)
    up(client, made, session, claim, turns=turns)
    if wait_seconds:
        wait(
            client,
            name,
            render.samplers_in(session, found),
            wait_seconds,
            endpoint=endpoint is not None,
            claim=claim,
            turns=turns,
            scale=session.samplers is not None,
        )
    if endpoint is None:
        return render.url_of(name, client.namespace)
    return f"http://{render.endpoint_service_of(name)}.{client.namespace}:{endpoint}"


def end_session(
    name: str,
    *,
    purge: bool = False,
    wait_seconds: float = 300.0,
    namespace: str | None = None,
    context: str | None = None,
) -> None:
    """End a session, and wait until nothing of it is left.

    Args:
        name: its name.
        purge: True to delete its run folder too: its claim, or its folder of a claim that it shares.
        wait_seconds: how long to wait.
        namespace: None for the kubeconfig's.
        context: of the kubeconfig; None for its current one.

    Raises:
        RunError: something is left, or the cluster refuses; see :func:`stoker.sessions.down.down`.
    """
    down(connect(context, namespace), name, wait_seconds, purge=purge)


def _endpoint_trainjob(
    name: str, runtime: str, namespace: str, fetched: Initializer | None, env: Mapping[str, str] | None
) -> dict[str, Any]:
    model, dataset = (fetched.model, fetched.dataset) if fetched else (None, None)
    words = SessionOptions(
        "",
        name,
        runtime,
        namespace,
        model=model.storage_uri if model else None,
        dataset=dataset.storage_uri if dataset else None,
        secret=model.secret if model else "",
        env=tuple(f"{variable}={value}" for variable, value in (env or {}).items()),
    )
    return endpoint_trainjob(words)


def _source(stored: Stored | None) -> Source | None:
    return None if stored is None else Source(stored.storage_uri, getattr(stored, "secret", ""))
