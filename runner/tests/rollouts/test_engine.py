"""The engine with a real thread and writers that sleep, hang, fail and lie."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts.engine import Engine
from stoker.rollouts.records import Batch, Bounds, Group, Sample, Seeds
from stoker.rollouts.state import RolloutState

ROWS = [{"prompt": f"row {number}"} for number in range(24)]


def sample(group: Group, seed: int = 0) -> Sample:
    """Return a sample of the group's version."""
    version = group.version
    return Sample((1, 2), (3,), (1,), (-0.5,), version, version, (1.0,), str(seed), "stop", "a", 0.1)


class Writer:
    """Writes two samples per group, after what the test wants to happen first."""

    def __init__(self, first: Callable[[Group], Awaitable[None]] | None = None) -> None:
        """Take what happens before a group is written."""
        self.first = first
        self.groups: list[Group] = []

    async def write(self, group: Group, seeds: Seeds) -> tuple[Sample, ...]:
        """Write a group."""
        self.groups.append(group)
        if self.first:
            await self.first(group)
        return tuple(sample(group, seeds(index, 0)) for index in range(2))


async def hang(group: Group) -> None:
    """Never end, unless cancelled."""
    await asyncio.Event().wait()


@contextmanager
def engine(
    bounds: Bounds,
    writer: Any,
    *,
    rows: list[dict[str, str]] = ROWS,
    steps: int = 8,
    state: RolloutState | None = None,
    wait_seconds: float = 60,
    version: int | None = 0,
) -> Iterator[Engine]:
    """Yield a started engine, and stop it."""
    made = Engine(rows, bounds, writer, seed=7, steps=steps, state=state, wait_seconds=wait_seconds)
    if version is not None:
        made.start(version)
    try:
        yield made
    finally:
        made.stop()


def silent(reason: str) -> None:
    """Hear a reason."""


def trained(batches: list[Batch]) -> list[int]:
    """Return the ordinals of batches."""
    return [group.ordinal for batch in batches for group, _ in batch.groups]


def eventually(true: Callable[[], bool]) -> None:
    """Wait until something is true."""
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_each_row_is_trained_once_per_epoch_and_none_too_late() -> None:
    async def first(group: Group) -> None:
        await asyncio.sleep(0.02 if group.ordinal % 5 else 0.1)

    with engine(Bounds(batch=6, staleness=2), Writer(first)) as made:
        batches = []
        for step in range(8):
            batches.append(made.take(step, silent))
            made.usable(step + 1)
        assert made.state().in_flight == ()
        assert {len(kept) for kept in (made._writing, made._written, made._versions, made._thread._tasks)} == {0}
    assert sorted(trained(batches)) == list(range(48))
    rows = Counter((group.epoch, group.row) for batch in batches for group, _ in batch.groups)
    assert rows == Counter({(epoch, row): 1 for epoch in (0, 1) for row in range(24)})
    assert all(0 <= staleness <= 2 for batch in batches for staleness in batch.staleness)
    assert [batch.step for batch in batches] == list(range(8))
    assert all(len(batch.groups) == len(batch.staleness) == 6 for batch in batches)
    for batch in batches:
        assert trained([batch]) == sorted(trained([batch]))
        for group, samples in batch.groups:
            assert group.columns == ROWS[group.row]
            assert group.deadline == group.version + 2
            assert len(samples) == 2


