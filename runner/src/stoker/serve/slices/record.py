"""What a Lease says: who holds the device, and who waits for it. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from stoker.contract.exits import ExitCode, RunError

# The annotation with what a Lease has no field for.
ANNOTATION = "stoker.dev/slice"


@dataclass(frozen=True, slots=True)
class Ticket:
    """A place in the queue.

    Attributes:
        holder: who waits.
        number: a smaller number comes first.
        beat: changes as long as the one who waits is alive.
    """

    holder: str
    number: int
    beat: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """What a Lease says. It names no time, because clocks of machines differ.

    Attributes:
        holder: who may use the device; empty if nobody does.
        term: how often somebody took the device.
        beat: changes as long as the holder is alive.
        duration: seconds without a new beat after which the holder has lost the device.
        tickets: the last number that was given out.
        queue: who waits, by number.
    """

    holder: str = ""
    term: int = 0
    beat: int = 0
    duration: float = 0.0
    tickets: int = 0
    queue: tuple[Ticket, ...] = ()


def record_of(lease: Mapping[str, Any]) -> Record:
    """Return what a Lease of the API says.

    Raises:
        RunError: somebody else wrote into it (78).
    """
    metadata, spec = lease.get("metadata") or {}, lease.get("spec") or {}
    text = (metadata.get("annotations") or {}).get(ANNOTATION)
    if not text and spec.get("holderIdentity"):
        raise RunError(
            ExitCode.CONFIG,
            f"Lease {metadata.get('name')} is held by {spec['holderIdentity']}, which is not `stoker slice`: give the "
            "device a Lease of its own",
        )
    try:
        more = json.loads(text) if text else {}
        return Record(
            holder=str(spec.get("holderIdentity") or ""),
            term=int(spec.get("leaseTransitions") or 0),
            beat=int(more.get("beat", 0)),
            duration=float(more.get("duration") or spec.get("leaseDurationSeconds") or 0.0),
            tickets=int(more.get("tickets", 0)),
            queue=tuple(Ticket(str(holder), int(number), int(beat)) for holder, number, beat in more.get("queue", ())),
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise RunError(
            ExitCode.CONFIG,
            f"Lease {metadata.get('name')}: the annotation {ANNOTATION} is not ours ({error}): remove the annotation, "
            "or give the device a Lease of its own",
        ) from error


def lease_of(record: Record, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Lease that says what a record says, for the API.

    Args:
        record: what it shall say.
        before: the Lease as it is. Its version makes the API refuse the new one if somebody else came first.
    """
    metadata, spec = before["metadata"], before.get("spec") or {}
    # For people who look at the Lease; nobody decides by a clock of another machine.
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    taken = record.term != int(spec.get("leaseTransitions") or 0)
    more = {
        "beat": record.beat,
        "duration": record.duration,
        "tickets": record.tickets,
        "queue": [[one.holder, one.number, one.beat] for one in record.queue],
    }
    held = {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": max(1, math.ceil(record.duration)),
        "leaseTransitions": record.term,
        "acquireTime": now if taken else spec.get("acquireTime"),
        "renewTime": now,
    }
    return {
        **before,
        "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), ANNOTATION: json.dumps(more)}},
        "spec": {**spec, **{name: value for name, value in held.items() if value is not None}},
    }
