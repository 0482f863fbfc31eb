"""Shows which sessions there are."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from stoker.runs.client import Client
from stoker.runs.kinds import PODS, TRAINJOBS
from stoker.runs.run import counted_from
from stoker.runs.words import Table, duration
from stoker.sessions import render
from stoker.sessions.render import LABEL, ending_of
from stoker.sessions.up import is_ready, role_of


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session in a list.

    Attributes:
        name: its name.
        runtime: what it runs on.
        state: `starting`, `up`, `queued`, `Complete` or `Failed`.
        samplers: ready ones and all.
        age: seconds since it was made.
        ends_in: seconds that its time limit leaves; None without one, and while nothing counts them.
        url: of its samplers.
    """

    name: str
    runtime: str
    state: str
    samplers: tuple[int, int]
    age: float
    ends_in: float | None
    url: str

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more, so that nothing but its remains are there."""
        return self.state in ("Complete", "Failed")


def rows(client: Client, now: float | None = None) -> list[SessionRow]:
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
        since = counted_from(one)
        counts = limit is not None and not ended and since is not None
        if ended:
            state = ended[0]
        elif one["spec"].get("suspend"):
            state = "queued"
        else:
            state = "up" if samplers and ready == len(samplers) else "starting"
        found.append(
            SessionRow(
                name,
                str(one["spec"]["runtimeRef"]["name"]),
                state,
                (ready, len(samplers)),
                age,
                max(0.0, limit - (now - _time(since or None, now))) if counts else None,
                render.url_of(name, client.namespace),
            )
        )
    return found


def table(found: Iterable[SessionRow]) -> Table:
    """Return the table of `stoker rl list`."""
    heads = ("NAME", "RUNTIME", "STATE", "SAMPLERS", "AGE", "ENDS IN", "URL")
    rows = tuple(
        (
            row.name,
            row.runtime,
            row.state,
            "{}/{}".format(*row.samplers),
            duration(row.age),
            duration(row.ends_in) or "-",
            row.url,
        )
        for row in found
    )
    return Table(heads, rows, ("NAME", "STATE", "SAMPLERS", "URL", "ENDS IN", "AGE", "RUNTIME"))


def _is_over(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _time(text: str | None, otherwise: float) -> float:
    if text is None:
        return otherwise
    return datetime.fromisoformat(text).astimezone(UTC).timestamp()
