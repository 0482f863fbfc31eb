"""Makes a session with the user's own credentials, and waits until its samplers answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say
from stoker.runs.act import refuse_invalid
from stoker.runs.client import Client
from stoker.runs.errors import ExistsError, RightsError
from stoker.runs.kinds import CLAIMS, CLUSTER_RUNTIMES, JOBS, PODS, RUNTIMES, TRAINJOBS
from stoker.runs.run import QUEUE
from stoker.sessions import folder, places, render
from stoker.sessions.kinds import OWN
from stoker.sessions.queue import check_queue, held_in
from stoker.sessions.render import LABEL, Session
from stoker.sessions.sharing import Claim, check_claims, check_lease, limited, take_place
from stoker.tinker.options import KEY_PREFIX

_SECONDS_BETWEEN_LOOKS = 2.0
# For the jobs of a TrainJob to be there.
_JOB_SECONDS = 60.0
_KEY_BYTES = 32

Object = dict[str, Any]


def key_for(endpoint: int | None) -> str:
    """Return a new key; the tinker client asks how one begins."""
    return ("" if endpoint is None else KEY_PREFIX) + secrets.token_hex(_KEY_BYTES)


def runtime_of(client: Client, trainjob: Mapping[str, Any]) -> Object:
    """Return the runtime of a TrainJob.

    Raises:
        RunError: there is none of that name (66), it is one of the namespace and the TrainJob does not say so (64), or
            the cluster cannot be asked.
    """
    reference = trainjob["spec"]["runtimeRef"]
    name = str(reference["name"])
    if reference.get("kind", CLUSTER_RUNTIMES.kind) == RUNTIMES.kind:
        return client.get(RUNTIMES, name)
    try:
        known = {str(one["metadata"]["name"]): one for one in client.list(CLUSTER_RUNTIMES, everywhere=True)}
    except RightsError:
        _refuse_own(client, name)
        raise
    if name not in known:
        _refuse_own(client, name)
        there = ", ".join(sorted(known)) or "none at all"
        raise RunError(
            ExitCode.NO_INPUT, f"the cluster has no runtime {name}: choose another --runtime (it has {there})"
        )
    return known[name]


def _refuse_own(client: Client, name: str) -> None:
    """Say how to use a runtime of the namespace, if there is one of that name."""
    with suppress(RightsError):
        if client.find(RUNTIMES, name) is not None:
            raise RunError(
                ExitCode.USAGE,
                f"the runtime {name} is one of namespace {client.namespace}: write a TrainJob with `runtimeRef: "
                f"{{name: {name}, kind: {RUNTIMES.kind}}}` into a file, and name the file: `stoker rl up NAME FILE`",
            )


def up(
    client: Client,
    trainjob: Mapping[str, Any],
    session: Session,
    claim: Claim | None = None,
    *,
    turns: bool = False,
) -> Object:
    """Make a session, or leave it as it is if it is there with the same values. Nothing is left of one that fails.

    Args:
        client: of its namespace.
        trainjob: what it runs.
        session: what it is beside that.
        claim: a device that it shares with other sessions; None for none.
        turns: True to make the Lease by which its samplers take turns at the device, if it is not there.

    Returns:
        its TrainJob, as the cluster has it.

    Raises:
        RunError: it cannot be made: what the user wrote is wrong (64, or the exit code that its pods would end with),
            something is missing (66, 78), or the cluster refuses.
    """
    runtime = runtime_of(client, trainjob)
    wanted = render.session_trainjob(trainjob, session, runtime)
    wanted = limited(wanted, check_claims(client, runtime, claim), claim, client.namespace)
    if session.queue is not None:
        check_queue(client, session.queue)
    check_lease(client, runtime, turns=turns)
    endpoint = render.endpoint_of(runtime)
    name = str(wanted["metadata"]["name"])
    there = client.find(TRAINJOBS, name)
    if there is None:
        _refuse_remains(client, name)
        refuse_invalid(wanted, runtime)
        there = client.create(TRAINJOBS, wanted)
        try:
            _complete(client, there, endpoint)
            held = take_place(client, there, runtime, claim, turns=turns)
        except BaseException:
            client.delete(TRAINJOBS, name)
            with suppress(RunError):  # JobSet may have made it by now, empty
                client.delete(CLAIMS, render.claim_of(name))
            raise
        say(f"session {name}: made in namespace {client.namespace}")
    else:
        _refuse_others(there, wanted, client.options)
        _complete(client, there, endpoint)
        held = take_place(client, there, runtime, claim, turns=turns)
        say(f"session {name}: already exists with these values")
    if held:
        say(f"session {name}: starts no pods yet, because {held}. The same command looks again, and waits with --wait")
        return client.get(TRAINJOBS, name)
    count = render.samplers_in(session, runtime)
    if session.samplers is not None:
        _scale(client, name, count)
    return there


def wait(
    client: Client,
    name: str,
    count: int,
    seconds: float,
    *,
    endpoint: bool = False,
    claim: Claim | None = None,
    turns: bool = False,
    scale: bool = False,
) -> None:
    """Wait until all samplers of a session answer, and say what it waits for.

    Args:
        client: of its namespace.
        name: the session.
        count: how many samplers it has.
        seconds: how long.
        endpoint: wait for its endpoint for the tinker client too.
        claim: as for `up`, for a session that waits for a place at it.
        turns: as for `up`.
        scale: give its samplers' job that number of pods, whenever it is there.

    Raises:
        RunError: it has failed (70), or is not ready in time (75): it goes on.
    """
    deadline = time.monotonic() + seconds
    told = ""
    while True:
        trainjob = client.get(TRAINJOBS, name)
        ended = render.ending_of(trainjob)
        if ended:
            state, why = ended
            if state == "Complete":
                say(f"session {name}: has finished already")
                return
            raise RunError(
                ExitCode.CRASHED,
                f"session {name} has failed: {why}; see `stoker logs {name}{client.options}`, then `stoker rl down "
                f"{name}{client.options}`",
            )
        held = ""
        if places.waits(trainjob):
            held = take_place(client, trainjob, runtime_of(client, trainjob), claim, turns=turns)
        # At each look: a restart makes the job anew, with the runtime's number.
        scaled = not scale or _scaled(client, name, count)
        pods = client.list(PODS, f"{LABEL}={name}")
        ready = sum(1 for pod in pods if role_of(pod) == "sampler" and is_ready(pod))
        serving = not endpoint or any(role_of(pod) == "node" and is_ready(pod) for pod in pods)
        if ready >= count and serving and scaled:
            folder.mark_claim(client, name)
            return
        why = held or "; ".join(dict.fromkeys(_state(pod) for pod in pods)) or _without_pods(client, trainjob)
        now = f"{ready} of {count} samplers ready; {'' if serving else 'the endpoint is not; '}{why}"
        if now != told:
            say(f"session {name}: {now}")
            told = now
        if time.monotonic() >= deadline:
            raise RunError(
                ExitCode.STOPPED,
                f"session {name} is not ready after {seconds:g} s: {now}. "
                f"{'The same command waits again' if held else 'It goes on'}: `stoker rl list{client.options}` shows "
                f"it, and `stoker rl down {name}{client.options}` ends it",
            )
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def role_of(pod: Mapping[str, Any]) -> str:
    """Return what a pod of a session does."""
    labels = pod["metadata"].get("labels") or {}
    return str(labels.get("stoker.dev/role") or labels.get("jobset.sigs.k8s.io/replicatedjob-name") or "pod")


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod takes requests."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    going = pod["metadata"].get("deletionTimestamp") is not None
    return not going and any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def _without_pods(client: Client, trainjob: Mapping[str, Any]) -> str:
    """Return what a session without pods waits for."""
    metadata = trainjob["metadata"]
    queue = (metadata.get("labels") or {}).get(QUEUE)
    who, why = "the controller has made none", ""
    if queue:
        who, why = f"queue {queue} has not admitted it", held_in(client, trainjob, queue)
    more = f"`stoker explain {metadata['name']}{client.options}` tells more"
    return f"there are no pods yet: {who} ({f'{why}; ' if why else ''}{more})"


def _state(pod: Mapping[str, Any]) -> str:
    status = pod.get("status") or {}
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "PodInitializing"):
            return f"{role_of(pod)}: {one['name']} {waiting['reason']}"
    for one in status.get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return f"{role_of(pod)}: {one.get('message') or one.get('reason')}"
    return f"{role_of(pod)}: {status.get('phase') or 'Pending'}"


def _refuse_others(there: Mapping[str, Any], wanted: Mapping[str, Any], options: str) -> None:
    name = there["metadata"]["name"]
    down = f"`stoker rl down {name}{options}`"
    if not render.is_session(there):
        raise RunError(
            ExitCode.USAGE, f"TrainJob {name} exists but is not a session: choose another name, or delete the TrainJob"
        )
    again = f"{down} first, or choose another name"
    ended = render.ending_of(there)
    if ended:
        raise RunError(ExitCode.USAGE, f"session {name} has ended ({ended[0]}): {again}")
    if there["metadata"].get("deletionTimestamp"):
        raise RunError(ExitCode.USAGE, f"session {name} is being deleted: wait for {down}")
    changed = render.differences(there, wanted)
    if changed:
        raise RunError(
            ExitCode.USAGE, "\n".join(f"session {name} is up with another value: {one}; {again}" for one in changed)
        )


def _refuse_remains(client: Client, name: str) -> None:
    claim = render.claim_of(name)
    if client.find(CLAIMS, claim) is not None:
        raise RunError(
            ExitCode.USAGE,
            f"claim {claim} of an earlier session or run still exists: choose another name, or fetch what you need "
            f"with `stoker get {name} FOLDER --image IMAGE{client.options}` (IMAGE is that of its runtime) and delete "
            f"it with `stoker rl down {name} --purge{client.options}`",
        )
    half = folder.remembered(client, name)
    if half is not None:
        raise RunError(
            ExitCode.USAGE,
            f"the folder {name} of claim {half.claim} is only half deleted: finish it with `stoker rl down {name} "
            f"--purge{client.options}`, or choose another name",
        )


def _complete(client: Client, trainjob: Mapping[str, Any], endpoint: int | None) -> None:
    """Make what a session has beside its TrainJob, as far as it is not there."""
    name, uid = str(trainjob["metadata"]["name"]), trainjob["metadata"]["uid"]
    kinds = {kind.kind: kind for kind in OWN}
    for made in render.own_objects(name, client.namespace, key_for(endpoint), endpoint):
        kind, called = kinds[made["kind"]], made["metadata"]["name"]
        there = client.find(kind, called)
        if there is None:
            try:
                there = client.create(kind, render.owned(made, trainjob))
            except ExistsError:  # somebody makes the same session at the same time
                there = client.get(kind, called)
        if not _belongs(there, name, uid):
            raise RunError(
                ExitCode.USAGE,
                f"{kind.kind} {called} exists but is not of this session: choose another name, or delete it",
            )


def _belongs(there: Mapping[str, Any], name: str, uid: str) -> bool:
    metadata = there["metadata"]
    owners = [one.get("uid") for one in metadata.get("ownerReferences") or ()]
    return (metadata.get("labels") or {}).get(LABEL) == name and owners in ([], [uid])


def _scale(client: Client, name: str, count: int) -> None:
    """Give the samplers' job another number of pods, as soon as it is there."""
    deadline = time.monotonic() + _JOB_SECONDS
    told = False
    while not _scaled(client, name, count):
        if not told:
            say(f"session {name}: waits up to {_JOB_SECONDS:g} s for its samplers' job, to make them {count}")
            told = True
        if time.monotonic() >= deadline:
            say(f"session {name}: its samplers' job is not there yet: --wait makes them {count} later, or repeat this")
            return
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _scaled(client: Client, name: str, count: int) -> bool:
    """Give the samplers' job another number of pods; return whether it is there."""
    job = f"{name}-sampler-0"
    there = client.find(JOBS, job)
    if there is not None and int(there["spec"].get("completions") or 1) != count:
        client.patch(JOBS, job, {"spec": {"parallelism": count, "completions": count}})
    return there is not None
