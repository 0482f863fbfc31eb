"""A version is used when every ready sampler serves it; slow, new and lost samplers hold up nobody; old ones go."""

from __future__ import annotations

import errno
import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from runner.tests.rollouts.publishing import Run
from runner.tests.rollouts.replicas import FakeReplica, Replicas, until
from runner.tests.serve.adapters.samples import make_adapter

from stoker.contract.exits import ExitCode, RunError
from stoker.serve.adapters import live, versions


@pytest.fixture
def run_of(folder: Path) -> Iterator[Callable[..., Run]]:
    """Starts runs that end with the test."""
    made: list[Run] = []

    def start(found: list[FakeReplica], **told: Any) -> Run:
        made.append(Run(folder, found, **told))
        return made[-1]

    yield start
    for run in made:
        run.close()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Path], None]:
    """Writes an adapter as PEFT does."""
    source = make_adapter(tmp_path / "peft")
    (source / "stoker.json").unlink()

    def copy(draft: Path) -> None:
        shutil.copytree(source, draft, dirs_exist_ok=True)

    return copy


def test_a_version_is_usable_when_every_sampler_serves_it(
    replicas: Replicas, run_of: Callable[..., Run], write: Callable[[Path], None]
) -> None:
    found = replicas.start(4, delay=0.05)
    run = run_of(found)
    for version in (1, 2, 7):
        run.publisher.publish(version, write)
        until(partial(run.has, version))
        assert all(f"{run.name}:{version}" in replica.loaded for replica in found)
    told = run.publisher.published()
    assert [(one.version, len(one.samplers)) for one in told] == [(1, 4), (2, 4), (7, 4)]
    assert all(one.spread_seconds >= 0.05 for one in told)
    assert run.publisher.published() == ()
    assert run.fleet.newest == 7


def test_versions_stay_while_a_request_may_name_them(
    replicas: Replicas, run_of: Callable[..., Run], write: Callable[[Path], None]
) -> None:
    run = run_of(replicas.start(2))
    run.in_use = frozenset({1})
    for version in (1, 2, 3):
        run.publisher.publish(version, write)
        until(partial(run.has, version))
    until(lambda: run.versions() == [1, 3])
    run.in_use = frozenset()
    until(lambda: run.versions() == [3])
    until(lambda: sorted(path.name for path in (run.folder / run.name).iterdir()) == [".owner", "3"])
    run.publisher.close()
    assert sorted(path.name for path in (run.folder / run.name).iterdir()) == [".owner"]


def test_a_version_that_a_newer_one_overtakes_is_not_written(
    replicas: Replicas, run_of: Callable[..., Run], write: Callable[[Path], None]
) -> None:
    run = run_of(replicas.start(1))
    begun, gate = threading.Event(), threading.Event()

    def slow(draft: Path) -> None:
        begun.set()
        gate.wait(120)
        write(draft)

    run.publisher.publish(1, slow)
    assert begun.wait(120)
    for version in (2, 3):
        run.publisher.publish(version, write)
    gate.set()
    until(lambda: 3 in run.usable)
    assert run.usable == [1, 3]


def test_a_slow_sampler_holds_up_nobody_for_long_and_comes_back(
    replicas: Replicas, run_of: Callable[..., Run], write: Callable[[Path], None]
) -> None:
    found = replicas.start(3)
    run = run_of(found, seconds=2)
    found[0].stuck = True
    run.publisher.publish(1, write)
    until(lambda: run.usable == [1])
    (told,) = run.publisher.published()
    assert told.spread_seconds >= 2
    assert len(told.samplers) == 2
    run.publisher.publish(2, write)
    until(lambda: run.usable == [1, 2])
    (told,) = run.publisher.published()
    assert told.spread_seconds < 2, "it is waited for no more"
    assert len(run.fleet.ready()) == 2
    found[0].stuck = False
    found[0].loaded.update(f"{run.name}:{version}" for version in (1, 2))
    until(lambda: len(run.fleet.ready()) == 3)


def test_a_sampler_that_is_lost_while_it_is_waited_for_holds_up_nobody(
    replicas: Replicas, run_of: Callable[..., Run], write: Callable[[Path], None]
) -> None:
    found = replicas.start(3, delay=0.1)
    run = run_of(found, seconds=600)
    found[0].delay = 600
    run.publisher.publish(1, write)
    until(lambda: found[0].counted["/look"] == 1)
    replicas.kill(found[0])
    until(lambda: run.usable == [1])