def test_without_staleness_nothing_is_written_while_the_trainer_learns() -> None:
    writer = Writer()
    with engine(Bounds(batch=3, staleness=0), writer, steps=3) as made:
        for step in range(3):
            made.usable(step)
            batch = made.take(step, silent)
            assert trained([batch]) == [3 * step, 3 * step + 1, 3 * step + 2]
            assert batch.staleness == (0, 0, 0)
            assert (batch.depth, batch.outstanding) == (0, 0)
            time.sleep(0.05)
            assert len(writer.groups) == 3 * (step + 1)
    assert [group.version for group in writer.groups] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_the_time_in_which_samplers_wait_for_the_trainer_is_told() -> None:
    async def first(group: Group) -> None:
        await asyncio.sleep(0.2)

    with engine(Bounds(batch=2, staleness=0), Writer(first), steps=3) as made:
        idle = []
        for step in range(3):
            if step:
                time.sleep(0.3)  # the trainer learns, and nothing may be written ahead
            made.usable(step)
            idle.append(made.take(step, silent).idle)
    assert idle[0] < 0.2
    assert min(idle[1:]) >= 0.25


def test_a_group_has_the_same_seeds_again() -> None:
    seeds = []
    for _ in range(2):
        with engine(Bounds(4, 0), Writer()) as made:
            seeds.append([one.text for _, samples in made.take(0, silent).groups for one in samples])
    assert seeds[0] == seeds[1]
    assert len({*seeds[0]}) == 8


def test_no_more_is_under_way_than_the_depth_allows() -> None:
    writer = Writer(hang)
    with engine(Bounds(batch=4, staleness=8, depth=2), writer, steps=20) as made:
        eventually(lambda: len(writer.groups) == 12)
        made.usable(1)
        time.sleep(0.1)
        assert len(writer.groups) == 12


def test_a_wait_says_what_it_waits_for_about_once_a_second() -> None:
    async def first(group: Group) -> None:
        if group.ordinal in (1, 2):
            await asyncio.sleep(2.5)

    reasons: list[tuple[float, str]] = []
    began = time.monotonic()
    with engine(Bounds(batch=4, staleness=0), Writer(first)) as made:
        batch = made.take(0, lambda reason: reasons.append((time.monotonic() - began, reason)))
    said = re.compile(r"waiting for samplers: 2 groups at their deadline, the oldest for [1-9] s")
    assert all(said.fullmatch(text) for _, text in reasons)
    assert 1 <= len(reasons) <= batch.waited
    assert reasons[0][0] > 0.9
    assert batch.reason.startswith("waiting for samplers: ")
    assert batch.waited > 2.4


def test_a_wait_for_a_version_names_it() -> None:
    reasons: list[str] = []

    def waiting(reason: str) -> None:
        reasons.append(reason)
        made.usable(1)

    with engine(Bounds(batch=4, staleness=0), Writer()) as made:
        made.take(0, silent)
        assert made.take(1, waiting).staleness == (0, 0, 0, 0)
    assert reasons == ["waiting for version 1 on every ready sampler: the newest is 0"]


def test_a_wait_for_any_group_says_how_many_are_written() -> None:
    async def first(group: Group) -> None:
        if group.ordinal:
            await hang(group)

    reasons: list[str] = []

    def waiting(reason: str) -> None:
        reasons.append(reason)
        made.stop()

    with engine(Bounds(batch=4, staleness=4), Writer(first)) as made, pytest.raises(RunError):
        made.take(0, waiting)
    assert [re.sub(r"\d+ s$", "N s", text) for text in reasons] == [
        "waiting for samplers: 1 of 4 groups are written, the oldest for N s"
    ]


def test_a_wait_without_end_ends_with_75() -> None:
    reasons: list[str] = []
    with engine(Bounds(4, 2), Writer(hang), wait_seconds=1.2) as made:
        began = time.monotonic()
        with pytest.raises(RunError) as ended:
            made.take(0, reasons.append)
        assert time.monotonic() - began > 1.1
    assert ended.value.code is ExitCode.STOPPED
    assert "0 of 4 groups are written" in ended.value.message
    assert "nothing came for 1.2 s: look at the samplers' logs" in ended.value.message
    assert len(reasons) == 1


def test_slow_samplers_that_do_something_are_waited_for() -> None:
    async def first(group: Group) -> None:
        await asyncio.sleep(1.5 * (group.ordinal + 1))

    with engine(Bounds(4, 0), Writer(first), wait_seconds=5) as made:
        assert made.take(0, silent).waited > 5


