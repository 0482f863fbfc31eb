"""Ends a session, and looks until nothing of it is left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say
from stoker.runs.client import Client
from stoker.runs.errors import NotFoundError, RightsError
from stoker.runs.getter import ResultLocation
from stoker.runs.kinds import CLAIMS, DEVICE_CLAIMS, JOBS, JOBSETS, PODS, TRAINJOBS, Kind
from stoker.sessions import render
from stoker.sessions.folder import clear, mark_claim, may_delete_claim, remember, remembered, shared_folder
from stoker.sessions.kinds import ALL, LEASES, OWN
from stoker.sessions.render import LABEL
from stoker.sessions.show import rows

_SECONDS_BETWEEN_LOOKS = 1.0
# What sessions may share has no session's label.
_SHARED = (DEVICE_CLAIMS, LEASES)
# While one of these is there, a pod may write to the run folder, or be made anew.
_WRITING = (TRAINJOBS, JOBSETS, JOBS, PODS)
# Only names are of interest: with a port they are all that any session gives.
_ANY_PORT = 1

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of a session.

    Attributes:
        objects: each with its kind.
        unseen: kinds that the user may neither list, nor get by the names that a session gives.
    """

    objects: tuple[tuple[Kind, Object], ...]
    unseen: tuple[Kind, ...]


def left_of(client: Client, name: str, uid: str = "") -> Left:
    """Return all that carries a session's label, or has its TrainJob for an owner.

    Args:
        client: of its namespace.
        name: the session.
        uid: of its TrainJob; empty if that is gone.

    Raises:
        RunError: the cluster cannot be asked.
    """
    found: list[tuple[Kind, Object]] = []
    unseen = []
    for kind in ALL:
        try:
            shared = [one for one in client.list(kind) if _owns(uid, one)] if uid and kind in _SHARED else []
            found += [(kind, one) for one in (*client.list(kind, f"{LABEL}={name}"), *shared)]
        except RightsError:
            named = _named(client, name, kind)
            if named is None:
                unseen.append(kind)
            else:
                found += [(kind, one) for one in named]
        except NotFoundError:  # a kind that this cluster does not have
            continue
    return Left(tuple(found), tuple(unseen))


def down(client: Client, name: str, seconds: float, *, purge: bool = False) -> None:
    """End a session, and wait until nothing of it is left.

    Args:
        client: of its namespace.
        name: the session.
        seconds: how long to wait.
        purge: True to delete its run folder too: its claim, or its folder of a claim that it shares. Where an earlier
            call did not get to delete that folder, this one goes on, though the TrainJob is gone.

    Raises:
        RunError: the TrainJob of that name is not a session, or its claim may be an ordinary run's (64), or something
            is left (75, or what keeps the pod from starting that deletes a folder): the message names it.
    """
    trainjob = client.find(TRAINJOBS, name)
    if trainjob is not None and not render.is_session(trainjob):
        raise RunError(
            ExitCode.USAGE,
            f"TrainJob {name} is not a session: it lacks the label {LABEL}={name}: delete it with kubectl, or correct "
            "the name",
        )
    if trainjob is None and purge and not may_delete_claim(client, name):
        claim = render.claim_of(name)
        raise RunError(
            ExitCode.USAGE,
            f"there is no session {name}, and claim {claim} may be an ordinary run's: fetch what you need with `stoker "
            f"get {name} FOLDER --image IMAGE{client.options}` (IMAGE is that of its runtime), then `kubectl delete "
            f"pvc {claim}{client.there}`",
        )
    uid = str(trainjob["metadata"]["uid"]) if trainjob else ""
    place = _place(client, name, trainjob, purge=purge)
    before = left_of(client, name, uid)
    if trainjob is not None:
        mark_claim(client, name)
        if purge and place is not None and not remember(client, name, place):
            place = None
        client.delete(TRAINJOBS, name)
    for kind, one in before.objects:  # those without an owner would stay, and the others need not wait for theirs
        if kind in OWN:
            client.delete(kind, one["metadata"]["name"])
    left = _wait(client, name, uid, seconds, purge=purge)
    for kind in left.unseen:
        say(f"session {name}: you may not list {kind.resource}, so whether one is left is not known")
    lines = [
        f"session {name}: {kind.kind} {one['metadata']['name']} is left: {_why(one)}" for kind, one in left.objects
    ]
    if purge and place is not None:
        if any(kind in _WRITING for kind, _ in left.objects):
            lines.append(
                f"session {name}: its folder {name} of claim {place.claim} stays until these are gone: repeat "
                f"`stoker rl down {name} --purge{client.options}` then"
            )
        else:
            clear(client, name, place)
    if lines:
        raise RunError(ExitCode.STOPPED, "\n".join(lines))
    _say_what_stays(client, name, None if purge else place, there=bool(before.objects) or place is not None)


