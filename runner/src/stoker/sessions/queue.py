"""A session's queue: whether Kueue has it, and what Kueue waits for before it lets the session start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.contract.exits import RunError
from stoker.runs.client import Client
from stoker.runs.errors import NotFoundError, RightsError
from stoker.runs.kinds import LOCAL_QUEUES
from stoker.runs.queueing import held_by
from stoker.runs.read import workloads_of


def check_queue(client: Client, queue: str) -> None:
    """Look whether a queue is there: without Kueue nothing would limit its sessions, and without it they never start.

    Args:
        client: of its namespace.
        queue: its name.

    Raises:
        RunError: there is none of that name (66), or no Kueue (78).
    """
    try:
        client.get(LOCAL_QUEUES, queue)
    except NotFoundError as error:
        raise RunError(error.code, f"--queue {queue}: {error.message}") from error
    except RightsError:
        return  # Kueue looks too: the session waits, and `stoker explain` says why


def held_in(client: Client, trainjob: Mapping[str, Any], queue: str) -> str:
    """Return why Kueue has not admitted a session, in Kueue's words; empty if the user may not see them.

    Args:
        client: of its namespace.
        trainjob: the session's.
        queue: the queue that it names.

    Raises:
        RunError: the cluster cannot be asked.
    """
    own, others = workloads_of(client, trainjob, [])
    return "" if own is None else held_by(own, others, queue, client.namespace, stopped=True)[0]