def test_a_wait_can_be_given_up_and_taken_up_again() -> None:
    release = threading.Event()

    async def first(group: Group) -> None:
        while not release.is_set():
            await asyncio.sleep(0.01)

    def stop(reason: str) -> None:
        raise KeyboardInterrupt

    with engine(Bounds(4, 0), Writer(first)) as made:
        with pytest.raises(KeyboardInterrupt):
            made.take(0, stop)
        assert made.state().step == 0
        release.set()
        assert trained([made.take(0, silent)]) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (RunError(ExitCode.BAD_DATA, "the reward of row 3 is NaN"), ExitCode.BAD_DATA, "the reward of row 3 is NaN"),
        (RunError(ExitCode.STOPPED, "no sampler is ready"), ExitCode.STOPPED, "no sampler is ready"),
        (ValueError("odd"), ExitCode.CRASHED, "group 5 ended with ValueError: odd"),
        (asyncio.CancelledError(), ExitCode.CRASHED, "group 5 was cancelled"),
        (SystemExit(3), ExitCode.CRASHED, "the rollouts ended with SystemExit: 3"),
    ],
)
def test_an_error_of_a_writer_ends_the_run_with_its_code(error: BaseException, code: ExitCode, said: str) -> None:
    async def first(group: Group) -> None:
        if group.ordinal == 5:
            raise error

    with engine(Bounds(4, 4), Writer(first)) as made:
        eventually(lambda: made._failure is not None)
        for _ in range(2):
            with pytest.raises(RunError) as ended:
                made.take(0, silent)
            assert ended.value.code is code
            assert said in ended.value.message
        made.usable(1)


def test_an_error_ends_a_wait_at_once() -> None:
    async def first(group: Group) -> None:
        await asyncio.sleep(0.2)
        raise RunError(ExitCode.BAD_DATA, "bad")

    reasons: list[str] = []
    with engine(Bounds(4, 0), Writer(first)) as made, pytest.raises(RunError, match="bad"):
        made.take(0, reasons.append)
    assert not reasons, "a second has not passed"


def test_a_row_that_cannot_be_read_ends_the_run() -> None:
    class Rows(list[dict[str, str]]):
        def __getitem__(self, row: Any) -> Any:
            raise OSError("the volume is gone")

    with engine(Bounds(4, 0), Writer(), rows=Rows(ROWS)) as made, pytest.raises(RunError, match="the volume is gone"):
        made.take(0, silent)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"oldest": 2}, "names version 3, but sample 1 was written by versions 2 to 3"),
        ({"oldest": 4}, "written by versions 4 to 3"),
        ({"mask": (1, 1)}, "has 1 tokens, 2 masks and 1 log-probabilities in sample 1"),
        ({"logprobs": ()}, "has 1 tokens, 1 masks and 0 log-probabilities in sample 1"),
        (None, "has no samples"),
    ],
)
def test_samples_that_cannot_be_trained_are_refused(change: dict[str, Any] | None, said: str) -> None:
    class Lying:
        async def write(self, group: Group, seeds: Seeds) -> tuple[Sample, ...]:
            return () if change is None else (sample(group), replace(sample(group), **change))

    with engine(Bounds(1, 4, depth=0), Lying(), version=3) as made, pytest.raises(RunError) as ended:
        made.take(0, silent)
    assert ended.value.code is ExitCode.CRASHED
    assert said in ended.value.message
    assert "group 0 (row " in ended.value.message


async def refuse_to_end(group: Group) -> None:
    """Go on when cancelled, as a library that swallows everything does."""
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


async def block(group: Group) -> None:
    """Block the loop."""
    time.sleep(2)


