"""Starts an engine, and ends it when its permit to use the device runs out: `guard.py FOLDER COMMAND…`.

It is one file without imports of ours, because it runs in the engine's container. Only a process beside the engine can
stop it whatever becomes of the one that asks for the device: killed, stopped, or without an answer of the API.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import TypeVar

# States of a permit. While it is STARTING something may yet let the engine run; RUNNING: nothing is under way; LOADING:
# the engine is paused to load weights, and then let go on; PARKING: it is asked to park. One that ends while it is
# LOADING or PARKING must not start again: what it is told next is not for the one after it. REFUSED: whoever asks for
# the device has ended for good before it had it, so no permit will come.
PARKED, STARTING, RUNNING, LOADING, PARKING, STOP = "parked", "starting", "running", "loading", "parking", "stop"
REFUSED = "refused"
# States of the guard: no engine, an engine, and no engine any more because the guard is ending.
IDLE, ENGINE, ENDED = "idle", "engine", "ended"

_TICK_SECONDS = 0.05
_BEAT_SECONDS = 0.5
# Without a sign of life for so long the guard does not count.
SILENT_SECONDS = 3.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_STOPPED, _CONFIG = 75, 78


_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class Permit:
    """What the engine may do.

    Attributes:
        state: PARKED, STARTING, RUNNING, LOADING, PARKING, STOP or REFUSED.
        until: when to end the engine, by `now`.
        term: number of the turn.
        order: number of the permit; a larger one is newer.
    """

    state: str = PARKED
    until: float = 0.0
    term: int = 0
    order: int = 0

    @property
    def allows(self) -> bool:
        """Whether an engine that runs may use the device until then."""
        return self.state in (STARTING, RUNNING, LOADING, PARKING)


@dataclass(frozen=True, slots=True)
class Sight:
    """What the guard sees.

    Attributes:
        state: IDLE, ENGINE or ENDED.
        order: number of the newest permit that it has kept to.
        beat: when it looked, by `now`.
        since: when it started the engine, by `now`.
    """

    state: str = IDLE
    order: int = -1
    beat: float = 0.0
    since: float = 0.0


def now() -> float:
    """Return seconds since this machine started. All its containers have this clock, and it never stands still."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def permit_path(folder: Path) -> Path:
    """Return the file with the permit."""
    return folder / "permit.json"


def sight_path(folder: Path) -> Path:
    """Return the file with what the guard sees."""
    return folder / "guard.json"


def lock_path(folder: Path) -> Path:
    """Return the file that guard and engine keep locked as long as one of them lives."""
    return folder / "guard.lock"


def nobody_lives(folder: Path) -> bool:
    """Return whether neither a guard nor its engine is there any more. The kernel knows, whoever was killed."""
    try:
        with lock_path(folder).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def read_permit(folder: Path) -> Permit | None:
    """Return the permit; None without a whole one."""
    return _read(permit_path(folder), Permit)


def read_sight(folder: Path) -> Sight | None:
    """Return what the guard sees; None before it has looked."""
    return _read(sight_path(folder), Sight)


def write(path: Path, content: Permit | Sight) -> None:
    """Write a permit or a sight, as a whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(content)))
    new.rename(path)


def _read(path: Path, kind: type[_Kind]) -> _Kind | None:
    try:
        return kind(**json.loads(path.read_bytes()))
    except (OSError, TypeError, ValueError):
        return None


def must_end(permit: Permit | None, time_now: float) -> bool:
    """Return whether an engine that runs must end."""
    return permit is None or permit.state == STOP or (permit.allows and time_now >= permit.until)


def may_start(permit: Permit | None, time_now: float) -> bool:
    """Return whether an engine may start: that uses the device already."""
    return permit is not None and permit.state in (STARTING, RUNNING) and time_now < permit.until


class PermitGuard:
    """Keeps one engine to its permit.

    Args:
        folder: shared with the process that writes the permit.
        command: starts the engine.
    """

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        self._folder, self._command = folder, [*command]
        self._engine: subprocess.Popen[bytes] | None = None
        self._permit: Permit | None = None
        self._sight = Sight()
        self._since = 0.0
        self._stopped = False
        self._lock = -1

    def run(self) -> int:
        """Guard until the engine ends by itself, none may ever start, or a signal comes; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._lock = os.open(lock_path(self._folder), os.O_RDWR | os.O_CREAT, 0o666)
        while not self._locked():
            if self._stopped:
                return _STOPPED
            time.sleep(_TICK_SECONDS)
        # What an earlier guard has told is of another engine: ENDED must not stand while this one starts its own.
        write(sight_path(self._folder), self._sight)
        try:
            while not self._stopped:
                code = self._look()
                if code is not None:
                    return code
                time.sleep(_TICK_SECONDS)
            return self._end_in_peace()
        finally:
            self._kill()
            self._tell(ENDED)

    def _locked(self) -> bool:
        """Return whether no engine of another guard lives."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _look(self) -> int | None:
        # A permit that cannot be read changes nothing: the last one runs out.
        self._permit = read_permit(self._folder) or self._permit
        if self._engine is None and self._permit is not None and self._permit.state == REFUSED:
            print("[stoker] no engine starts: `stoker slice run` beside it says why", file=sys.stderr, flush=True)
            return _CONFIG
        if self._engine is not None and must_end(self._permit, now()):
            self._kill()
        elif self._engine is not None and (code := self._engine.poll()) is not None:
            return code if code > 0 else _STOPPED  # 0 would count as done for good
        elif self._engine is None and may_start(self._permit, now()):
            self._start()
        self._beat(IDLE if self._engine is None else ENGINE)
        return None

    def _start(self) -> None:
        # The guard must not die and leave an engine behind that nobody guards.
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        parent = os.getpid()

        def with_the_guard() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(_STOPPED)

        self._engine = subprocess.Popen(
            self._command,
            start_new_session=True,
            pass_fds=[self._lock],
            preexec_fn=with_the_guard,  # noqa: PLW1509 - there are no threads
        )
        self._since = now()

    def _kill(self) -> None:
        if self._engine is not None:
            group = self._engine.pid
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            self._engine.wait()
            # A process that vLLM starts uses the device. It belongs to the guard once vLLM is gone.
            with suppress(ChildProcessError):
                while True:
                    os.waitpid(-group, 0)
            self._engine = None
            print("[stoker] the engine was ended", file=sys.stderr, flush=True)

    def _end_in_peace(self) -> int:
        """Let the engine end as it was told to, as long as its permit lasts."""
        if self._engine is None:
            return _STOPPED
        self._engine.terminate()
        while self._engine.poll() is None and not must_end(self._permit, now()):
            self._permit = read_permit(self._folder) or self._permit
            self._beat(ENGINE)
            time.sleep(_TICK_SECONDS)
        return _STOPPED

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._stopped = True

    def _beat(self, state: str) -> None:
        order = self._permit.order if self._permit else -1
        if (state, order) != (self._sight.state, self._sight.order) or now() >= self._sight.beat + _BEAT_SECONDS:
            self._tell(state)

    def _tell(self, state: str) -> None:
        order = self._permit.order if self._permit else -1
        self._sight = Sight(state, order, now(), self._since)
        # A full disk must not end the engine: the other side hears nothing, and parks it.
        with suppress(OSError):
            write(sight_path(self._folder), self._sight)


def main(words: Sequence[str]) -> int:
    """Guard the engine of a command line."""
    folder, *command = words
    return PermitGuard(Path(folder), command).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
