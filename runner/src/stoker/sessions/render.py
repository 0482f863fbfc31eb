"""A session is a TrainJob with samplers of its own, and what keeps others out: a key, policies, one address. Pure.

`stoker rl up` makes what stands here with the user's own credentials. Whoever makes a TrainJob in another way, such as
with the Kubeflow SDK, gets a session from the same labels, patches and objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.cluster.admission import admission_of
from stoker.cluster.grace import told_of_grace
from stoker.cluster.samplers import JOB as SAMPLER
from stoker.contract.exits import ExitCode, RunError
from stoker.contract.samplers import ADDRESSES, API_KEY, IDLE_SECONDS
from stoker.contract.secrets import HIDDEN, hidden_json, hide, is_secret
from stoker.runs.run import QUEUE
from stoker.serve.slices.record import ANNOTATION
from stoker.sessions.places import LIMIT

# On everything that a session has; its value is the session's name.
LABEL = "stoker.dev/session"
# On the TrainJob: what the session was made with.
VALUES = "stoker.dev/session-values"
# On what several sessions may own.
SHARED = "stoker.dev/shared-by-sessions"
# On the pods of samplers that take turns: their Lease (charts/training-runtimes/templates/_samplers.tpl).
LEASE = "stoker.dev/lease"
# Key of the session's Secret.
KEY = "api-key"
PORT = 8080

# The name of the port at which a runtime's nodes serve the tinker client.
_ENDPOINT = "tinker"
_ROLE = "stoker.dev/role"
_EARLIER = "earlier-session"
# What the sampler's proxy reads, and where (charts/training-runtimes/templates/_samplers.tpl).
_GUARD, _KEYED, _KEYS = "SESSION_GUARD", "keyed", "/keys"
_CADDYFILE = "stoker.dev/Caddyfile"
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_TIME = re.compile(r"(?:\d+[smhd])+|\d+")
_OURS = (API_KEY, IDLE_SECONDS)


@dataclass(frozen=True, slots=True)
class Session:
    """What a session is beside its TrainJob.

    Attributes:
        samplers: how many; None for as many as the runtime starts.
        time_limit: seconds until it ends whatever it does; None for no end.
        idle_limit: seconds without a request to its samplers, and without a step, after which it ends; None for no end.
        queue: the queue of Kueue that lets it start; None for what the TrainJob's label says.
    """

    samplers: int | None = None
    time_limit: int | None = None
    idle_limit: int | None = None
    queue: str | None = None


def seconds_in(option: str, text: str) -> int:
    """Return the seconds of a time such as `8h`, `1h30m` or `5400`.

    Raises:
        RunError: it is no time of a second or more (64).
    """
    if _TIME.fullmatch(text):
        found = sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([smhd]?)", text))
        if found:
            return found
    raise RunError(
        ExitCode.USAGE, f"{option} {text!r} is not a time: write seconds, or numbers with d, h, m or s, such as 1h30m"
    )


def secret_of(name: str) -> str:
    """Return the name of a session's Secret."""
    return f"{name}-session"


def service_of(name: str) -> str:
    """Return the name of the Service over a session's samplers."""
    return f"{name}-samplers"


def claim_of(name: str) -> str:
    """Return the name of the claim with a session's run folder, where the runtime gives each TrainJob its own."""
    return f"initializer-{name}"


def endpoint_service_of(name: str) -> str:
    """Return the name of the Service over a session's endpoint for the tinker client."""
    return f"{name}-tinker"


def endpoint_of(runtime: Mapping[str, Any]) -> int | None:
    """Return the port at which the nodes of a runtime serve the tinker client; None if they run a method."""
    for job in _jobs(runtime):
        containers = _pod(job)["spec"].get("containers", ()) if job["name"] == "node" else ()
        for port in (port for container in containers for port in container.get("ports") or ()):
            if port.get("name") == _ENDPOINT:
                return int(port["containerPort"])
    return None


def url_of(name: str, namespace: str) -> str:
    """Return the address of a session's samplers inside the cluster."""
    return f"http://{service_of(name)}.{namespace}:{PORT}"


