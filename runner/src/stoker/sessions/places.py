"""How many sessions may use a shared device at once, where no queue of Kueue counts them. Pure.

A ResourceClaim says by an annotation how many. The owners of the claim are the sessions that have a place: who becomes
one does so by the claim's resource version, so of several that try at once the API server lets one in. A session
without a place is a suspended TrainJob, which has no pods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.runs.run import PLACE, awaited_claim

# Annotation of a ResourceClaim.
LIMIT = "stoker.dev/sessions"

Object = dict[str, Any]


class NoPlaceError(Exception):
    """As many sessions as may use a device do so."""


def limit_of(claim: Mapping[str, Any]) -> int | None:
    """Return how many sessions may use a ResourceClaim at once; None for any number.

    Raises:
        RunError: its annotation is not a number (78).
    """
    text = (claim["metadata"].get("annotations") or {}).get(LIMIT)
    if text is None:
        return None
    if not str(text).isdecimal() or int(text) < 1:
        raise RunError(
            ExitCode.CONFIG,
            f"ResourceClaim {claim['metadata']['name']} has the annotation {LIMIT}={text!r}: write a whole number, "
            "1 or more",
        )
    return int(text)


def waiting(trainjob: Mapping[str, Any], claim: str) -> Object:
    """Return a session's TrainJob that starts no pods until it has a place at a claim."""
    metadata = trainjob["metadata"]
    annotations = {**(metadata.get("annotations") or {}), PLACE: claim}
    return {
        **trainjob,
        "metadata": {**metadata, "annotations": annotations},
        "spec": {**trainjob["spec"], "suspend": True},
    }


def started() -> Object:
    """Return the patch by which such a TrainJob starts its pods."""
    return {"metadata": {"annotations": {PLACE: None}}, "spec": {"suspend": False}}


def waits(trainjob: Mapping[str, Any]) -> bool:
    """Return whether a session has no place yet."""
    return bool(awaited_claim(trainjob))


def check_place(claim: Mapping[str, Any], running: Iterable[Mapping[str, Any]], busy: Collection[str] = ()) -> None:
    """Refuse one more session at a claim that as many use as may.

    Args:
        claim: the ResourceClaim.
        running: the TrainJobs of its namespace that have not ended.
        busy: names of the sessions with pods. One that has ended, or is deleted, keeps the device until its last pod
            is gone.

    Raises:
        NoPlaceError: names those that use it.
        RunError: its annotation is not a number (78).
    """
    limit = limit_of(claim)
    if limit is None:
        return
    uids = {one["metadata"]["uid"] for one in running}
    owners = claim["metadata"].get("ownerReferences") or ()
    users = sorted({str(one["name"]) for one in owners if one["uid"] in uids or one["name"] in busy})
    if len(users) >= limit:
        raise NoPlaceError(
            f"{len(users)} of {limit} sessions use ResourceClaim {claim['metadata']['name']}: {', '.join(users)}"
        )
