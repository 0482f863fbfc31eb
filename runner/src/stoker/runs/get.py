"""Downloads a run's result from its claim, through a pod that lives only as long as that takes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stoker.cluster.patches import patched
from stoker.contract.exits import ExitCode
from stoker.contract.words import say
from stoker.runs.client import Client
from stoker.runs.errors import ClusterError, NotFoundError, ObjectRefusedError, RightsError
from stoker.runs.getter import CONTAINER, LABEL, MOUNT, ResultLocation, node_of, place_of, pod_of
from stoker.runs.kinds import CLAIMS, PODS
from stoker.runs.read import Seen, read_run, runtime_of
from stoker.runs.run import part
from stoker.runs.run import pod_of as seen_pod
from stoker.runs.transfer import RemoteFile, bring, chosen, claim_folder, remote_files

_START_SECONDS, _LOOK_SECONDS = 300.0, 1.0


@dataclass(frozen=True, slots=True)
class ResultSelection:
    """What to bring.

    Attributes:
        path: the folder in the workspace.
        only: patterns of files; none for all.
        everything: True to bring checkpoints too.
        image: another image than the run's; empty for its own.
        claim: another claim than the run's; empty for its own.
    """

    path: str
    only: tuple[str, ...] = ()
    everything: bool = False
    image: str = ""
    claim: str = ""


@dataclass(frozen=True, slots=True)
class Brought:
    """What came.

    Attributes:
        folder: where it is.
        files: all files that are there now.
        fetched: how many of them were brought this time.
        bytes: the size of all.
    """

    folder: str
    files: tuple[str, ...]
    fetched: int
    bytes: int


Watch = Callable[[RemoteFile, int, int], Callable[[int], None]]


def get(client: Client, name: str, folder: Path, wanted: ResultSelection, watch: Watch) -> Brought:
    """Bring a run's files.

    Args:
        client: the cluster.
        name: the run. If its TrainJob is gone, `wanted.image` is needed to read its claim.
        folder: where they go: new, empty, or that of an earlier try.
        wanted: which files.
        watch: called with each file, its number and how many there are; returns what is told of the bytes that come.

    Raises:
        RunError: there is no result, it cannot be read, or the folder is not free.
        OSError: the folder cannot be written to.
    """
    seen = _run(client, name, wanted)
    place = place_of(seen, wanted.image, wanted.claim)
    claim = _claim(client, name, place.claim, seen, wanted)
    claim_folder(
        folder,
        {
            "run": name,
            "namespace": client.namespace,
            "claim": place.claim,
            "uid": str(part(claim, "metadata").get("uid")),
            "path": wanted.path,
        },
    )
    advice = "--image names another image"
    with pod_with(client, name, place, node_of(claim, client.list(PODS)), advice) as pod:

        def execute(command: Sequence[str]) -> Iterator[bytes]:
            return client.exec(pod, CONTAINER, command)

        root = "/".join(filter(None, (MOUNT, place.folder.strip("/"), wanted.path.strip("/"))))
        files = chosen(remote_files(execute, root), wanted.only, wanted.everything)
        if not files:
            told = (
                f" that fit --only {' --only '.join(wanted.only)}: a pattern is a file's name, its path in "
                f"{wanted.path}, or a folder there, such as '*.json'; --path names another folder"
                if wanted.only
                else ", or only checkpoints: `--all` brings these too, `--path .` the whole workspace"
            )
            raise ClusterError(ExitCode.NO_INPUT, f"{name} has no files in {wanted.path}{told}")
        fetched = sum(
            bring(execute, root, file, folder, watch(file, number, len(files)))
            for number, file in enumerate(files, start=1)
        )
    return Brought(str(folder), tuple(file.path for file in files), fetched, sum(file.size for file in files))


def _claim(client: Client, name: str, claim: str, seen: Seen, wanted: ResultSelection) -> Mapping[str, Any]:
    """Return the claim to read.

    Raises:
        NotFoundError: it does not exist.
    """
    try:
        return client.get(CLAIMS, claim)
    except NotFoundError as error:
        if wanted.claim:
            raise
        gone = (
            f"the claim {claim} of {name} was deleted, and its result with it; --claim names another"
            if seen.run.state.ended
            else f"{name} has no claim {claim} yet, and so no result: `stoker explain {seen.named}` says why"
        )
        raise NotFoundError(ExitCode.NO_INPUT, gone) from error


def _run(client: Client, name: str, wanted: ResultSelection) -> Seen:
    """Return the run; of one that was deleted, what its claim is called after."""
    try:
        seen = read_run(client, name)
    except NotFoundError as error:
        claim = wanted.claim or f"initializer-{name}"
        if error.code is ExitCode.CONFIG or client.find(CLAIMS, claim) is None:
            raise
        if not wanted.image:
            raise NotFoundError(
                ExitCode.NO_INPUT,
                f"the run {name} was deleted, but its claim {claim} still exists: name an image with Python that can "
                "read it, such as the run's, with --image",
            ) from error
        return Seen({"metadata": {"name": name}}, None, (), ())
    if seen.jobset is None and not seen.pods:
        # Trainer deletes the JobSet at a run's deadline. Its runtime tells what the pods had.
        with suppress(NotFoundError, RightsError):
            if runtime := runtime_of(client, seen.trainjob):
                return replace(seen, jobset=patched(seen.trainjob, runtime)["spec"]["template"])
    return seen


@contextmanager
def pod_with(
    client: Client, run: str, place: ResultLocation, node: str, advice: str, *, writes: bool = False
) -> Iterator[str]:
    """Have a pod with the claim while the body runs; yields its name. Whatever happens, the pod goes.

    Args:
        client: the cluster.
        run: the run's name.
        place: where its files are.
        node: the node that the pod must go to; empty for any.
        advice: what the user can do if the pod does not start.
        writes: True to have the claim writable.

    Raises:
        ClusterError: the pod cannot be made, does not start, or ends before the body does.
    """
    for left in client.list(PODS, f"{LABEL}={run[:63]}"):
        # Of an earlier call that was killed: its pod has ended by itself.
        if part(left, "status").get("phase") in ("Succeeded", "Failed"):
            client.delete(PODS, str(left["metadata"]["name"]), grace_seconds=0)
    body = pod_of(run, secrets.token_hex(3), place, node, writes=writes)
    name = str(body["metadata"]["name"])
    client.create(PODS, body, dry_run=True)  # what is refused here has left nothing to remove
    try:
        client.create(PODS, body)
        say(f"{'changing' if writes else 'reading'} claim {place.claim} through pod {name}")
        does = f"{'changes' if writes else 'reads'} the claim"
        with _needing(client, name, does):
            _wait_ready(client, name, does, advice)
            yield name
    finally:
        client.delete(PODS, name, grace_seconds=0)


@contextmanager
def _needing(client: Client, pod: str, does: str) -> Iterator[None]:
    """Say what it means that a pod of ours is not found (404), or that one which has ended refuses commands (400).

    Raises:
        ClusterError: it is gone or has ended.
    """
    try:
        yield
    except (NotFoundError, ObjectRefusedError) as error:
        found = client.find(PODS, pod)
        if found is not None and seen_pod(found).phase == "Running":
            raise
        raise ClusterError(
            ExitCode.UNAVAILABLE,
            f"pod {pod}, which {does}, is gone or has ended: repeat the command, which goes on where it was",
        ) from error


def _wait_ready(client: Client, name: str, does: str, advice: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        pod = seen_pod(client.get(PODS, name))
        if pod.phase == "Running":
            return
        hopeless = pod.waits.startswith(("ErrImage", "ImagePull", "InvalidImage", "Create", "Run"))
        if pod.ending or hopeless or time.monotonic() > deadline:
            if pod.waits:
                told = f"{pod.waits}: {pod.message}"
                # Another image finds no node either.
                advice = "correct what this names" if pod.waits == "Unschedulable" else advice
            elif pod.ending:
                told = pod.ending.told
            else:
                told, advice = "its node still pulls the image or mounts the claim", "repeat the command"
            raise ClusterError(
                ExitCode.UNAVAILABLE,
                f"the pod that {does} does not start ({told}): {advice}; see `kubectl get events{client.there}`",
            )
        time.sleep(_LOOK_SECONDS)
