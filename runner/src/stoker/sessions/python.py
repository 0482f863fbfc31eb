"""Sessions from Python: what `stoker rl up` and `down` do, for a config."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.runs.client import connect
from stoker.sessions import render
from stoker.sessions.down import down
from stoker.sessions.render import Session
from stoker.sessions.up import claim_in, runtime_of, up, wait
from stoker.submit.base import LLMBackend
from stoker.submit.initializer import Initialized, Initializer, Source, Stored
from stoker.submit.trainjob import trainjob


def start_session(
    config: LLMBackend,
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
    turns: bool = False,
    wait_seconds: float = 1800.0,
    namespace: str | None = None,
    context: str | None = None,
) -> str:
    """Start a session, wait until its samplers answer, and return their address inside the cluster.

    Args:
        config: what it runs.
        name: its name, and the TrainJob's.
        runtime: one with samplers of its own.
        initializer: the Kubeflow SDK's `Initializer`, or ours, which can name a Secret.
        env: variables of the trainer container.
        samplers: how many; None for the runtime's number.
        time_limit: seconds after which it ends.
        idle_limit: seconds without a request and without a step after which it ends.
        queue: the queue of Kueue that lets it start; None for none.
        device_claim: a device that it shares, as `NAME=DEVICECLASS` of a ResourceClaim; None for none.
        turns: True to make the Lease by which its samplers take turns at the device, if it is not there.
        wait_seconds: how long to wait for it; 0 not to wait.
        namespace: None for the kubeconfig's.
        context: of the kubeconfig; None for its current one.

    Raises:
        ValueError: the config is wrong.
        RunError: it cannot be made; see :func:`stoker.sessions.up.up`.
    """
    client = connect(context, namespace)
    fetched = None if initializer is None else Initializer(_source(initializer.dataset), _source(initializer.model))
    made = trainjob(config, name, runtime=runtime, initializer=fetched, env=env, namespace=client.namespace)
    session = Session(samplers, time_limit, idle_limit, queue)
    claim = None if device_claim is None else claim_in(device_claim, client.namespace)
    up(client, made, session, claim, turns=turns)
    if wait_seconds:
        wait(client, name, render.samplers_in(session, runtime_of(client, made)), wait_seconds)
    return render.url_of(name, client.namespace)


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


def _source(stored: Stored | None) -> Source | None:
    return None if stored is None else Source(stored.storage_uri, getattr(stored, "secret", ""))
