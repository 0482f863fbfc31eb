"""Where the user writes what is fetched and with what: in a TrainJob, or in the values of a server. For messages."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.contract.exits import ExitCode, RunError


@dataclass(frozen=True, slots=True)
class Fields:
    """What to change, in words that a message ends with.

    Attributes:
        given: what holds the URI, as the container knows it or as the user does.
        uri: the field with the URI.
        secret: the secret with the credentials.
        variables: where the variables of this one container are set.
        environment: where those of all such containers are set.
        space: how to get more space.
        volume: how to get a folder that can be written to.
        another: what to do if the target holds something else.
    """

    given: str
    uri: str
    secret: str
    variables: str
    environment: str
    space: str
    volume: str
    another: str


def fields_of(kind: str, user: str) -> Fields:
    """Return the fields of who fetches.

    Args:
        kind: `model` or `dataset`.
        user: STOKER_FETCH_FOR: `trainjob`, which an empty text means too, or `serving`.

    Raises:
        RunError: there is no such user (64).
    """
    if user in ("", "trainjob"):
        job = f"spec.initializer.{kind}"
        return Fields(
            given="STORAGE_URI",
            uri="storageUri",
            secret=f"the secret of {job}.secretRef",
            variables=f"the TrainJob's {job}.env",
            environment="the runtime's env",
            space="enlarge the workspace's claim",
            volume="mount the volume `initializer` there, writable for group 0",
            another="Checkpoints in this workspace may come from it: use another workspace, or set "
            f"STOKER_FETCH_REPLACE=true in {job}.env, and STOKER_RESUME=never in spec.trainer.env, to replace it and "
            "train anew",
        )
    if user == "serving":
        return Fields(
            given="model.uri",
            uri="model.uri",
            secret="the secret of model.secretName",
            variables="model.env, or the secret of model.secretName",
            environment="model.env, or the secret of model.secretName",
            space="raise model.cacheSize, or enlarge the claim of model.cacheClaim",
            volume="make the claim of model.cacheClaim writable for group 0",
            another="Delete that folder from the claim of model.cacheClaim, or name another claim there",
        )
    raise RunError(ExitCode.USAGE, f"STOKER_FETCH_FOR is {user!r}: write trainjob or serving")
