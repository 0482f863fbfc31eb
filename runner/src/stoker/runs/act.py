"""Submits, stops and resumes runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.cluster.grace import told_of_grace
from stoker.cluster.resources import name_of, read_resources, trainjobs_of
from stoker.cluster.validate import validate_one
from stoker.contract.exits import PRECEDENCE, ExitCode, RunError
from stoker.contract.words import say
from stoker.runs.client import Client, namespace_options
from stoker.runs.errors import ClusterError, NotFoundError
from stoker.runs.kinds import TRAINJOBS
from stoker.runs.read import Seen, read_run, runtime_of
from stoker.runs.run import QUEUE, State, awaited_claim, part

# Only runtimes of the catalogue say enough for a verdict.
_OURS = "stoker.dev/runtime"


def submit(client: Client, path: Path, check: bool, namespace: str | None = None) -> list[tuple[str, str]]:
    """Create the TrainJobs of a file, all of them or none, and return namespace and name of each.

    A TrainJob that patches the grace period of its pods also tells their runner.

    Args:
        client: the cluster.
        path: the file; `-` is standard input.
        check: True to check them first as `stoker validate` does.
        namespace: the one that they must be of; None for any.

    Raises:
        RunError: the file cannot be read, a TrainJob is wrong, or the cluster refuses one.
    """
    resources = read_resources(path)
    jobs = trainjobs_of(resources, path)
    others = [f"{one.get('kind')} {name_of(one)}" for one in resources if one not in jobs]
    if others:
        raise RunError(
            ExitCode.USAGE,
            f"{path} also has {', '.join(others)}: put these into another file for `kubectl apply`; this command "
            "submits TrainJobs only",
        )
    _refuse_names(jobs, path, namespace)
    jobs = [_told_of_grace(job) for job in jobs]
    for job in jobs:
        if check and (runtime := _runtime(client, job)) is not None:
            refuse_invalid(job, runtime)
    # The cluster's own checks, before the first one is made.
    for job in jobs:
        client.create(TRAINJOBS, job, dry_run=True)
    made: list[tuple[str, str]] = []
    try:
        for job in jobs:
            metadata = client.create(TRAINJOBS, job)["metadata"]
            made.append((str(metadata.get("namespace")), str(metadata["name"])))
    except ClusterError as error:  # such as a quota, which a dry run does not use up
        for namespace, name in made:
            try:
                client.delete(TRAINJOBS, name, namespace=namespace)
            except ClusterError as kept:
                raise RunError(
                    error.code,
                    f"{error.message}\n{name} was submitted before and stays ({kept.message}): kubectl delete trainjob "
                    f"{name}{namespace_options(client.cluster, namespace)}",
                ) from error
        raise
    return made


def refuse_invalid(job: Mapping[str, Any], runtime: Mapping[str, Any]) -> None:
    """Refuse a TrainJob that its pods would refuse.

    Raises:
        RunError: it is wrong, with the exit code that its pods would end with.
    """
    if not part(part(runtime, "metadata"), "labels").get(_OURS):
        return
    verdict = validate_one(job, runtime)
    if verdict.problems:
        raise RunError(min((code for code, _ in verdict.problems), key=PRECEDENCE.index), verdict.errors)


def stop(client: Client, name: str) -> str:
    """Stop a run so that it can be resumed, and return what to say.

    Raises:
        RunError: there is no such run, it is over, or Kueue decides when it runs.
    """
    seen = read_run(client, name)
    run = seen.run
    if run.state.ended:
        return f"{name} is {run.state.value.lower()} already: there is nothing to stop"
    if run.state in (State.STOPPED, State.STOPPING):
        return f"{name} is stopped already: stoker resume {seen.named}"
    _not_others(seen, name, "false")
    client.patch(TRAINJOBS, name, {"spec": {"suspend": True}})
    return f"{name} stops: its pods save a checkpoint and end; `stoker resume {seen.named}` goes on from there"


def resume(client: Client, name: str) -> str:
    """Let a stopped run go on, and return what to say.

    Raises:
        RunError: there is no such run, it is over, or Kueue decides when it runs.
    """
    seen = read_run(client, name)
    run = seen.run
    if run.state is State.COMPLETE:
        raise RunError(
            ExitCode.USAGE,
            f"{name} is complete: `stoker get {seen.named} FOLDER` brings its result",
        )
    if run.state is State.FAILED:
        raise RunError(
            ExitCode.USAGE,
            f"{name} has failed, and Kubernetes starts no failed TrainJob again: `stoker explain {seen.named}` "
            "says why. Correct the cause and continue it under another name (docs/guides/resume-a-run.md)",
        )
    if part(seen.trainjob, "spec").get("suspend") is not True:
        return f"{name} is not stopped: it is {run.state.value.lower()}"
    _not_others(seen, name, "true")
    client.patch(TRAINJOBS, name, {"spec": {"suspend": False}})
    return f"{name} goes on: `stoker logs {seen.named} --follow`"


def _refuse_names(jobs: Sequence[Mapping[str, Any]], path: Path, wanted: str | None) -> None:
    """Refuse a name that occurs twice, and another namespace than the one that is asked for.

    Raises:
        RunError: there is one (64).
    """
    seen: set[tuple[str, str | None]] = set()
    for job in jobs:
        name, namespace = name_of(job), part(job, "metadata").get("namespace")
        if wanted is not None and namespace not in (None, wanted):
            raise RunError(
                ExitCode.USAGE,
                f"{name} is of namespace {namespace} in {path}, and --namespace is {wanted}: write one of them",
            )
        if (name, namespace) in seen:
            raise RunError(ExitCode.USAGE, f"{path} has two TrainJobs {name}: rename one of them")
        if name:  # else the cluster makes one up
            seen.add((name, namespace))


def _told_of_grace(job: Mapping[str, Any]) -> Mapping[str, Any]:
    told, what = told_of_grace(job)
    if what:
        say(f"{name_of(job)}: {what}")
    return told


def _not_others(seen: Seen, name: str, active: str) -> None:
    """Refuse to change a TrainJob that waits for a device, or that Kueue starts and stops: it would undo the change.

    Raises:
        RunError: it has a queue, or waits.
    """
    if claim := awaited_claim(seen.trainjob):
        raise RunError(
            ExitCode.USAGE,
            f"{name} waits for a place at ResourceClaim {claim}: repeat the `stoker rl up {seen.named}` that started "
            f"it, or `stoker rl down {seen.named}`",
        )
    queue = part(part(seen.trainjob, "metadata"), "labels").get(QUEUE)
    if queue:
        patch = f"""{seen.there} --type=merge --patch '{{"spec": {{"active": {active}}}}}'"""
        raise RunError(
            ExitCode.USAGE,
            f"{name} is in queue {queue}, so Kueue decides when it runs: kubectl patch workload NAME{patch}, with the "
            f"name that `kubectl get workloads{seen.there}` shows",
        )


def _runtime(client: Client, job: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the runtime that a TrainJob names; None, and a word about it, if the user may not see it.

    Raises:
        RunError: the cluster does not have it.
    """
    try:
        return runtime_of(client, job)
    except NotFoundError:
        raise
    except ClusterError as error:
        say(
            f"{name_of(job)} is not checked before it is submitted, because its runtime cannot be read: {error.message}"
        )
        return None
