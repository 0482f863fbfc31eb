"""Turns the words of `stoker rl` into a session, and what came of it into lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from stoker.cluster.admission import API_VERSION, shape_of
from stoker.cluster.kubernetes_yaml import read_kubernetes_yaml
from stoker.cluster.schema import without_nulls
from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say
from stoker.runs.act import refuse_invalid
from stoker.runs.client import Client, connect
from stoker.runs.show import print_json, print_table
from stoker.runs.words import duration
from stoker.sessions import render, show
from stoker.sessions.render import Session, seconds_in
from stoker.sessions.sharing import check_claims, claim_in, limited, turns_of
from stoker.sessions.up import key_for, runtime_of, wait
from stoker.sessions.up import up as make
from stoker.submit.command_line import TrainJobOptions, trainjob_of
from stoker.submit.trainjob import resources, to_yaml
from stoker.tinker.refusals import CLIENTS

_RUNTIME, _METHOD = "trl-grpo-async", "grpo_async"
_KINDS = ("ClusterTrainingRuntime", "TrainingRuntime")


@dataclass(frozen=True, slots=True)
class SessionOptions(TrainJobOptions):
    """The words of `stoker rl up`: those of `stoker trainjob`, and what a session is beside a TrainJob.

    Without a subject a session runs what its runtime is for.

    Attributes:
        samplers: how many; None for the runtime's number.
        time_limit: a time such as `8h`; None for no end.
        idle_limit: a time; None for no end.
        queue: of Kueue; None for none, or the TrainJob's.
        device_claim: `NAME=CLASS`; None for none.
        device_limit: how many sessions may use that claim at once; None for any number.
        turns: True for the Lease by which the runtime's samplers take turns.
        seconds: how long to wait for it.
        dry_run: True to print what would be made.
        runtimes: a file with rendered runtimes; None to ask the cluster.
        context: of the kubeconfig; None for its current one.
    """

    samplers: int | None = None
    time_limit: str | None = None
    idle_limit: str | None = None
    queue: str | None = None
    device_claim: str | None = None
    device_limit: int | None = None
    turns: bool = False
    seconds: float = 0.0
    dry_run: bool = False
    runtimes: Path | None = None
    context: str | None = None


def up(words: SessionOptions) -> Iterator[str]:
    """Start a session, or print it, and yield the lines for whoever started it.

    Raises:
        RunError: the words are wrong (64), a file is missing (66), or see :func:`stoker.sessions.up.up`.
    """
    if words.runtimes is not None and not words.dry_run:
        raise RunError(ExitCode.USAGE, "--runtimes only goes with --dry-run: a session uses the cluster's runtimes")
    session = Session(
        words.samplers,
        None if words.time_limit is None else seconds_in("--time-limit", words.time_limit),
        None if words.idle_limit is None else seconds_in("--idle-limit", words.idle_limit),
        words.queue,
    )
    if words.dry_run:
        yield from _printed(words, session)
        return
    client = connect(words.context, words.namespace)
    claim = claim_in(words.device_claim, words.device_limit, client.namespace)
    trainjob, runtime = _asked(words, client)
    made = make(client, trainjob, session, claim, turns=words.turns)
    count = render.samplers_in(session, runtime)
    endpoint = render.endpoint_of(runtime)
    if words.seconds:
        wait(
            client,
            words.name,
            count,
            words.seconds,
            endpoint=endpoint is not None,
            claim=claim,
            turns=words.turns,
            scale=session.samplers is not None,
        )
    yield from _lines(words.name, client, session, count, runtime)
    if endpoint is not None:
        yield from _client_lines(words, client, endpoint)
    if words.seconds == 0:
        state = "queued" if made["spec"].get("suspend") else "starting"
        since = made["metadata"].get("creationTimestamp", "now")
        yield f"state     {state} since {since}: stoker rl list{client.options}"


def print_list(output: str, namespace: str | None, context: str | None) -> None:
    """Print the sessions of a namespace as text or JSON.

    Raises:
        RunError: the cluster cannot be asked.
    """
    client = connect(context, namespace)
    found = show.rows(client)
    if output == "json":
        print_json(found)
    elif found:
        print_table(show.table(found))
        for row in found:
            if row.has_ended:
                ends = f"`stoker rl down {row.name}{client.options}`"
                say(f"{row.name} has ended, and keeps its key, address and policies: {ends}")
    else:
        say(f"there are no sessions in namespace {client.namespace}: --namespace selects another namespace")


def _asked(words: SessionOptions, client: Client | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the TrainJob that the words ask for, and its runtime.

    Args:
        words: of the user.
        client: of the cluster; None to read `--runtimes`.
    """

    def found(trainjob: dict[str, Any]) -> dict[str, Any]:
        if client is None:
            assert words.runtimes is not None
            return _runtime_in(words.runtimes, str(trainjob["spec"]["runtimeRef"]["name"]))
        return runtime_of(client, trainjob)

    if words.subject:
        trainjob = _trainjob(words)
        runtime = found(trainjob)
        if render.endpoint_of(runtime) is not None and not _is_file(words.subject):
            raise RunError(
                ExitCode.USAGE,
                f"runtime {runtime['metadata']['name']} serves the tinker client and runs no method: leave out "
                f"{words.subject}",
            )
        return trainjob, runtime
    runtime = found({"spec": {"runtimeRef": {"name": words.runtime or _RUNTIME}}})
    if render.endpoint_of(runtime) is None:
        return _trainjob(replace(words, subject=_METHOD)), runtime
    return endpoint_trainjob(words), runtime