def session_trainjob(trainjob: Mapping[str, Any], session: Session, runtime: Mapping[str, Any]) -> dict[str, Any]:
    """Return a TrainJob as a session.

    Args:
        trainjob: any TrainJob.
        session: what it is beside that.
        runtime: its (Cluster)TrainingRuntime.

    Raises:
        RunError: the two make no session (64, or 78 for what the catalogue lacks).
    """
    name = str(trainjob["metadata"]["name"])
    jobs = {str(job["name"]): job for job in _jobs(runtime)}
    usage = [*_problems(trainjob, session, jobs, _named(runtime))]
    if usage:
        raise RunError(ExitCode.USAGE, "\n".join(usage))
    if _GUARD not in _pod(jobs[SAMPLER]).get("metadata", {}).get("annotations", {}).get(_CADDYFILE, ""):
        raise RunError(
            ExitCode.CONFIG,
            f"the samplers of runtime {_named(runtime)} do not check keys, because the runtime is of an older "
            "catalogue: upgrade its release of training-runtimes",
        )
    spec = {**trainjob["spec"]}
    if session.time_limit is not None:
        # Trainer ends it, whatever its pods do.
        spec["activeDeadlineSeconds"] = session.time_limit
    trainer = {**(spec.get("trainer") or {})}
    trainer["env"] = [*trainer.get("env", ()), *_variables(name, session, _count(jobs[SAMPLER]))]
    spec["trainer"] = trainer
    spec["runtimePatches"] = [*spec.get("runtimePatches", ()), _patch(name, jobs)]
    metadata = {**trainjob["metadata"]}
    queue = {} if session.queue is None else {QUEUE: session.queue}
    metadata["labels"] = {**metadata.get("labels", {}), **queue, LABEL: name}
    metadata["annotations"] = {**metadata.get("annotations", {}), VALUES: _values(trainjob, session)}
    made, _ = told_of_grace({**trainjob, "metadata": metadata, "spec": spec})
    refused = admission_of(made, runtime).problems
    if refused:
        raise RunError(ExitCode.USAGE, "\n".join(refused))
    return made


def samplers_in(session: Session, runtime: Mapping[str, Any]) -> int:
    """Return how many samplers a session has."""
    job = next(job for job in _jobs(runtime) if job["name"] == SAMPLER)
    return session.samplers or _count(job)


