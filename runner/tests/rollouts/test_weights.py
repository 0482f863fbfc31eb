"""All weights of a run: what is written, when samplers have it, and which version an answer has."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from runner.tests.rollouts.replicas import FakeReplica, Replicas, until, urls

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts.addresses import addresses_in
from stoker.rollouts.fleet import Fleet
from stoker.rollouts.publish import Publisher
from stoker.rollouts.records import Request, Turn
from stoker.rollouts.replicas import Needs
from stoker.rollouts.stores import Change, WholeWeights
from stoker.serve.adapters import live
from stoker.serve.weights import files


@dataclass(eq=False)
class Difference:
    """What differs between two versions of nothing."""

    bytes: int = 10
    doubt: str = ""
    numbers: Mapping[str, float] = field(default_factory=lambda: {"changed": 0.1})


@dataclass(eq=False)
class Nothing:
    """Weights of nothing."""

    bytes: int = 100
    difference: Difference = field(default_factory=Difference)

    def since(self, earlier: Any) -> Change:
        """Return what the test says."""
        return self.difference

    def write(self, folder: Path, name: str, earlier: str = "", change: Change | None = None) -> None:
        """Write what it is asked to write."""
        (folder / files.CHECKSUMS).write_text(json.dumps([name, earlier, change is None]))


class Run:
    """A run that trains all weights, and its samplers.

    Args:
        folder: of published versions.
        found: its samplers.
    """

    def __init__(self, folder: Path, found: list[FakeReplica]) -> None:
        self.name = live.claim(folder, "run", "job-1")
        self.folder = folder / self.name
        self.fleet = Fleet(addresses_in(urls(found)), self.name, Needs(weights=True), wait_seconds=20)
        self.fleet.check()
        self.usable: list[int] = []
        self.store = WholeWeights(folder, self.name, every=3)
        self.publisher: Publisher[Any] = Publisher(self.store, self.fleet, self.usable.append, frozenset)

    def publish(self, version: int) -> None:
        """Publish a version, and wait until it can be used."""
        self.publisher.publish(version, Nothing())
        until(lambda: version in self.usable or self.publisher.failed())
        assert self.publisher.failed() is None

    def there(self) -> list[str]:
        """Return the names of the files that are there."""
        return sorted(file.path.name for file in files.read(self.folder))

    def ask(self, version: int, count: int = 1, first: int = 0) -> list[Turn]:
        """Return answers to requests that are sent at once."""

        async def together() -> list[Turn]:
            asked = (
                Request((ordinal, 5), version, ordinal, 0, 0, 3, 0.7, 1) for ordinal in range(first, first + count)
            )
            return await asyncio.gather(*map(self.fleet.complete, asked))

        return asyncio.run(together())

    def close(self) -> None:
        """End it."""
        self.publisher.close()
        self.fleet.close()


@pytest.fixture
def run_of(folder: Path) -> Iterator[Callable[[list[FakeReplica]], Run]]:
    """Starts runs that end with the test."""
    made: list[Run] = []

    def start(found: list[FakeReplica]) -> Run:
        made.append(Run(folder, found))
        return made[-1]

    yield start
    for run in made:
        run.close()


def test_the_first_version_is_whole_and_one_of_a_few_after_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = WholeWeights(folder, "run-a0", every=3)
    told = [store.write(version, Nothing()) for version in (0, 1, 3, 4, 5)]
    found = sorted(file.path.name for file in files.read(folder / "run-a0"))
    assert found == ["d1-0", "d3-1", "d5-4", "w0", "w4"]
    assert [(one["whole"], one["bytes"]) for one in told] == [(1, 100), (0, 10), (0, 10), (1, 100), (0, 10)]
    assert json.loads((folder / "run-a0/d3-1" / files.CHECKSUMS).read_text()) == ["run-a0:3", "run-a0:1", False]
    # What is as large as the whole is the whole.
    assert store.write(6, Nothing(difference=Difference(bytes=95)))["whole"] == 1
    store.write(7, Nothing(difference=Difference(doubt="no weight has changed")))
    assert "version 7: no weight has changed" in capsys.readouterr().err


def test_files_stay_until_a_newer_whole_version_has_settled(folder: Path) -> None:
    store = WholeWeights(folder, "run-a0", every=3)
    for version in range(5):
        store.write(version, Nothing())
    store.tidy(2, frozenset())
    assert len(files.read(folder / "run-a0")) == 5
    assert store.untidy
    store.tidy(4, frozenset())
    assert sorted(file.path.name for file in files.read(folder / "run-a0")) == ["d4-3", "w3"]
    assert not store.untidy


def test_a_version_is_usable_when_every_sampler_has_taken_it(
    replicas: Replicas, run_of: Callable[[list[FakeReplica]], Run]
) -> None:
    found = replicas.start(3, weights=True, delay=0.05)
    run = run_of(found)
    assert run.fleet.newest == -1
    for version in range(5):
        run.publish(version)
        assert all(replica.loaded == {f"{run.name}:{version}"} for replica in found)
    assert [one.taken for one in found] == [["w0", "d1-0", "d2-1", "w3", "d4-3"]] * 3
    told = run.publisher.published()
    assert [(one.version, len(one.samplers), one.numbers["whole"]) for one in told] == [
        (0, 3, 1), (1, 3, 0), (2, 3, 0), (3, 3, 1), (4, 3, 0),
    ]  # fmt: skip
    until(lambda: run.there() == ["d4-3", "w3"])


def test_a_damaged_difference_is_mended_with_the_whole_version(
    replicas: Replicas, run_of: Callable[[list[FakeReplica]], Run], capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = replicas.start(2, weights=True)
    run = run_of([one, other])
    run.publish(0)
    one.damaged = {"d1-0"}
    run.publish(1)
    until(lambda: one.loaded == other.loaded == {f"{run.name}:1"})
    # Though nobody could take it.
    one.damaged = other.damaged = {"d2-1"}
    run.publish(2)
    assert one.taken == ["w0", "w1", "w2"]
    assert other.taken == ["w0", "d1-0", "w2"]
    assert capsys.readouterr().err.count("is written again, as a whole: ") == 2


def test_a_version_that_no_sampler_can_take_as_a_whole_ends_the_run(
    replicas: Replicas, run_of: Callable[[list[FakeReplica]], Run]
) -> None:
    (replica,) = replicas.start(weights=True, damaged={"w0"})
    run = run_of([replica])
    run.publisher.publish(0, Nothing())
    until(run.publisher.failed)
    error = run.publisher.failed()
    assert error is not None
    assert (error.code, "w0: it is damaged" in error.message) == (ExitCode.CONFIG, True)


def test_a_version_that_found_no_room_is_written_again(
    replicas: Replicas, run_of: Callable[[list[FakeReplica]], Run], capsys: pytest.CaptureFixture[str]
) -> None:
    @dataclass
    class Unlucky(Nothing):
        full: int = 1

        def write(self, folder: Path, name: str, earlier: str = "", change: Change | None = None) -> None:
            self.full -= 1
            if self.full >= 0:
                # As safetensors has it.
                raise ValueError("Error while serializing: I/O error: No space left on device (os error 28)")
            super().write(folder, name, earlier, change)

    run = run_of(replicas.start(weights=True))
    run.publisher.publish(0, Unlucky())
    until(lambda: 0 in run.usable or run.publisher.failed())
    assert (run.usable, run.publisher.failed()) == ([0], None)
    assert "version 0 could not be written, and is written again: " in capsys.readouterr().err
    run.publisher.publish(1, Unlucky(full=2))
    until(run.publisher.failed)
    error = run.publisher.failed()
    assert error is not None
    assert (error.code, error.message.startswith(f"{run.folder} is full ")) == (ExitCode.CONFIG, True)


def test_a_version_that_is_needed_is_not_left_out(
    replicas: Replicas, run_of: Callable[[list[FakeReplica]], Run]
) -> None:
    run = run_of(replicas.start(weights=True, delay=0.3))
    run.publish(0)
    for version in range(1, 5):
        run.publisher.publish(version, Nothing(), needed=version == 2)
    until(lambda: 4 in run.usable)
    assert 2 in run.usable
    assert 3 not in run.usable


@pytest.mark.parametrize(("needed", "most"), [(False, 2), (True, 3)])
def test_what_waits_is_let_go_before_the_next_copy_is_made(
    replicas: Replicas, run_of: Callable[[list[FakeReplica]], Run], needed: bool, most: int
) -> None:
    goes_on = threading.Event()
    begun = threading.Event()

    class Slow(Nothing):
        def write(self, folder: Path, name: str, earlier: str = "", change: Change | None = None) -> None:
            begun.set()
            goes_on.wait(120)
            super().write(folder, name, earlier, change)

    run = run_of(replicas.start(weights=True))
    copies = weakref.WeakSet[Nothing]()

    def publish(version: int, copy: Nothing, *, needed: bool = False) -> None:
        copies.add(copy)
        run.publisher.publish(version, copy, needed=needed)

    publish(0, Nothing())
    until(lambda: 0 in run.usable)
    publish(1, Slow())
    assert begun.wait(120)
    publish(2, Nothing(), needed=needed)
    gc.collect()
    assert len(copies) == 3
    # Now the trainer makes version 3.
    run.publisher.make_room()
    gc.collect()
    assert len(copies) == most, "the one that samplers have, the one that is written, and what is needed"
    publish(3, Nothing())
    goes_on.set()
    until(lambda: 3 in run.usable)
    assert (2 in run.usable) == needed
    until(lambda: len(copies) == 1)


def test_what_has_changed_is_let_go_where_the_whole_is_written(folder: Path) -> None:
    class Watching(Nothing):
        def since(self, earlier: Any) -> Change:
            found = Difference(bytes=95)
            changes.add(found)
            return found

        def write(self, folder: Path, name: str, earlier: str = "", change: Change | None = None) -> None:
            gc.collect()
            assert not [*changes]
            super().write(folder, name, earlier, change)

    changes = weakref.WeakSet[Difference]()
    store = WholeWeights(folder, "run-a0", every=3)
    assert [store.write(version, Watching())["whole"] for version in range(2)] == [1, 1]


def test_an_answer_under_which_weights_change_has_the_older_version(
    replicas: Replicas, run_of: Callable[[list[FakeReplica]], Run]
) -> None:
    (replica,) = replicas.start(weights=True)
    run = run_of([replica])
    run.publish(0)
    (turn,) = run.ask(0)
    assert (turn.version, turn.newest) == (0, 0)
    assert replica.asked == [("base", 0)]
    replica.think = 1.0
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(run.ask, 0)
        until(lambda: replica.busy)
        run.publish(1)
        assert replica.loaded == {f"{run.name}:1"}
        (turn,) = asked.result()
    assert (turn.version, turn.newest) == (0, 1)
    replica.think = 0.0
    # A version that is asked for by its number is the least that is wanted.
    assert [(turn.version, turn.newest) for turn in run.ask(0)] == [(1, 1)]


def probe_of(version: int) -> list[Request]:
    """Return short requests to each sampler."""
    return [Request((7, 5), version, -1, index, 0, 3, 0.7, index) for index in range(4)]


def test_a_published_version_answers_alone_before_another_is_offered(
    replicas: Replicas, run_of: Callable[[list[FakeReplica]], Run]
) -> None:
    one, other = replicas.start(2, weights=True)
    run = run_of([one, other])
    run.publish(0)
    one.think = other.think = 0.2
    one.statuses.append(500)
    found: list[tuple[Turn, ...]] = []

    def after(stop: Callable[[], bool]) -> None:
        found.append(run.fleet.probe(probe_of(1), 5.0, stop))

    run.publisher.publish(1, Nothing(), needed=True, after=after)
    run.publisher.publish(2, Nothing())
    until(lambda: 2 in run.usable)
    (answers,) = found
    assert {(turn.version, turn.newest) for turn in answers} == {(1, 1)}
    # One of the first's is lost, which is for the run's own requests to say.
    assert sorted(Counter(turn.replica for turn in answers).values()) == [3, 4]
    assert run.fleet.probe(probe_of(1), 5.0) == ()


def test_a_run_that_ends_waits_for_no_probe(replicas: Replicas, run_of: Callable[[list[FakeReplica]], Run]) -> None:
    (replica,) = replicas.start(weights=True)
    run = run_of([replica])
    run.publish(0)
    replica.think = 60.0
    run.publisher.publish(1, Nothing(), after=lambda stop: void(run.fleet.probe(probe_of(1), 60.0, stop)))
    until(lambda: replica.busy)
    run.publisher.close()
    assert run.there() == []


def void(_: object) -> None:
    """Return nothing."""


def test_a_sampler_that_is_behind_is_not_asked(replicas: Replicas, run_of: Callable[[list[FakeReplica]], Run]) -> None:
    one, other = replicas.start(2, weights=True)
    run = run_of([one, other])
    run.publish(0)
    other.stuck = True
    run.publisher.publish(1, Nothing())
    until(partial(run.usable.__contains__, 1))
    assert {turn.replica for turn in run.ask(1, 12)} == {f"127.0.0.1:{one.port}"}
    assert {turn.version for turn in run.ask(0, 12, first=12)} == {0, 1}  # groups stay where they are
    other.stuck = False
    run.fleet.remind(1)  # a watcher looks by itself as well
    until(lambda: len(run.fleet.ready()) == 2)


def test_a_sampler_of_adapters_is_no_sampler_of_weights(replicas: Replicas) -> None:
    fleet = Fleet(addresses_in(urls(replicas.start())), "run", Needs(weights=True), wait_seconds=5)
    try:
        with pytest.raises(RunError, match="it serves adapters, but the run trains all weights") as caught:
            fleet.check()
        assert caught.value.code is ExitCode.CONFIG
    finally:
        fleet.close()
