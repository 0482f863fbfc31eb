"""What sessions share: a claim's device, and the Lease by which they take turns. They go with their last owner."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say
from stoker.runs.client import Client
from stoker.runs.errors import ConflictError, ExistsError, NotFoundError
from stoker.runs.kinds import DEVICE_CLAIMS, PODS, TRAINJOBS, Kind
from stoker.runs.run import QUEUE
from stoker.sessions import places, render
from stoker.sessions.kinds import LEASES
from stoker.sessions.render import LABEL

# Phases of pods whose containers have all ended.
_OVER = ("Succeeded", "Failed")
_SECONDS_BETWEEN_LOOKS = 2.0
# To become one of the owners, of which many may come at once.
_SHARE_SECONDS = 60.0
# For the pods of sessions that have ended to let go of it.
_GONE_SECONDS = 600.0
_SECONDS_BETWEEN_TRIES = 0.2
_GOING = "is still being deleted, because pods use it"

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Claim:
    """A device that sessions share.

    Attributes:
        name: of the ResourceClaim.
        device_class: of its device.
        limit: how many sessions may use it at once; None for any number, or for the claim's own.
    """

    name: str
    device_class: str
    limit: int | None = None


def claim_in(text: str | None, limit: int | None, namespace: str) -> Claim | None:
    """Return what `--device-claim NAME=CLASS` and `--device-limit` ask for; None without the former.

    Args:
        text: what the user wrote.
        limit: how many sessions may use it.
        namespace: of the session.

    Raises:
        RunError: it is of another form, or of another namespace (64).
    """
    if text is None:
        if limit is not None:
            raise RunError(ExitCode.USAGE, "--device-limit needs a claim: write --device-claim NAME=DEVICECLASS too")
        return None
    named, _, device_class = text.partition("=")
    where, slash, name = named.rpartition("/")
    if slash and where != namespace:
        raise RunError(
            ExitCode.USAGE,
            f"--device-claim {named} is in namespace {where}, and the session in {namespace}: Kubernetes gives a "
            "ResourceClaim's device to pods of its own namespace alone, so start the session there: "
            f"--namespace {where}",
        )
    if not name or not device_class:
        raise RunError(ExitCode.USAGE, f"--device-claim {text!r} is incomplete: write NAME=DEVICECLASS")
    return Claim(name, device_class, limit)


def turns_of(runtime: Mapping[str, Any]) -> str:
    """Return the Lease that `--turns` asks for.

    Raises:
        RunError: the samplers of the runtime cannot share a device (64).
    """
    found = render.lease_of(runtime)
    if found is None:
        called = runtime["metadata"]["name"]
        raise RunError(
            ExitCode.USAGE,
            f"--turns: the samplers of runtime {called} cannot share a device; set "
            f"runtimes.{called}.samplers.slice.lease in the release of training-runtimes, or drop --turns",
        )
    return found


def limited(trainjob: Object, claims: Sequence[Object], claim: Claim | None, namespace: str) -> Object:
    """Return a session's TrainJob as it is made: one that waits for its place where a claim has a limit.

    Args:
        trainjob: the session's.
        claims: those of its runtime that are there.
        claim: the one that the session asks for.
        namespace: of the session.

    Raises:
        RunError: no session could count at the claim, it has another limit than the session asks for, or Kueue counts
            too (64); or its limit is wrong (78).
    """
    name = _limited_claim(claims, claim, namespace)
    queue = (trainjob["metadata"].get("labels") or {}).get(QUEUE)
    if not name:
        return trainjob
    if queue is not None:  # Kueue starts and stops what is in a queue, so the session would not wait for its place
        there = name in {one["metadata"]["name"] for one in claims}
        drop = f"`kubectl annotate resourceclaim {name} {places.LIMIT}- --namespace {namespace}`"
        raise RunError(
            ExitCode.USAGE,
            f"queue {queue}: ResourceClaim {name} has a limit of sessions, and what Kueue admits does not wait for it. "
            f"Let one of them count: leave out the queue, or let Kueue's quota count and "
            f"{f'remove the limit: {drop}' if there else 'leave out --device-limit'}",
        )
    return places.waiting(trainjob, name)


def _limited_claim(claims: Sequence[Object], claim: Claim | None, namespace: str) -> str:
    """Return the name of a claim that only so many sessions may use at once; empty if there is none."""
    for one in claims:
        name, labels = one["metadata"]["name"], one["metadata"].get("labels") or {}
        if places.limit_of(one) is not None and render.SHARED not in labels:
            raise RunError(
                ExitCode.USAGE,
                f"ResourceClaim {name} has the annotation {places.LIMIT}, but sessions only count as owners of a claim "
                f"with the label {render.SHARED}, which goes with the last of them: add the label with `kubectl label "
                f"resourceclaim {name} {render.SHARED}=true --namespace {namespace}`, or remove the annotation",
            )
    limits = {str(one["metadata"]["name"]): places.limit_of(one) for one in claims}
    if claim is not None:
        limit = limits.setdefault(claim.name, claim.limit)
        if claim.limit not in (None, limit):
            raise RunError(
                ExitCode.USAGE,
                f"--device-limit {claim.limit}: ResourceClaim {claim.name} is there, and "
                f"{f'lets {limit}' if limit else 'any number of'} sessions use it at once: drop the option, or change "
                f"the claim's annotation {places.LIMIT}",
            )
    return next((name for name, limit in limits.items() if limit is not None), "")


def check_claims(client: Client, runtime: Mapping[str, Any], claim: Claim | None) -> list[Object]:
    """Return the claims that a runtime's pods name, as far as they are there.

    Raises:
        RunError: one is missing that the session does not make (66), or the cluster has no claims (78).
    """
    there = []
    asked, called = render.device_claims(runtime), runtime["metadata"]["name"]
    if claim is not None and claim.name not in asked:
        named = f"names {', '.join(asked)}" if asked else "names none"
        raise RunError(
            ExitCode.USAGE,
            f"--device-claim {claim.name}: the runtime {called} {named}; write a claim that its pods name",
        )
    for name in asked:
        try:
            there.append(client.get(DEVICE_CLAIMS, name))
        except NotFoundError as error:
            if error.code is ExitCode.CONFIG:  # no such kind, so nobody can create one
                raise RunError(
                    error.code, f"runtime {called} needs ResourceClaim {name}, but {error.message}"
                ) from error
            if claim is None or name != claim.name:
                raise RunError(
                    ExitCode.NO_INPUT,
                    f"runtime {called} needs ResourceClaim {name}, which is not in namespace {client.namespace}: "
                    f"create it, or let the session do so with --device-claim {name}=DEVICECLASS",
                ) from error
    return there


def check_lease(client: Client, runtime: Mapping[str, Any], *, turns: bool) -> None:
    """Look whether the Lease is there that a runtime's samplers take turns by, or may be made.

    Raises:
        RunError: it is neither (66), or the samplers take no turns (64).
    """
    if turns:
        turns_of(runtime)
        return
    name = render.lease_of(runtime)
    if name is not None and client.find(LEASES, name) is None:
        raise RunError(
            ExitCode.NO_INPUT,
            f"the samplers of runtime {runtime['metadata']['name']} take turns by the Lease {name}, which is not in "
            f"namespace {client.namespace}: let the session make it with --turns",
        )


def take_place(
    client: Client, trainjob: Mapping[str, Any], runtime: Mapping[str, Any], claim: Claim | None, *, turns: bool
) -> str:
    """Become an owner of what sessions share, and start the pods of a session that has waited for that.

    Returns:
        why it may not start yet; empty if it may.
    """
    try:
        _share_all(client, trainjob, runtime, claim, turns=turns)
    except places.NoPlaceError as full:
        return str(full)
    if places.waits(trainjob):
        client.patch(TRAINJOBS, str(trainjob["metadata"]["name"]), places.started())
    return ""


def _share_all(
    client: Client, trainjob: Mapping[str, Any], runtime: Mapping[str, Any], claim: Claim | None, *, turns: bool
) -> None:
    """Become one of the owners of each object that the runtime's pods use and sessions share."""
    for name in render.device_claims(runtime):
        asked = claim is not None and claim.name == name
        made = (claim.device_class, claim.limit) if claim and asked else ("", None)
        device = render.device_claim(name, client.namespace, *made)
        _share(client, DEVICE_CLAIMS, device, trainjob, "" if asked else f"--device-claim {name}=DEVICECLASS")
    lease = render.lease_of(runtime)
    if lease is not None:
        # The Lease of sessions that have ended is gone before their last pods are.
        held = any(_is_of_another(pod, trainjob) for pod in client.list(PODS, f"{render.LEASE}={lease}"))
        shared = render.lease(lease, client.namespace, held=held)
        _share(client, LEASES, shared, trainjob, "" if turns else "--turns")