def own_objects(name: str, namespace: str, key: str, endpoint: int | None = None) -> list[dict[str, Any]]:
    """Return what a session has beside its TrainJob.

    Args:
        name: the session.
        namespace: where it is.
        key: what its samplers and its endpoint ask for.
        endpoint: the port of its nodes' endpoint for the tinker client; None if they have none.
    """

    def one(kind: str, version: str, called: str, **content: Any) -> dict[str, Any]:
        metadata = {"name": called, "namespace": namespace, "labels": {LABEL: name}}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}

    def policy(called: str, role: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        labels = {LABEL: name, _ROLE: role}
        return one(
            "NetworkPolicy", "networking.k8s.io/v1", called, spec={"podSelector": {"matchLabels": labels}, **spec}
        )

    def service(called: str, role: str, port: int) -> dict[str, Any]:
        spec = {
            "selector": {LABEL: name, _ROLE: role},
            "ports": [{"name": "http", "port": port, "targetPort": port}],
        }
        return one("Service", "v1", called, spec=spec)

    own = [{"podSelector": {"matchLabels": {LABEL: name}}}]
    names = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    return [
        one("Secret", "v1", secret_of(name), type="Opaque", stringData={KEY: key}),
        policy(f"{name}-session-nodes", "node", {"policyTypes": ["Ingress"], "ingress": [{"from": own}]}),
        policy(
            f"{name}-session-samplers",
            SAMPLER,
            {
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": own, "ports": [{"port": PORT}]}],
                "egress": [{"ports": names}],
            },
        ),
        service(service_of(name), SAMPLER, PORT),
        *([] if endpoint is None else [service(endpoint_service_of(name), "node", endpoint)]),
    ]


def owned(made: Mapping[str, Any], trainjob: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object that goes when a TrainJob goes.

    Args:
        made: the object.
        trainjob: as the API server has it.
    """
    owner = {
        "apiVersion": trainjob["apiVersion"],
        "kind": trainjob["kind"],
        "name": trainjob["metadata"]["name"],
        "uid": trainjob["metadata"]["uid"],
    }
    return {**made, "metadata": {**made["metadata"], "ownerReferences": [owner]}}


def device_claims(runtime: Mapping[str, Any]) -> list[str]:
    """Return the names of the ResourceClaims that the pods of a runtime share with others."""
    found = (claim for job in _jobs(runtime) for claim in _pod(job)["spec"].get("resourceClaims", ()))
    return [*dict.fromkeys(str(claim["resourceClaimName"]) for claim in found if claim.get("resourceClaimName"))]


def lease_of(runtime: Mapping[str, Any]) -> str | None:
    """Return the Lease by which the samplers of a runtime take turns at their device; None if they take none."""
    found = (_pod(job).get("metadata", {}).get("labels", {}).get(LEASE) for job in _jobs(runtime))
    return next((str(name) for name in found if name), None)


def device_claim(name: str, namespace: str, device_class: str, limit: int | None = None) -> dict[str, Any]:
    """Return a ResourceClaim of one device, which sessions of its namespace share.

    Args:
        name: of the claim.
        namespace: of the claim.
        device_class: of the device.
        limit: how many sessions may use it at once; None for any number.
    """
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 1}
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "labels": {SHARED: "true"}}
    if limit is not None:
        metadata["annotations"] = {LIMIT: str(limit)}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": {"devices": {"requests": [{"name": "device", "exactly": exactly}]}},
    }


def lease(name: str, namespace: str, *, held: bool = False) -> dict[str, Any]:
    """Return a Lease, by which engines take turns at a claim's device (`stoker slice`).

    Args:
        name: of the Lease.
        namespace: of the Lease.
        held: an engine of an earlier Lease may still use the device, so nobody takes it before that has expired.
    """
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "labels": {SHARED: "true"}}
    made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
    if not held:
        return made
    metadata["annotations"] = {ANNOTATION: "{}"}
    return {**made, "spec": {"holderIdentity": _EARLIER}}


def folder_of(name: str, runtime: Mapping[str, Any]) -> tuple[str, str]:
    """Return the claim with a session's run folder, and the folder in it; empty for the whole claim."""
    node = next(job for job in _jobs(runtime) if job["name"] == "node")
    for volume in _pod(node)["spec"].get("volumes", ()):
        if volume.get("name") == "initializer" and "persistentVolumeClaim" in volume:
            return str(volume["persistentVolumeClaim"]["claimName"]), name
    return claim_of(name), ""


def differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return how a session that is there differs from one that is wanted, a line for each value.

    Args:
        there: its TrainJob.
        wanted: the TrainJob that `session_trainjob` returned.
    """
    before, after = (
        _flat(json.loads(one["metadata"].get("annotations", {}).get(VALUES, "{}"))) for one in (there, wanted)
    )
    return [
        f"{path} is {_shown(before, path)}, and you ask for {_shown(after, path)}"
        for path in dict.fromkeys([*before, *after])
        if before.get(path) != after.get(path)
    ]


def is_session(trainjob: Mapping[str, Any]) -> bool:
    """Return whether a TrainJob is a session."""
    metadata = trainjob["metadata"]
    return bool(metadata.get("labels", {}).get(LABEL) == metadata["name"])


def ending_of(trainjob: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return how a TrainJob has ended, `Complete` or `Failed`, and why; None while it has not."""
    for condition in (trainjob.get("status") or {}).get("conditions") or ():
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            return str(condition["type"]), str(condition.get("message") or condition.get("reason") or "no reason given")
    return None


def _problems(
    trainjob: Mapping[str, Any], session: Session, jobs: Mapping[str, Mapping[str, Any]], runtime: str
) -> Iterator[str]:
    metadata = trainjob["metadata"]
    name, labels = metadata["name"], metadata.get("labels", {})
    if labels.get(LABEL, name) != name:
        yield f"the TrainJob {name} has the label {LABEL}={labels[LABEL]}: drop it, it becomes the session's name"
    if SAMPLER not in jobs:
        yield f"runtime {runtime} has no samplers of its own: choose one that has, such as trl-grpo-async"
        return
    count = _count(jobs[SAMPLER])
    queue = labels.get(QUEUE, session.queue)
    if session.samplers is not None and session.samplers > count and queue is not None:
        yield (
            f"--samplers {session.samplers} is more than the {count} of runtime {runtime}, and Kueue admits a TrainJob "
            f"with what its runtime asks for: write {count} or fewer, or raise samplers.count of the runtime"
        )
    given = [str(entry.get("name")) for entry in (trainjob["spec"].get("trainer") or {}).get("env", ())]
    ours = (*_OURS, *([ADDRESSES] if session.samplers is not None else []))
    for found in (found for found in ours if found in given):
        yield f"the TrainJob sets {found}, which the session sets: drop it"
    if session.time_limit is not None and trainjob["spec"].get("activeDeadlineSeconds") is not None:
        yield "the TrainJob has activeDeadlineSeconds, which --time-limit sets: write one of them"
    if session.queue == "":
        yield "--queue is empty: write the name of a LocalQueue, or drop --queue"
    elif session.queue not in (None, queue):
        yield f"the TrainJob {name} has the label {QUEUE}={queue}, and --queue is {session.queue}: write one of them"


def _variables(name: str, session: Session, count: int) -> Iterator[dict[str, Any]]:
    yield {"name": API_KEY, "valueFrom": {"secretKeyRef": {"name": secret_of(name), "key": KEY}}}
    if session.idle_limit is not None:
        yield {"name": IDLE_SECONDS, "value": str(session.idle_limit)}
    if session.samplers is not None and session.samplers != count:
        pods = (f"http://{name}-{SAMPLER}-0-{index}.{name}:{PORT}" for index in range(session.samplers))
        yield {"name": ADDRESSES, "value": ",".join(pods)}


def _patch(name: str, jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what puts the label on everything that the TrainJob makes, and the key before its samplers."""
    labels = {"metadata": {"labels": {LABEL: name}}}
    key = {
        "volumes": [{"name": "keys", "secret": {"secretName": secret_of(name)}}],
        "initContainers": [
            {
                "name": "proxy",
                "env": [{"name": _GUARD, "value": _KEYED}],
                "volumeMounts": [{"name": "keys", "mountPath": _KEYS, "readOnly": True}],
            }
        ],
    }
    patched = [
        {
            "name": job,
            "template": {**labels, "spec": {"template": {**labels, **({"spec": key} if job == SAMPLER else {})}}},
        }
        for job in jobs
    ]
    template = {**labels, "spec": {"replicatedJobs": patched}}
    return {"manager": LABEL, "trainingRuntimeSpec": {"template": template}}


def _values(trainjob: Mapping[str, Any], session: Session) -> str:
    own = {
        "samplers": session.samplers,
        "time-limit": session.time_limit,
        "idle-limit": session.idle_limit,
        "queue": session.queue,
    }
    spec = {"spec": trainjob["spec"]}
    return json.dumps({**{name: value for name, value in own.items() if value is not None}, **spec}, sort_keys=True)


def _flat(values: Any, path: str = "") -> dict[str, Any]:
    """Return each value by its path; of a list of variables and such by their names."""
    if isinstance(values, list) and values and all(isinstance(one, dict) and "name" in one for one in values):
        values = {
            str(one["name"]): one.get("value") or {key: value for key, value in one.items() if key != "name"}
            for one in values
        }
    if not isinstance(values, dict):
        return {path: values}
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value, f"{path}.{name}" if path else name)
    return found


def _shown(values: Mapping[str, Any], path: str) -> str:
    value = values.get(path)
    if is_secret(path.rpartition(".")[2]) and value is not None:
        return HIDDEN
    if isinstance(value, list):
        return hidden_json(value)
    return "nothing" if value is None else hide(str(value))


def _jobs(runtime: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    jobs: list[Mapping[str, Any]] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    return jobs


def _pod(job: Mapping[str, Any]) -> Mapping[str, Any]:
    pod: Mapping[str, Any] = job["template"]["spec"]["template"]
    return pod


def _count(job: Mapping[str, Any]) -> int:
    spec = job["template"]["spec"]
    return int(spec.get("completions") or spec.get("parallelism") or 1)


def _named(runtime: Mapping[str, Any]) -> str:
    return str(runtime["metadata"]["name"])