def down_ended(client: Client, seconds: float, *, purge: bool = False) -> None:
    """End every session whose run has ended, one after another, and wait for each until nothing of it is left.

    Args:
        client: of their namespace.
        seconds: how long to wait for each.
        purge: as for `down`.

    Raises:
        RunError: something of a session is left; the others are ended all the same.
    """
    problems = []
    ended = [row.name for row in rows(client) if row.has_ended]
    for name in ended:
        try:
            down(client, name, seconds, purge=purge)
        except RunError as error:
            problems.append(error)
    if not ended:
        say(f"no session in namespace {client.namespace} has ended")
    if problems:
        raise RunError(problems[0].code, "\n".join(map(str, problems)))


def _place(client: Client, name: str, trainjob: Object | None, *, purge: bool) -> ResultLocation | None:
    """Return where a session's folder of a shared claim is; None if it has none, or nothing tells."""
    place = None if trainjob is None else shared_folder(client, name)
    ends = trainjob is None or trainjob["metadata"].get("deletionTimestamp") is not None
    return remembered(client, name) if place is None and purge and ends else place


def _wait(client: Client, name: str, uid: str, seconds: float, *, purge: bool) -> Left:
    """Wait until nothing is left, or for so long, and return what is; with `purge`, delete the session's claim too."""
    deadline = time.monotonic() + seconds
    told = 0
    while True:
        if purge:  # at each look: JobSet makes a deleted claim anew until it is gone itself
            client.delete(CLAIMS, render.claim_of(name))
        left = left_of(client, name, uid)
        claim = client.find(CLAIMS, render.claim_of(name)) if purge else None
        if claim is not None:  # nobody labels it
            left = replace(left, objects=(*left.objects, (CLAIMS, claim)))
        if not left.objects or time.monotonic() >= deadline:
            return left
        if len(left.objects) != told:
            told = len(left.objects)
            named = ", ".join(f"{kind.kind} {one['metadata']['name']}" for kind, one in left.objects[:3])
            say(f"session {name}: waits for the end of {told} objects: {named}{' …' if told > 3 else ''}")
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _say_what_stays(client: Client, name: str, place: ResultLocation | None, *, there: bool) -> None:
    if place is not None:
        say(
            f"session {name}: its folder {name} of claim {place.claim} stays with all that is in it, published "
            "adapters too; the next session of this name goes on with it, and --purge deletes it with that one"
        )
    claim = render.claim_of(name)
    try:
        kept = client.find(CLAIMS, claim) is not None
    except RightsError:
        kept = False
    if kept:
        say(
            f"session {name}: claim {claim} keeps the run folder with all that is in it, published adapters too; "
            f"`stoker rl down {name} --purge{client.options}` deletes it"
        )
    left = "nothing else" if kept or place is not None else "nothing"
    say(f"session {name}: {left} is left" if there else f"session {name} does not exist")


def _named(client: Client, name: str, kind: Kind) -> list[Object] | None:
    """Return what a session has of a kind, by the names it gives; None if it gives none, or the user may not ask."""
    made = render.own_objects(name, client.namespace, "", _ANY_PORT)
    names = [str(one["metadata"]["name"]) for one in made if one["kind"] == kind.kind]
    try:
        there = [client.find(kind, called) for called in names]
    except RightsError:
        return None
    labelled = [one for one in there if one and (one["metadata"].get("labels") or {}).get(LABEL) == name]
    return labelled if names else None


def _owns(uid: str, one: Mapping[str, Any]) -> bool:
    """Return whether a TrainJob is the only owner of an object."""
    return [owner.get("uid") for owner in one["metadata"].get("ownerReferences") or ()] == [uid]


def _why(one: Mapping[str, Any]) -> str:
    """Return why an object is still there."""
    metadata = one["metadata"]
    if metadata.get("deletionTimestamp"):
        if metadata.get("finalizers"):
            return f"its finalizers {', '.join(metadata['finalizers'])} still block deletion; look at what sets them"
        return "it is being deleted; try again later, or look at its node if it is a pod"
    return "nothing has deleted it: delete it with kubectl, or look at the controller manager, which collects garbage"
