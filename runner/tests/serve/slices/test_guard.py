"""The guard starts an engine when it may use the device, and ends it when it may not; here with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.contract.exits import ExitCode, RunError
from stoker.serve.slices import guard
from stoker.serve.slices.guard import (
    ENDED,
    ENGINE,
    IDLE,
    LOADING,
    PARKED,
    PARKING,
    REFUSED,
    RUNNING,
    STARTING,
    STOP,
    Permit,
    Sight,
)
from stoker.serve.slices.permits import Fencing, Permits, telling_the_guard, way_to_park

ENGINE_OF = "import os, time, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A guard whose engine writes its process into `pid`."""
    command = [sys.executable, "-I", "-c", ENGINE_OF, str(tmp_path / "pid")]
    process = subprocess.Popen([sys.executable, "-I", guard.__file__, str(tmp_path), *command])
    yield process
    process.kill()
    process.wait()


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def engine_of(folder: Path) -> int:
    wait_for(lambda: (folder / "pid").exists() and (folder / "pid").read_text() != "")
    return int((folder / "pid").read_text())


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def sight_of(folder: Path) -> Sight:
    return guard.read_sight(folder) or Sight(order=-2)


def test_no_engine_without_a_permit_and_none_after_it(tmp_path: Path, guarded: subprocess.Popen[bytes]) -> None:
    permits = Permits(tmp_path)
    wait_for(permits.guarded)
    assert not (tmp_path / "pid").exists()
    permits.use(1, guard.now() + 2.0)
    engine = engine_of(tmp_path)
    os.kill(engine, signal.SIGSTOP)  # what hangs is ended too
    permits.runs()
    permits.extend(guard.now() + 3.0)
    wait_for(lambda: not runs(engine))
    assert guard.now() < (guard.read_permit(tmp_path) or Permit()).until + 30
    assert guarded.poll() is None


WITH_A_CHILD = (
    "import os, sys, pathlib, subprocess, time; subprocess.Popen([sys.executable, '-I', '-c', 'bytearray(300 * 2**20);"
    "import time; time.sleep(600)']); pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
)


def test_the_device_is_free_once_the_engine_counts_as_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-c", WITH_A_CHILD, str(tmp_path / "pid")]
    process = subprocess.Popen([sys.executable, "-I", guard.__file__, str(tmp_path), *command])
    try:
        guard.write(guard.permit_path(tmp_path), Permit(STARTING, guard.now() + 60))
        group = engine_of(tmp_path)
        guard.write(guard.permit_path(tmp_path), Permit(STOP, order=1))
        wait_for(lambda: sight_of(tmp_path).state == IDLE and sight_of(tmp_path).order == 1)
        with pytest.raises(ProcessLookupError):  # not a process of it is left, nor what remains of one
            os.killpg(group, 0)
    finally:
        process.kill()
        process.wait()


def test_a_parked_engine_stays_and_is_ended_by_order(tmp_path: Path, guarded: subprocess.Popen[bytes]) -> None:
    permits = Permits(tmp_path)
    permits.use(1, guard.now() + 5.0)
    engine = engine_of(tmp_path)
    assert permits.way() is Fencing.END  # something may yet let it run
    wait_for(lambda: sight_of(tmp_path).state == ENGINE)
    permits.runs()
    assert permits.way() is Fencing.ASK
    permits.reloading()
    assert permits.way() is Fencing.END
    permits.runs()
    assert permits.way() is Fencing.ASK
    permits.parked()
    permits.reloading()  # not an engine that is parked
    assert permits.way() is Fencing.NOTHING
    time.sleep(5.5)
    assert runs(engine)
    assert permits.end(60)
    assert not runs(engine)
    assert permits.replaced()


def test_the_engine_goes_with_its_guard(tmp_path: Path, guarded: subprocess.Popen[bytes]) -> None:
    Permits(tmp_path).use(1, guard.now() + 600)
    engine = engine_of(tmp_path)
    permits = Permits(tmp_path)
    assert not guard.nobody_lives(tmp_path)
    guarded.kill()
    wait_for(lambda: not runs(engine))
    # Nobody can say so any more, but the kernel knows.
    assert permits.end(60)
    assert sight_of(tmp_path).state != ENDED


