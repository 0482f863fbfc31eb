"""A session's folder of a claim that it shares with other runs: where it is, and how it goes."""

from __future__ import annotations

from stoker.contract.exits import RunError
from stoker.runs.client import Client
from stoker.runs.get import pod_with
from stoker.runs.getter import CONTAINER, MOUNT, ResultLocation, node_of, place_of
from stoker.runs.kinds import CLAIMS, PODS
from stoker.runs.read import read_run
from stoker.sessions import render

# Empties the folder, and removes it if the claim's own folder may be changed. A link is removed and never followed.
_CLEAR = (
    '[ -L "$0" ] && exec rm -f -- "$0"; [ -d "$0" ] || exit 0; '
    'cd "$0" && rm -rf -- ..?* .[!.]* * && cd / && { rmdir "$0" 2>/dev/null || true; }'
)


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


def clear(client: Client, name: str, place: ResultLocation) -> None:
    """Delete a session's folder of a shared claim, through a pod that lives only as long as that takes.

    Args:
        client: of its namespace.
        name: the session.
        place: where its folder is.

    Raises:
        RunError: the pod does not start, or may not delete it; the message says what stays.
    """
    try:
        node = node_of(client.get(CLAIMS, place.claim), client.list(PODS))
        with pod_with(client, name, place, node, writes=True) as pod:
            for _ in client.exec(pod, CONTAINER, ["sh", "-c", _CLEAR, f"{MOUNT}/{name}"]):
                pass
    except RunError as error:
        raise RunError(
            error.code, f"session {name} has ended, but its folder {name} of claim {place.claim} stays: {error.message}"
        ) from error
