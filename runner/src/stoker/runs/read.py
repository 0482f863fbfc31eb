"""Reads runs from the cluster: as few requests as possible, and as much as the user may see."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from stoker.contract.exits import ExitCode
from stoker.runs.client import Client, namespace_options
from stoker.runs.errors import NotFoundError, RightsError
from stoker.runs.kinds import (
    CLAIMS,
    CLUSTER_RUNTIMES,
    DEVICE_CLAIMS,
    EVENTS,
    JOBS,
    JOBSETS,
    PODS,
    RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
    Kind,
)
from stoker.runs.run import JOBSET_NAME, QUEUE, Run, part, rows, run_of, runs_of

Object = dict[str, Any]

# A TrainJob that says nothing means the first.
_RUNTIME_KINDS = (CLUSTER_RUNTIMES, RUNTIMES)


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything of one run, as objects of Kubernetes.

    Attributes:
        trainjob: its TrainJob.
        jobset: its JobSet; None if there is none.
        jobs: the JobSet's Jobs.
        pods: its pods.
        claims: the claims that its pods name, and its own.
        events: what Kubernetes said of any of these.
        hidden: what the user may not see, one line each.
        workload: what Kueue keeps of a run that has a queue; None if there is none.
        others: what Kueue keeps of the namespace's other runs in that queue.
        sees_jobsets: whether the user may see JobSets, so that without one there is none.
        lacks: the names of ResourceClaims that its pods name, and that do not exist.
        options: what commands need to find its namespace, as of :class:`Client`.
        cluster: what they need to find its cluster, as of :class:`Client`.
    """

    trainjob: Object
    jobset: Object | None
    jobs: tuple[Object, ...]
    pods: tuple[Object, ...]
    claims: tuple[Object, ...] = ()
    events: tuple[Object, ...] = ()
    hidden: tuple[str, ...] = ()
    workload: Object | None = None
    others: tuple[Object, ...] = ()
    sees_jobsets: bool = True
    lacks: tuple[str, ...] = ()
    options: str = ""
    cluster: str = ""

    @property
    def run(self) -> Run:
        """The run."""
        return run_of(self.trainjob, self.jobset, self.pods)

    @property
    def named(self) -> str:
        """The run as a command names it, such as `tune --namespace ml`."""
        return f"{part(self.trainjob, 'metadata').get('name')}{self.options}"

    @property
    def there(self) -> str:
        """What kubectl and stoker need to find its namespace from anywhere, as of :class:`Client`."""
        return namespace_options(self.cluster, str(part(self.trainjob, "metadata").get("namespace") or ""))


def read_runs(client: Client, everywhere: bool = False) -> tuple[list[Run], list[str]]:
    """Return all runs of a namespace or of the cluster, newest first; and what the user may not see.

    Raises:
        ClusterError: TrainJobs cannot be listed.
    """
    hidden: list[str] = []
    trainjobs = client.list(TRAINJOBS, everywhere=everywhere)
    if not trainjobs:
        return [], hidden
    jobsets = _visible(client, JOBSETS, hidden, everywhere=everywhere)
    pods = _visible(client, PODS, hidden, JOBSET_NAME, everywhere=everywhere)
    return runs_of(trainjobs, jobsets, pods), hidden


def read_run(client: Client, name: str, *, needs_pods: bool = False) -> Seen:
    """Return a run with its pods.

    Args:
        client: the cluster.
        name: the run.
        needs_pods: True to fail where the user may not list pods.

    Raises:
        NotFoundError: there is none of that name; the message has the nearest one.
        ClusterError: the TrainJob cannot be read, or pods that are needed cannot.
    """
    hidden: list[str] = []
    sees_jobsets = True
    try:
        trainjob = client.get(TRAINJOBS, name)
    except NotFoundError as error:
        if error.code is ExitCode.CONFIG:  # no Trainer at all
            raise
        raise _not_found(client, name, error) from error
    selector = f"{JOBSET_NAME}={name}"
    try:
        jobset = client.find(JOBSETS, name)
    except RightsError as error:
        hidden.append(error.message)
        jobset, sees_jobsets = None, False
    pods = client.list(PODS, selector) if needs_pods else _visible(client, PODS, hidden, selector)
    return Seen(
        trainjob,
        jobset,
        (),
        tuple(pods),
        hidden=tuple(hidden),
        sees_jobsets=sees_jobsets,
        options=client.options,
        cluster=client.cluster,
    )


def read_all(client: Client, name: str) -> Seen:
    """Return a run with everything that explains it.

    Raises:
        ClusterError: as :func:`read_run`.
    """
    seen = read_run(client, name)
    hidden = [*seen.hidden]
    jobs = _visible(client, JOBS, hidden, f"{JOBSET_NAME}={name}")
    named = {volume.get("persistentVolumeClaim", {}).get("claimName") for volume in _volumes(seen.pods)}
    named |= {f"initializer-{name}"}
    claims = [one for one in _visible(client, CLAIMS, hidden) if one["metadata"]["name"] in named]
    about = {one["metadata"].get("uid") for one in (seen.trainjob, *seen.pods, *jobs, *claims)}
    about |= {seen.jobset["metadata"].get("uid")} if seen.jobset else set()
    events = [
        one for one in _visible(client, EVENTS, hidden) if part(one, "involvedObject").get("uid") in about - {None}
    ]
    workload, others = workloads_of(client, seen.trainjob, hidden)
    lacks = _missing_devices(client, seen.pods, hidden)
    return replace(
        seen,
        jobs=tuple(jobs),
        claims=tuple(claims),
        events=tuple(events),
        hidden=tuple(hidden),
        workload=workload,
        others=others,
        lacks=lacks,
    )