def test_a_new_sampler_has_what_is_published_before_it_is_used(
    replicas: Replicas, run_of: Callable[..., Run], write: Callable[[Path], None]
) -> None:
    found = replicas.start(2)
    run = run_of(found)
    replicas.kill(found[1])
    run.publisher.publish(1, write)
    until(lambda: run.usable == [1])
    replicas.revive(found[1], stuck=True)
    until(lambda: "/v1/models" in found[1].counted and found[1].counted["/adapters"] > 2)
    assert run.fleet.ready() == (f"127.0.0.1:{found[0].port}",)
    found[1].stuck = False
    run.publisher.publish(2, write)
    until(lambda: 2 in run.usable)
    found[1].loaded.add(f"{run.name}:2")
    until(lambda: len(run.fleet.ready()) == 2)


def test_without_any_sampler_a_version_waits_and_then_the_run_ends(
    replicas: Replicas, run_of: Callable[..., Run], write: Callable[[Path], None]
) -> None:
    found = replicas.start(1)
    run = run_of(found, seconds=0.1, wait_seconds=1.5)
    replicas.kill(found[0])
    run.publisher.publish(1, write)
    until(lambda: run.publisher.failed() is not None)
    failure = run.publisher.failed()
    assert failure is not None
    assert (failure.code, run.usable) == (ExitCode.STOPPED, [])
    assert f"no sampler has served {run.name}:1 for 1.5 s: 127.0.0.1:{found[0].port} (no connection" in failure.message


def test_a_version_that_every_sampler_refuses_ends_the_run(
    replicas: Replicas, run_of: Callable[..., Run], write: Callable[[Path], None]
) -> None:
    found = replicas.start(2)
    run = run_of(found, seconds=0.3)
    for replica in found:
        replica.refuses = "its rank is 16, but the server takes at most 8: raise lora.maxRank"
    run.publisher.publish(1, write)
    until(lambda: run.publisher.failed() is not None)
    failure = run.publisher.failed()
    assert failure is not None
    assert failure.code is ExitCode.CONFIG
    assert failure.message.count("its rank is 16") == 2


def test_names_are_used_once(replicas: Replicas, run_of: Callable[..., Run], write: Callable[[Path], None]) -> None:
    found = replicas.start(1)
    names: list[str] = []
    for _ in range(3):
        run = run_of(found)
        run.publisher.publish(5, write)
        until(partial(run.has, 5))
        with pytest.raises(ValueError, match="version 5 comes after 5"):
            run.publisher.publish(5, write)
        names.append(f"{run.name}:5")
        run.close()
    assert len(set(names)) == 3
    assert versions.read_published(run.folder) == []


def test_a_full_disk_ends_the_run_with_its_name(
    replicas: Replicas, run_of: Callable[..., Run], write: Callable[[Path], None]
) -> None:
    run = run_of(replicas.start(1))
    run.publisher.publish(1, write)
    until(lambda: run.usable == [1])

    def full(draft: Path) -> None:
        write(draft)
        with Path("/dev/full").open("wb") as stream:  # the kernel's own disk without room
            stream.write(b"x")

    run.publisher.publish(2, full)
    until(lambda: run.publisher.failed() is not None)
    failure = run.publisher.failed()
    assert failure is not None
    assert failure.code is ExitCode.CONFIG
    assert failure.message.startswith(f"{run.folder} is full (No space left on device): enlarge it")
    assert (run.versions(), run.usable) == ([1], [1])
    assert [path.name for path in (run.folder / run.name).glob(".draft*")] == []


def test_a_disk_that_is_full_for_a_moment_ends_nothing(
    replicas: Replicas, run_of: Callable[..., Run], write: Callable[[Path], None]
) -> None:
    run = run_of(replicas.start(1))
    tries: list[Path] = []

    def full_once(draft: Path) -> None:
        tries.append(draft)
        if len(tries) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(draft)

    run.publisher.publish(1, full_once)
    until(lambda: run.usable == [1])
    assert (len(set(tries)), run.publisher.failed()) == (2, None)