def _is_of_another(pod: Mapping[str, Any], trainjob: Mapping[str, Any]) -> bool:
    """Return whether a pod is of another session, which may be an earlier one of the same name."""
    its, own = pod["metadata"], trainjob["metadata"]
    earlier = str(its.get("creationTimestamp") or "") < str(own.get("creationTimestamp") or "")
    return earlier or its["labels"].get(LABEL) != own["name"]


def _share(client: Client, kind: Kind, made: Mapping[str, Any], trainjob: Mapping[str, Any], missing: str = "") -> None:
    """Become one of the owners of an object: it goes with the last of them.

    Args:
        client: of its namespace.
        kind: of the object.
        made: the object.
        trainjob: the session, as the cluster has it.
        missing: the option that makes the object; empty to make it.

    Raises:
        RunError: it is not there and not to be made (66), is still being deleted, or changes all the time (75).
        NoPlaceError: as many sessions as may use it do so.
    """
    made = render.owned(made, trainjob)
    name, (own,) = made["metadata"]["name"], made["metadata"]["ownerReferences"]
    deadline = time.monotonic() + _SHARE_SECONDS
    what = "changes all the time"
    while time.monotonic() < deadline:
        there = client.find(kind, name)
        going = there is not None and bool(there["metadata"].get("deletionTimestamp"))
        if missing and (there is None or going):
            raise RunError(
                ExitCode.NO_INPUT,
                f"{kind.kind} {name} goes with the session that made it: let this session make it anew with {missing}",
            )
        if going:
            if what != _GOING:
                what, deadline = _GOING, time.monotonic() + _GONE_SECONDS
                say(f"waits up to {_GONE_SECONDS:g} s for {kind.kind} {name}: it is being deleted, and pods use it")
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            continue
        # What a create does not find, its kind or its namespace, does not come back.
        faster = (ConflictError, ExistsError if there is None else NotFoundError)
        try:
            if there is None:
                client.create(kind, made)
                return
            metadata = there["metadata"]
            owners = metadata.get("ownerReferences") or []
            if render.SHARED not in (metadata.get("labels") or {}) or own["uid"] in [one["uid"] for one in owners]:
                return  # without the label it is an administrator's, which no session deletes
            if places.waits(trainjob):
                running = [one for one in client.list(TRAINJOBS) if not render.ending_of(one)]
                pods = [pod for pod in client.list(PODS, LABEL) if pod["status"].get("phase") not in _OVER]
                places.check_place(there, running, {pod["metadata"]["labels"][LABEL] for pod in pods})
            version = metadata.get("resourceVersion")
            patch = {"ownerReferences": [*owners, own], **({"resourceVersion": version} if version else {})}
            client.patch(kind, name, {"metadata": patch})
            return
        except faster:
            # Others were faster. Not all of them try again at the same time.
            time.sleep(random.uniform(0, 2 * _SECONDS_BETWEEN_TRIES))
    raise RunError(ExitCode.STOPPED, f"{kind.kind} {name} {what}: try again")