def runtime_of(client: Client, trainjob: Mapping[str, Any]) -> Object | None:
    """Return the runtime that a TrainJob names; None if it names none of a kind that Trainer knows.

    Raises:
        NotFoundError: the cluster does not have it, or has one of that name of another kind (64), or has no Trainer
            (78).
        ClusterError: it cannot be read.
    """
    name, kind = str(_runtime_reference(trainjob).get("name") or ""), kind_of_runtime(trainjob)
    if not name or kind is None:
        return None
    metadata = part(trainjob, "metadata")
    namespace = str(metadata.get("namespace") or client.namespace)
    try:
        return client.get(kind, name, namespace=namespace)
    except NotFoundError as error:
        if error.code is ExitCode.CONFIG:
            raise
        if other := _other_kind(client, name, namespace, kind):
            told = f"{kind.kind} {name}, but it is a {other.kind}: write spec.runtimeRef.kind: {other.kind}"
        else:
            there = namespace_options(client.cluster, namespace) if kind.namespaced else client.cluster
            told = (
                f"runtime {name}, which the cluster does not have: kubectl get {kind.plural}{there} lists those that "
                "it has"
            )
        raise NotFoundError(ExitCode.USAGE, f"{metadata.get('name')} names the {told}") from error


def kind_of_runtime(trainjob: Mapping[str, Any]) -> Kind | None:
    """Return the kind of the runtime that a TrainJob names; None for one that Trainer does not know."""
    named = str(_runtime_reference(trainjob).get("kind") or CLUSTER_RUNTIMES.kind)
    return next((kind for kind in _RUNTIME_KINDS if kind.kind == named), None)


def _runtime_reference(trainjob: Mapping[str, Any]) -> Mapping[str, Any]:
    return part(part(trainjob, "spec"), "runtimeRef")


def _other_kind(client: Client, name: str, namespace: str, kind: Kind) -> Kind | None:
    """Return the other kind of runtimes, if it has one of that name that the user may see."""
    (other,) = (one for one in _RUNTIME_KINDS if one is not kind)
    with suppress(RightsError):
        if client.find(other, name, namespace=namespace) is not None:
            return other
    return None


def workloads_of(
    client: Client, trainjob: Mapping[str, Any], hidden: list[str]
) -> tuple[Object | None, tuple[Object, ...]]:
    """Return what Kueue keeps of a TrainJob that has a queue, and of the others there.

    A run without a queue needs no Kueue, nor rights in it.

    Args:
        client: of the TrainJob's namespace.
        trainjob: the TrainJob.
        hidden: gets a line if the user may not see Workloads, or there are none to see.

    Raises:
        ClusterError: the cluster cannot be asked.
    """
    queue = part(part(trainjob, "metadata"), "labels").get(QUEUE)
    if not queue:
        return None, ()
    uid = trainjob["metadata"].get("uid")
    own, others = None, []
    for one in _visible(client, WORKLOADS, hidden):
        if any(owner.get("uid") == uid for owner in rows(one["metadata"], "ownerReferences")):
            own = one
        elif part(one, "spec").get("queueName") == queue:
            others.append(one)
    return own, tuple(others)


def _missing_devices(client: Client, pods: tuple[Object, ...], hidden: list[str]) -> tuple[str, ...]:
    """Return the ResourceClaims that pods name and that do not exist. The scheduler says nothing of them."""
    claims = [claim for pod in pods for claim in rows(part(pod, "spec"), "resourceClaims")]
    named = dict.fromkeys(str(claim["resourceClaimName"]) for claim in claims if claim.get("resourceClaimName"))
    try:
        return tuple(name for name in named if client.find(DEVICE_CLAIMS, name) is None)
    except RightsError as error:
        hidden.append(error.message)
        return ()


def _volumes(pods: tuple[Object, ...]) -> list[Object]:
    return [volume for pod in pods for volume in part(pod, "spec").get("volumes") or ()]


def _visible(
    client: Client, kind: Kind, hidden: list[str], selector: str = "", everywhere: bool = False
) -> list[Object]:
    """Return objects; none if the user may not see them, which is noted."""
    try:
        return client.list(kind, selector, everywhere=everywhere)
    except RightsError as error:
        hidden.append(error.message)
    except NotFoundError as error:  # a cluster without JobSet
        hidden.append(error.message)
    return []


def _not_found(client: Client, name: str, error: NotFoundError) -> NotFoundError:
    """Return what is wrong with a name: the nearest run, or the JobSet that something else made."""
    try:
        names = [str(job["metadata"]["name"]) for job in client.list(TRAINJOBS)]
        others = client.find(JOBSETS, name)
    except (RightsError, NotFoundError):
        return error
    where = f"namespace {client.namespace}"
    if others:
        return NotFoundError(
            ExitCode.NO_INPUT,
            f"{name} in {where} is a JobSet that no TrainJob made: use `kubectl get jobset {name}{client.there}`",
        )
    close = difflib.get_close_matches(name, names, n=1)
    advice = f"did you mean {close[0]}?" if close else f"`stoker runs{client.options}` lists those that there are"
    return NotFoundError(ExitCode.NO_INPUT, f"there is no run {name} in {where}: {advice}")
