"""Answers the control calls of a fleet until it is stopped."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass
from pathlib import Path

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say
from stoker.serve.fleet.control import Control, reminding
from stoker.serve.fleet.endpoints import FleetServer
from stoker.serve.fleet.log import Log
from stoker.serve.fleet.replicas import Lookup, Replicas
from stoker.serve.web import port_errors


@dataclass(frozen=True, slots=True)
class FleetService:
    """A fleet.

    Attributes:
        folder: of its desired states.
        ready: `HOST:PORT` of the replicas that requests reach; the host stands for all of them.
        known: the same of all replicas, of those that start too.
        key: file with the key of their API; None for none.
        timeout: seconds that a call may take.
        interval: seconds between two looks at the replicas.
    """

    folder: Path
    ready: str
    known: str
    key: Path | None = None
    timeout: float = 60.0
    interval: float = 2.0


def run(fleet: FleetService, listen: tuple[str, int]) -> None:
    """Answer until SIGTERM; calls that have begun by then are answered too.

    Raises:
        RunError: an address is wrong (64), the folder cannot be read, or the port is taken (78).
    """
    for option, place in (("--ready", fleet.ready), ("--known", fleet.known)):
        host, _, port = place.rpartition(":")
        if not host or not port.isdecimal():
            raise RunError(ExitCode.USAGE, f"{option} {place!r} is not an address: write HOST:PORT")
    log = Log(fleet.folder)
    try:
        newest, _ = log.newest()
    except (OSError, ValueError) as error:
        raise RunError(ExitCode.CONFIG, f"the state in {fleet.folder} cannot be read: {error}") from error
    replicas = Replicas(Lookup(fleet.ready), Lookup(fleet.known), fleet.key)
    control = Control(log, replicas, fleet.timeout)
    with port_errors(*listen):
        web = FleetServer(listen, control, lambda path: Path(path).is_absolute() and Path(path).is_dir())
    ends, stop = {signal.SIGTERM, signal.SIGINT}, threading.Event()
    # A signal waits for sigwait then. A handler would be late for one that comes just before this thread falls asleep.
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    for work in (web.serve_forever, reminding(control, fleet.interval, stop)):
        threading.Thread(target=work, daemon=True).start()
    say(f"generation {newest.generation} of {fleet.folder}; calls on port {listen[1]}")
    signal.sigwait(ends)
    stop.set()
    web.shutdown()
    web.server_close()  # waits for calls under way: one that is cut is neither kept nor undone
