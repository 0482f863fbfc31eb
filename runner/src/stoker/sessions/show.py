"""Shows sessions: which there are, and what their pods have written."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.runs.client import Client
from stoker.runs.kinds import PODS, TRAINJOBS
from stoker.sessions import render
from stoker.sessions.render import LABEL
from stoker.sessions.up import ending_of, is_ready, role_of

# The container to read in each role's pods.
_CONTAINERS = {"node": "node", "sampler": "vllm"}
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"))


@dataclass(frozen=True, slots=True)
class Row:
    """A session in a list.

    Attributes:
        name: its name.
        runtime: what it runs on.
        state: `starting`, `up`, `queued`, `Complete` or `Failed`.
        samplers: ready ones and all.
        age: seconds since it was made.
        ends_in: seconds that its time limit leaves; None without one.
        url: of its samplers.
    """

    name: str
    runtime: str
    state: str
    samplers: tuple[int, int]
    age: float
    ends_in: float | None
    url: str


def rows(client: Client, now: float | None = None) -> list[Row]:
    """Return the sessions of a namespace, by name.

    Args:
        client: of the namespace.
        now: seconds since the epoch; None for the time.

    Raises:
        RunError: the cluster cannot be asked.
    """
    now = time.time() if now is None else now
    trainjobs = [one for one in client.list(TRAINJOBS, LABEL) if render.is_session(one)]
    pods = client.list(PODS, LABEL)
    found = []
    for one in sorted(trainjobs, key=lambda one: str(one["metadata"]["name"])):
        name = str(one["metadata"]["name"])
        mine = [pod for pod in pods if pod["metadata"]["labels"][LABEL] == name]
        samplers = [pod for pod in mine if role_of(pod) == "sampler" and not _is_over(pod)]
        ready = sum(map(is_ready, samplers))
        ended, limit = ending_of(one), one["spec"].get("activeDeadlineSeconds")
        age = now - _time(one["metadata"].get("creationTimestamp"), now)
        if ended:
            state = ended[0]
        elif one["spec"].get("suspend"):
            state = "queued"
        else:
            state = "up" if samplers and ready == len(samplers) else "starting"
        found.append(
            Row(
                name,
                str(one["spec"]["runtimeRef"]["name"]),
                state,
                (ready, len(samplers)),
                age,
                None if limit is None or ended else limit - age,
                render.url_of(name, client.namespace),
            )
        )
    return found


def table(found: list[Row]) -> str:
    """Return rows as text with columns."""
    lines = [("NAME", "RUNTIME", "STATE", "SAMPLERS", "AGE", "ENDS IN", "URL")]
    for row in found:
        ready, count = row.samplers
        left = "-" if row.ends_in is None else duration(row.ends_in)
        lines.append((row.name, row.runtime, row.state, f"{ready}/{count}", duration(row.age), left, row.url))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def duration(seconds: float) -> str:
    """Return a time in two units at most, such as `1h30m`."""
    left, text = max(0, int(seconds)), ""
    for size, unit in _UNITS:
        number, left = divmod(left, size)
        if number:
            if text:
                return f"{text}{number}{unit}"
            text = f"{number}{unit}"
        elif text:
            return text
    return text or f"{left}s"


def log_of(
    client: Client,
    name: str,
    role: str,
    index: int,
    container: str = "",
    *,
    follow: bool = False,
    tail: int | None = None,
) -> Iterator[bytes]:
    """Yield the lines that one pod of a session has written.

    Args:
        client: of its namespace.
        name: the session.
        role: `node` or `sampler`, or the job of an initializer.
        index: which of them.
        container: whose; empty for the one that does the work.
        follow: True to go on until it ends.
        tail: so many last lines; None for all.

    Raises:
        RunError: there is no such session or pod (66), or it has no log.
    """
    pods = [pod for pod in client.list(PODS, f"{LABEL}={name}") if role_of(pod) == role]
    there = {_index(pod): pod for pod in sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))}
    if index not in there:
        if client.find(TRAINJOBS, name) is None:
            raise RunError(
                ExitCode.NO_INPUT,
                f"there is no session {name} in namespace {client.namespace}: see `stoker rl list`",
            )
        known = ", ".join(map(str, sorted(there))) or "none yet"
        raise RunError(ExitCode.NO_INPUT, f"session {name} has no {role} {index}: there is {known}")
    pod = there[index]
    yield from client.log(
        str(pod["metadata"]["name"]), container or _CONTAINERS.get(role, role), follow=follow, tail=tail
    )


def _index(pod: Mapping[str, Any]) -> int:
    metadata = pod["metadata"]
    name = "batch.kubernetes.io/job-completion-index"
    return int((metadata.get("labels") or {}).get(name) or (metadata.get("annotations") or {}).get(name) or 0)


def _is_over(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _time(text: str | None, otherwise: float) -> float:
    if text is None:
        return otherwise
    return datetime.fromisoformat(text).astimezone(UTC).timestamp()