def endpoint_trainjob(words: SessionOptions) -> dict[str, Any]:
    """Return the TrainJob of an endpoint for the tinker client.

    Raises:
        RunError: the words are wrong (64).
    """
    for option, given in (("--dataset", words.dataset), ("--nodes", words.nodes not in (None, 1))):
        if given:
            raise RunError(
                ExitCode.USAGE,
                f"{option} does not go with an endpoint for the tinker client, which trains in one pod on what clients "
                "send: leave it out",
            )
    fetched = words.model if words.model and "://" in words.model else None
    args = [f"--model_name_or_path={words.model}"] if words.model and not fetched else []
    try:
        settings, env, amounts = (
            dict(word.split("=", 1) for word in given) for given in (words.settings, words.env, words.resources)
        )
    except ValueError as error:
        raise RunError(ExitCode.USAGE, "--set, --env or --resources has no `=`: write NAME=VALUE") from error
    args += [f"--{name.replace('-', '_')}={value}" for name, value in settings.items()]
    trainer: dict[str, Any] = {"numNodes": 1}
    if args:
        trainer["args"] = args
    if env:
        trainer["env"] = [{"name": name, "value": value} for name, value in env.items()]
    if amounts:
        trainer["resourcesPerNode"] = resources(amounts)
    spec: dict[str, Any] = {"runtimeRef": {"name": words.runtime}, "trainer": trainer}
    if fetched:
        secret = {"secretRef": {"name": words.secret}} if words.secret else {}
        spec["initializer"] = {"model": {"storageUri": fetched, **secret}}
    metadata = {"name": words.name, **({"namespace": words.namespace} if words.namespace else {})}
    return {"apiVersion": API_VERSION, "kind": "TrainJob", "metadata": metadata, "spec": spec}


def _is_file(subject: str) -> bool:
    return subject.endswith((".yaml", ".yml", ".json"))


def _trainjob(words: SessionOptions) -> dict[str, Any]:
    if not _is_file(words.subject):
        return trainjob_of(replace(words, runtime=words.runtime or _RUNTIME))
    for option in ("runtime", "model", "dataset", "secret", "nodes", "settings", "env", "resources"):
        if getattr(words, option):
            written = "set" if option == "settings" else option
            raise RunError(ExitCode.USAGE, f"--{written} does not go with a TrainJob: write it into {words.subject}")
    found = [one for one in _objects(Path(words.subject)) if one.get("kind") == "TrainJob"]
    if len(found) != 1 or not isinstance(found[0].get("spec"), dict) or "runtimeRef" not in found[0]["spec"]:
        raise RunError(
            ExitCode.USAGE,
            f"{words.subject} has {len(found)} TrainJobs: write one, with spec.runtimeRef, to make a session of",
        )
    trainjob = without_nulls({**found[0], "metadata": {**(found[0].get("metadata") or {}), "name": words.name}})
    if wrong := [*shape_of(trainjob)]:
        raise RunError(ExitCode.USAGE, "\n".join(f"{words.subject}: {one}" for one in wrong))
    metadata = trainjob["metadata"]
    if metadata.get("namespace", words.namespace) != words.namespace:
        raise RunError(
            ExitCode.USAGE,
            f"{words.subject} is for namespace {metadata['namespace']}: write --namespace {metadata['namespace']}, or "
            "drop it from the file",
        )
    return dict(trainjob)


