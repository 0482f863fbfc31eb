"""A session's folder of a claim that it shares with other runs: where it is, and how it goes."""

from __future__ import annotations

import json
from contextlib import suppress

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say
from stoker.runs.client import Client
from stoker.runs.errors import NotFoundError, RightsError
from stoker.runs.get import pod_with
from stoker.runs.getter import CONTAINER, MOUNT, ResultLocation, node_of, place_of
from stoker.runs.kinds import CLAIMS, PODS
from stoker.runs.read import read_run
from stoker.sessions import render
from stoker.sessions.render import LABEL

# On a claim, with a session's name behind it: what `--purge` needs to go on once the TrainJob is gone.
PURGE = "purge.stoker.dev"

# Empties the folder, and removes it if the claim's own folder may be changed. A link is removed and never followed.
# Meanwhile it writes a line at times, because silence is a broken line; `sleep` must not keep the output open.
_CLEAR = (
    '[ -L "$0" ] && exec rm -f -- "$0"; [ -d "$0" ] || exit 0; cd "$0" || exit; '
    'while sleep "$1" >/dev/null 2>&1; do echo; done & '
    "rm -rf -- ..?* .[!.]* *; code=$?; kill $!; "
    '[ $code -eq 0 ] && cd / && rmdir "$0" 2>/dev/null; exit $code'
)
_SECONDS_BETWEEN_LINES = 30.0


def mark_claim(client: Client, name: str) -> None:
    """Note on a session's own claim that it is one, so that `--purge` never deletes that of an ordinary run.

    Who may not change claims, or has none yet, marks nothing.
    """
    with suppress(NotFoundError, RightsError):
        client.patch(CLAIMS, render.claim_of(name), {"metadata": {"annotations": {LABEL: name}}})


def may_delete_claim(client: Client, name: str) -> bool:
    """Return whether the claim of a session whose TrainJob is gone was marked, or is gone too."""
    claim = client.find(CLAIMS, render.claim_of(name))
    return claim is None or (claim["metadata"].get("annotations") or {}).get(LABEL) == name


def shared_folder(client: Client, name: str) -> ResultLocation | None:
    """Return where a session's folder of a shared claim is; None if it has a claim of its own, or no pod has begun.

    Args:
        client: of its namespace.
        name: the session, whose TrainJob is there.

    Raises:
        RunError: the cluster cannot be asked.
    """
    seen = read_run(client, name)
    try:
        place = place_of(seen)
    except RunError:  # nothing tells of a pod: none was made, or its workspace is no claim
        return None
    # Any other folder is what the user's own patch names, and may hold more than the session.
    return place if place.folder == name and place.claim != render.claim_of(name) else None


def remember(client: Client, name: str, place: ResultLocation) -> bool:
    """Note on a claim that a session's folder goes, so that this can go on without the session's TrainJob.

    Args:
        client: of its namespace.
        name: the session, whose TrainJob is there.
        place: where its folder is.

    Returns:
        False if the claim does not exist, and so no folder.

    Raises:
        RunError: the claim cannot be changed.
    """
    note = json.dumps({"image": place.image, "pod": place.pod}, sort_keys=True)
    try:
        _note(client, name, place.claim, note)
    except NotFoundError:
        return False
    except RunError as error:
        raise RunError(
            error.code,
            f"session {name} has not ended, because --purge cannot note its folder on claim {place.claim}: "
            f"{error.message}; drop --purge to end it and to keep its folder",
        ) from error
    return True


def remembered(client: Client, name: str) -> ResultLocation | None:
    """Return where the folder of a session is that an earlier `--purge` did not get to delete; None if there is none.

    Args:
        client: of its namespace.
        name: the session, whose TrainJob is gone.

    Raises:
        RunError: the note on the claim is not one (78), or the cluster cannot be asked.
    """
    try:
        claims = client.list(CLAIMS)
    except RightsError:
        return None
    for claim in claims:
        note = (claim["metadata"].get("annotations") or {}).get(_key(name))
        if note is not None:
            called = str(claim["metadata"]["name"])
            try:
                told = json.loads(note)
                return ResultLocation(called, name, str(told["image"]), dict(told["pod"]))
            except (KeyError, TypeError, ValueError) as error:
                raise RunError(
                    ExitCode.CONFIG,
                    f"claim {called} has the annotation {_key(name)}, which `stoker rl down` did not write: delete the "
                    f"annotation, and the folder {name} of the claim",
                ) from error
    return None


def clear(client: Client, name: str, place: ResultLocation) -> None:
    """Delete a session's folder of a shared claim, through a pod that lives only as long as that takes.

    Args:
        client: of its namespace.
        name: the session, of which no pod is left.
        place: where its folder is.

    Raises:
        RunError: the pod does not start, or may not delete it; the message says what stays.
    """
    again = f"`stoker rl down {name} --purge{client.options}`"
    advice = f"remove what keeps it from starting, then repeat {again}"
    try:
        node = node_of(client.get(CLAIMS, place.claim), client.list(PODS))
        with pod_with(client, name, place, node, advice, writes=True) as pod:
            command = ["sh", "-c", _CLEAR, f"{MOUNT}/{name}", f"{_SECONDS_BETWEEN_LINES:g}"]
            for _ in client.exec(pod, CONTAINER, command):
                say(f"session {name}: still deletes its folder {name} of claim {place.claim}")
    except RunError as error:
        raise RunError(
            error.code,
            f"session {name} has ended, but its folder {name} of claim {place.claim} stays, whole or in part, until "
            f"{again} has deleted it: {error.message}",
        ) from error
    _note(client, name, place.claim, None)


def _note(client: Client, name: str, claim: str, note: str | None) -> None:
    client.patch(CLAIMS, claim, {"metadata": {"annotations": {_key(name): note}}})


def _key(name: str) -> str:
    return f"{PURGE}/{name}"