def test_a_guard_ends_if_no_permit_will_ever_come(tmp_path: Path, guarded: subprocess.Popen[bytes]) -> None:
    with pytest.raises(RunError, match="no such Lease"), telling_the_guard(tmp_path, 0.0, threading.Event()):
        raise RunError(ExitCode.CONFIG, "no such Lease")
    assert guarded.wait(120) == ExitCode.CONFIG


def test_a_stop_ends_the_wait_for_a_guard(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(RunError, match="no such Lease"), telling_the_guard(tmp_path, 600.0, stop):
        raise RunError(ExitCode.CONFIG, "no such Lease")
    assert guard.read_permit(tmp_path) == Permit(REFUSED)


def test_an_engine_that_had_a_permit_is_not_ended_by_a_later_error(tmp_path: Path) -> None:
    Permits(tmp_path).parked()
    with pytest.raises(RunError, match="the Lease is gone"), telling_the_guard(tmp_path, 600.0, threading.Event()):
        raise RunError(ExitCode.CONFIG, "the Lease is gone")
    assert guard.read_permit(tmp_path) == Permit(PARKED)


def test_a_stop_ends_engine_and_guard(tmp_path: Path, guarded: subprocess.Popen[bytes]) -> None:
    Permits(tmp_path).use(1, guard.now() + 600)
    engine = engine_of(tmp_path)
    guarded.terminate()
    assert guarded.wait(120) == 75
    assert not runs(engine)
    assert sight_of(tmp_path).state == ENDED


def test_no_engine_starts_while_one_is_asked_to_park_or_loads_weights(
    tmp_path: Path, guarded: subprocess.Popen[bytes]
) -> None:
    permits = Permits(tmp_path)
    permits.use(1, guard.now() + 600)
    os.kill(engine_of(tmp_path), signal.SIGKILL)
    assert guarded.wait(120) == 75
    permits.parking()
    again = subprocess.Popen(guarded.args)
    try:
        wait_for(lambda: again.poll() is not None or sight_of(tmp_path) == Sight(IDLE, 1, sight_of(tmp_path).beat))
        assert again.poll() is None
    finally:
        again.kill()
        again.wait()
    assert guard.may_start(Permit(RUNNING, 9.0), 1.0)
    for state in (PARKING, LOADING):
        assert not guard.may_start(Permit(state, 9.0), 1.0)
        assert not guard.must_end(Permit(state, 9.0), 8.9)
        assert guard.must_end(Permit(state, 9.0), 9.0)


def test_the_end_of_an_earlier_guard_is_not_believed_once_another_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.write(guard.sight_path(tmp_path), Sight(ENDED, 7))
    permits = Permits(tmp_path)
    believed = []

    class Starting(guard.PermitGuard):
        """Is about to start its engine."""

        def _look(self) -> int:
            believed.append(permits.end(0.1))
            return 0

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert Starting(tmp_path, ["true"]).run() == 0
    assert believed == [False]


def test_only_an_engine_that_nothing_can_start_again_is_asked() -> None:
    here = Sight(ENGINE, 1, 0.0, 7.0)
    assert way_to_park(Permit(RUNNING, 9.0), here, 7.0) is Fencing.ASK
    assert way_to_park(Permit(STARTING, 9.0), here, 7.0) is Fencing.END
    assert way_to_park(Permit(RUNNING, 9.0), here, 6.0) is Fencing.END  # another engine by now
    assert way_to_park(Permit(RUNNING, 9.0), Sight(IDLE), 0.0) is Fencing.END
    assert way_to_park(Permit(PARKING, 9.0), here, 7.0) is Fencing.END  # nobody knows whether it has
    assert way_to_park(Permit(LOADING, 9.0), here, 7.0) is Fencing.END  # it will be told to go on
    assert way_to_park(Permit(STOP), here, 7.0) is Fencing.END
    assert way_to_park(Permit(PARKED), here, 7.0) is Fencing.NOTHING
    assert way_to_park(None, here, 7.0) is Fencing.END