@pytest.mark.parametrize("first", [hang, refuse_to_end, block])
def test_a_stop_ends_a_wait_for_groups(first: Callable[[Group], Awaitable[None]]) -> None:
    writer = Writer(first)
    with engine(Bounds(4, 4), writer) as made:
        eventually(lambda: bool(writer.groups))
        caught: list[RunError] = []

        def take() -> None:
            try:
                made.take(0, silent)
            except RunError as error:
                caught.append(error)

        taking = threading.Thread(target=take)
        taking.start()
        time.sleep(0.1)
        began = time.monotonic()
        made.stop()
        taking.join()
        assert time.monotonic() - began < 300, "no group comes any more"
        assert [error.code for error in caught] == [ExitCode.STOPPED]
        made.stop()


def test_writers_are_told_to_end() -> None:
    ended = []

    async def first(group: Group) -> None:
        try:
            await hang(group)
        finally:
            ended.append(group.ordinal)

    writer = Writer(first)
    with engine(Bounds(4, 0), writer) as made:
        eventually(lambda: len(writer.groups) == 4)
        made.stop()
        assert sorted(ended) == [0, 1, 2, 3]


def test_an_engine_that_never_started_stops() -> None:
    with engine(Bounds(4, 0), Writer(), version=None):
        pass


def test_versions_that_groups_name_are_in_use() -> None:
    async def first(group: Group) -> None:
        if group.ordinal == 1:
            await hang(group)

    writer = Writer(first)
    with engine(Bounds(batch=2, staleness=4, depth=1), writer, steps=20) as made:
        assert made.in_use() == {0}
        made.take(0, silent)
        made.usable(1)
        made.take(1, silent)
        eventually(lambda: {group.version for group in writer.groups} == {0, 1})
        made.usable(2)
        made.usable(3)
        assert made.in_use() >= {0, 3}
        assert 2 not in made.in_use() or any(group.version == 2 for group in writer.groups)


def numbered(rows: int) -> dict[int, Mapping[str, Any]]:
    """Return the first rows of the data by their numbers."""
    return dict(enumerate(ROWS[:rows]))


def test_an_evaluation_has_its_own_ordinals_and_version_and_trains_nothing() -> None:
    held = threading.Event()

    async def first(group: Group) -> None:
        # Training hangs, and does not keep an evaluation.
        if not group.evaluation and not held.is_set():
            await hang(group)

    writer = Writer(first)
    # In the order in which TRL shuffles them.
    rows: dict[int, Mapping[str, Any]] = {number: {"prompt": f"judge {number}"} for number in range(700, 100, -2)}
    with engine(Bounds(4, 4), writer, version=3) as made:
        for _ in range(2):
            judged = made.evaluate(rows, 3)
            assert [(group.row, group.columns) for group, _ in judged] == [*rows.items()]
            assert [group.ordinal for group, _ in judged] == [-1 - row for row in rows]
            assert {group.version for group, _ in judged} == {3}
            assert {group.epoch for group, _ in judged} == {-1}
        written = [group for group in writer.groups if group.evaluation]
        assert len(written) == 600
        assert made.state().in_flight == tuple((ordinal, 3) for ordinal in range(8))
    seeds = Counter(one.text for _, samples in judged for one in samples)
    assert set(seeds.values()) == {1}


def test_an_evaluation_waits_for_its_version_and_pins_it() -> None:
    reasons: list[str] = []

    def waiting(reason: str) -> None:
        reasons.append(reason)
        assert 5 in made.in_use()
        made.usable(5)

    with engine(Bounds(4, 4), Writer()) as made:
        judged = made.evaluate(numbered(3), 5, waiting)
        assert {group.version for group, _ in judged} == {5}
        made.usable(6)
        assert 5 not in made.in_use()
    assert reasons == ["waiting for version 5 on every ready sampler: the newest is 0"]