def _objects(path: Path) -> list[dict[str, Any]]:
    """Return the objects in a file.

    Raises:
        RunError: there is no such file (66), or it is no YAML (64).
    """
    try:
        found = read_kubernetes_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(ExitCode.NO_INPUT, f"{path} is not a file: correct the path") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RunError(ExitCode.USAGE, f"{path} is not YAML: {' '.join(str(error).split())}") from error
    return [one for one in found if isinstance(one, dict)]


def _printed(words: SessionOptions, session: Session) -> Iterator[str]:
    """Yield the objects of a session as YAML."""
    client = None if words.runtimes is not None else connect(words.context, words.namespace)
    namespace = words.namespace or "default" if client is None else client.namespace
    trainjob, runtime = _asked(words, client)
    claim = claim_in(words.device_claim, words.device_limit, namespace)
    claims = [] if client is None else check_claims(client, runtime, claim)
    made = [limited(render.session_trainjob(trainjob, session, runtime), claims, claim, namespace)]
    refuse_invalid(made[0], runtime)
    made[0]["metadata"] = {**made[0]["metadata"], "namespace": namespace}
    endpoint = render.endpoint_of(runtime)
    made += render.own_objects(words.name, namespace, key_for(endpoint), endpoint)
    if claim is not None:
        made.append(render.device_claim(claim.name, namespace, claim.device_class, claim.limit))
    if words.turns:
        made.append(render.lease(turns_of(runtime), namespace))
    yield "---\n".join(to_yaml(one) for one in made).rstrip()


def _runtime_in(path: Path, name: str) -> dict[str, Any]:
    known = {str(one["metadata"]["name"]): one for one in _objects(path) if one.get("kind") in _KINDS}
    if name not in known:
        there = ", ".join(sorted(known)) or "none at all"
        raise RunError(ExitCode.NO_INPUT, f"{path} has no runtime {name}: choose another --runtime (it has {there})")
    return known[name]


def _lines(name: str, client: Client, session: Session, count: int, runtime: dict[str, Any]) -> Iterator[str]:
    there = client.there
    claim, folder = render.folder_of(name, runtime)
    yield f"session   {name}"
    yield f"samplers  {render.url_of(name, client.namespace)} ({count} samplers)"
    yield (
        f"key       kubectl get secret {render.secret_of(name)}{there} "
        f"--output jsonpath='{{.data.{render.KEY}}}' | base64 --decode"
    )
    yield f"folder    claim {claim}{f', folder {folder}' if folder else ''}: /workspace in the pods"
    if session.time_limit is not None:
        yield f"ends      {duration(session.time_limit)} after it began"
    if session.idle_limit is not None:
        yield f"idle      ends {duration(session.idle_limit)} after the last request and step"
    yield f"end it    stoker rl down {name}{there}"


def _client_lines(words: SessionOptions, client: Client, port: int) -> Iterator[str]:
    """Yield how to use the tinker client."""
    name, service, there = words.name, render.endpoint_service_of(words.name), client.there
    address = f"http://{service}.{client.namespace}:{port}"
    model = _client_model(words)
    yield f"endpoint  {address} (for the tinker client, in pods with the session's label)"
    yield (
        f"use it    kubectl port-forward service/{service} {port}{there} &\n"
        f"          pip install 'tinker=={CLIENTS}.*'\n"
        f"          export TINKER_BASE_URL=http://127.0.0.1:{port}\n"
        f"          export TINKER_API_KEY=$(kubectl get secret {render.secret_of(name)}{there} "
        f"--output jsonpath='{{.data.{render.KEY}}}' | base64 --decode)\n"
        "          python -c 'import tinker; "
        f'print(tinker.ServiceClient().create_lora_training_client(base_model="{model}", rank=8).result())\''
    )


def _client_model(words: SessionOptions) -> str:
    """Return what clients call the base model; MODEL if the words do not say it."""
    settings = [word.partition("=") for word in words.settings]
    named = [value for name, _, value in settings if name.replace("-", "_") == "base_model"]
    if any(named[-1:]):
        return named[-1]
    hub = (words.model or "").removeprefix("hf://").partition("@")[0]
    return hub if hub and "://" not in hub else "MODEL"