EIO = os.strerror(errno.EIO)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, EIO),
        OSError(errno.ESTALE, os.strerror(errno.ESTALE)),
        ValueError(f"Error while serializing: I/O error: {EIO} (os error {errno.EIO})"),  # as safetensors has it
    ],
    ids=["EIO", "ESTALE", "safetensors"],
)
def test_a_volume_that_is_away_for_a_while_ends_nothing(
    replicas: Replicas,
    run_of: Callable[..., Run],
    write: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    monkeypatch.setattr("stoker.rollouts.publish._PAUSES", (0.01,) * 5)
    run = run_of(replicas.start(1))
    tries: list[Path] = []

    def away(draft: Path) -> None:
        tries.append(draft)
        if len(tries) <= 5:
            raise error
        write(draft)

    run.publisher.publish(1, away)
    until(lambda: run.usable == [1] or run.publisher.failed() is not None)
    assert (run.usable, len(tries), run.publisher.failed()) == ([1], 6, None)


def test_a_volume_that_stays_away_ends_the_attempt_alone(
    replicas: Replicas, run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.rollouts.publish._PAUSES", (0.01,) * 5)
    run = run_of(replicas.start(1))

    def away(_draft: Path) -> None:
        raise OSError(errno.EIO, EIO)

    run.publisher.publish(1, away)
    until(lambda: run.publisher.failed() is not None)
    failure = run.publisher.failed()
    assert failure is not None
    assert failure.code is ExitCode.STOPPED
    assert failure.message.startswith(f"{run.folder} cannot be read or written ({EIO}): look at its volume")


def test_a_run_that_ends_waits_for_no_volume(replicas: Replicas, run_of: Callable[..., Run]) -> None:
    run = run_of(replicas.start(1))
    tries: list[Path] = []

    def away(draft: Path) -> None:
        tries.append(draft)
        raise OSError(errno.EIO, EIO)

    run.publisher.publish(1, away)
    until(lambda: len(tries) == 3)  # a second's pause follows, and longer ones
    run.publisher.close()
    until(lambda: not run.publisher._thread.is_alive())
    assert len(tries) <= 4


def test_an_error_of_the_one_who_writes_ends_the_run(replicas: Replicas, run_of: Callable[..., Run]) -> None:
    run = run_of(replicas.start(1))

    def wrong(_draft: Path) -> None:
        raise TypeError("a tensor is none")

    run.publisher.publish(1, wrong)
    until(lambda: run.publisher.failed() is not None)
    failure = run.publisher.failed()
    assert isinstance(failure, RunError)
    assert failure.code is ExitCode.CRASHED
    assert "TypeError: a tensor is none" in failure.message


def test_a_run_that_stops_waits_for_no_sampler(
    replicas: Replicas, run_of: Callable[..., Run], write: Callable[[Path], None]
) -> None:
    found = replicas.start(1, stuck=True)
    run = run_of(found, seconds=600)
    run.publisher.publish(1, write)
    until(lambda: bool(found[0].counted["/look"]))
    started = time.monotonic()
    run.close()
    assert time.monotonic() - started < 300, "a version may take ten minutes"
    assert run.versions() == []


def test_a_write_that_outlasts_the_end_leaves_no_version(
    replicas: Replicas, run_of: Callable[..., Run], write: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.rollouts.publish._CLOSE_SECONDS", 0.01)
    run = run_of(replicas.start(1))
    begun, goes_on = threading.Event(), threading.Event()

    def slow(draft: Path) -> None:
        begun.set()
        goes_on.wait(120)
        write(draft)

    run.publisher.publish(1, slow)
    assert begun.wait(120)
    run.publisher.close()
    goes_on.set()
    until(lambda: not run.publisher._thread.is_alive())
    assert run.versions() == []


def test_runs_that_share_samplers_do_not_disturb_each_other(
    replicas: Replicas, run_of: Callable[..., Run], write: Callable[[Path], None]
) -> None:
    found = replicas.start(2)
    one, other = run_of(found, run="one"), run_of(found, run="other")
    for version in (1, 2):
        for run in (one, other):
            run.publisher.publish(version, write)
            until(partial(run.has, version))
    assert all({"one-a0:2", "other-a0:2"} <= replica.loaded for replica in found)
    again = live.claim(one.folder, "other", "job-of-another-namespace")
    assert again == "other-a1", "a run of the same name elsewhere"
    until(lambda: (one.versions(), other.versions()) == ([2], [2]))
    one.close()
    assert (one.versions(), other.versions()) == ([], [2])
    other.publisher.publish(3, write)
    until(partial(other.has, 3))
    assert all(replica.loaded == {"other-a0:2", "other-a0:3"} for replica in found)


def spreads(run: Run, write: Callable[[Path], None], versions: int) -> list[float]:
    """Publish so many versions one after another; return the seconds from each write until all have it, sorted."""
    for version in range(1, versions + 1):
        run.publisher.publish(version, write)
        until(partial(run.has, version))
    found = sorted(one.spread_seconds for one in run.publisher.published())
    assert len(found) == versions
    return found


@pytest.mark.alone
def test_64_samplers_are_told_at_once(
    replicas: Replicas, run_of: Callable[..., Run], write: Callable[[Path], None], measured: Callable[[str], None]
) -> None:
    """Sooner than one after another, though all are threads of this process. `make benchmark-async` has the seconds."""
    alone = statistics.median(spreads(run_of(replicas.start(1)), write, 30))
    run = run_of(replicas.start(64))
    spread = spreads(run, write, 30)
    measured(f"64 samplers: median {statistics.median(spread):.3f} s, most {spread[-1]:.3f} s, one: {alone:.4f} s")
    assert statistics.median(spread) < 64 * alone
    until(lambda: run.versions() == [30])