def test_an_evaluation_says_what_it_waits_for_and_ends_with_75() -> None:
    async def first(group: Group) -> None:
        if group.ordinal == -2:
            await hang(group)

    reasons: list[str] = []
    with engine(Bounds(4, 0), Writer(first), wait_seconds=1.5) as made:
        made.take(0, silent)
        with pytest.raises(RunError, match=r"nothing came for 1\.5 s") as ended:
            made.evaluate(numbered(3), 0, reasons.append)
        assert ended.value.code is ExitCode.STOPPED
        assert [re.sub(r"\d+ s$", "N s", text) for text in reasons] == [
            "waiting for samplers: 2 of 3 rows are evaluated, the oldest for N s"
        ]
        # What is left of it disturbs nothing.
        assert [group.row for group, _ in made.evaluate(numbered(1), 0)] == [0]


def test_an_evaluation_of_nothing_is_empty() -> None:
    with engine(Bounds(4, 0), Writer()) as made:
        assert made.evaluate({}, 0) == []


def test_an_error_in_an_evaluation_ends_the_run() -> None:
    async def first(group: Group) -> None:
        if group.evaluation:
            raise RunError(ExitCode.BAD_DATA, "bad")

    with engine(Bounds(4, 0), Writer(first)) as made, pytest.raises(RunError, match="bad"):
        made.evaluate(numbered(3), 0)


def test_after_kills_each_group_is_trained_once_in_the_history_that_survives() -> None:
    async def first(group: Group) -> None:
        await asyncio.sleep(0.01 * (group.ordinal % 7))

    history: list[list[int]] = []
    state: RolloutState | None = None
    for last in (3, 5, 4, 12):
        with engine(Bounds(batch=4, staleness=3), Writer(first), steps=12, state=state, version=None) as made:
            begin = state.step if state else 0
            del history[begin:]
            made.start(begin)
            for step in range(begin, last):
                batch = made.take(step, silent)
                assert max(batch.staleness) <= 3
                history.append(trained([batch]))
                made.usable(step + 1)
                # A checkpoint every other step; a life that ends between two goes back to the first.
                if step % 2:
                    state = made.state()
    assert sorted(ordinal for batch in history for ordinal in batch) == list(range(48))


def test_a_checkpoint_of_another_run_is_refused() -> None:
    with engine(Bounds(4, 2), Writer()) as made:
        made.take(0, silent)
        state = made.state()
    assert (state.step, state.frontier + len(state.above), state.version) == (1, 4, 0)
    with pytest.raises(RunError, match="groups per step 4, now 8"):
        Engine(ROWS, Bounds(8, 2), Writer(), seed=7, steps=8, state=state, wait_seconds=1)


def test_the_depth_adapts_to_the_wait() -> None:
    async def first(group: Group) -> None:
        await asyncio.sleep(0.05)

    depths = []
    with engine(Bounds(batch=2, staleness=4), Writer(first), steps=40) as made:
        for step in range(40):
            depths.append(made.take(step, silent).depth)
            made.usable(step + 1)
            time.sleep(0.015)
        assert made.state().depth == depths[-1]
    assert depths[0] == 1
    assert max(depths) >= 2
    assert set(depths) <= {1, 2, 3, 4}


def test_a_version_that_is_about_to_come_is_waited_for() -> None:
    now = [0.0]
    writer = Writer()
    made = Engine(ROWS, Bounds(2, 5, depth=1), writer, seed=7, steps=9, wait_seconds=9, clock=lambda: now[0])
    made.start(0)
    for step in range(3):
        now[0] = float(step)
        eventually(lambda: len(made._written) >= 2)
        made.take(step, silent)
        if step == 2:
            assert made.state().in_flight == (), "nothing is started yet"
        now[0] += 0.1
        made.usable(step)
    assert [version for _, version in made.state().in_flight] == [2, 2]
    made.stop()


def test_the_order_of_rows_can_be_given() -> None:
    made = Engine(ROWS, Bounds(4, 0), Writer(), seed=7, steps=2, wait_seconds=9, order=lambda epoch: range(24))
    made.start(0)
    assert [group.row for group, _ in made.take(0, silent).groups] == [0, 1, 2, 3]
    made.stop()
