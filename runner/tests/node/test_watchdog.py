"""A hang is told from work that takes long, and the rank that hangs from those that wait for it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from stoker.node.watchdog import LEAST_ONCE_SECONDS, Watchdog, describe, print_stacks
from stoker.rank.pulse import EVALUATING, FINISHING, FIRST_STEP, SAVING, TRAINING, Beat, Pulse, read_beats


def hung(patience: int, phase: str, seconds: float) -> bool:
    """Return whether a rank that fell silent in a phase so long ago counts as hung."""
    dog = Watchdog(patience)
    beats = {0: Beat(7, 3, phase, 1)}
    assert not dog.hangs(beats, 100.0)
    return dog.hangs(beats, 100.0 + seconds)


def test_a_step_that_takes_too_long_is_a_hang() -> None:
    assert not hung(60, TRAINING, 60)
    assert hung(60, TRAINING, 61)


@pytest.mark.parametrize("phase", [FIRST_STEP, EVALUATING, SAVING, FINISHING])
def test_what_happens_once_in_a_while_has_an_hour_or_more(phase: str) -> None:
    assert not hung(60, phase, LEAST_ONCE_SECONDS)
    assert hung(60, phase, LEAST_ONCE_SECONDS + 1)
    assert not hung(2 * LEAST_ONCE_SECONDS, phase, 2 * LEAST_ONCE_SECONDS)


def test_nothing_is_a_hang_when_it_is_switched_off() -> None:
    assert not hung(0, TRAINING, 1e9)


def test_a_rank_that_does_not_train_yet_is_not_watched() -> None:
    dog = Watchdog(1)
    assert not dog.hangs({}, 0.0)
    assert not dog.hangs({}, 1e9)


def test_every_sign_of_life_counts_even_within_a_step() -> None:
    dog = Watchdog(60)
    for number in range(10):
        assert not dog.hangs({0: Beat(number, 3, TRAINING, 1), 1: Beat(number, 3, TRAINING, 2)}, 50.0 * number)
    assert dog.hangs({0: Beat(10, 3, TRAINING, 1), 1: Beat(9, 3, TRAINING, 2)}, 511.0)


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ({0: 9, 1: 8}, "no sign of life from rank 1 after step 5 (training) while the others wait"),
        ({0: 8, 1: 8, 2: 9}, "no sign of life from ranks 0, 1 after step 5 (training) while the others wait"),
        ({0: 8, 1: 8}, "no sign of life from ranks 0, 1 after step 5 (training). See the log"),
        ({3: 8}, "no sign of life from rank 3 after step 5 (training). See the log"),
    ],
)
def test_the_rank_that_fell_silent_first_is_named_with_its_step(counts: Mapping[int, int], says: str) -> None:
    assert says in describe({rank: Beat(count, 5, TRAINING, 1) for rank, count in counts.items()})


def test_a_pulse_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_beats(tmp_path / "none") == {}
    pulse = Pulse(tmp_path, 3)
    assert read_beats(tmp_path) == {}, "no beat yet, so nothing is watched"
    pulse.beat(FIRST_STEP, 0)
    pulse.beat(SAVING, 20)
    (beat,) = read_beats(tmp_path).values()
    assert (beat.count, beat.step, beat.phase) == (2, 20, SAVING)
    (tmp_path / "4.pulse").write_bytes(b"half")
    assert list(read_beats(tmp_path)) == [3]


# Sleeps in C with the interpreter's lock held, so that no Python code of this process can run.
_STUCK = """
import ctypes, sys
from pathlib import Path
from stoker.rank.pulse import TRAINING, Pulse
def in_the_collective(pulse):
    pulse.beat(TRAINING, 5)
    while True:
        ctypes.PyDLL(None).sleep(60)
in_the_collective(Pulse(Path(sys.argv[1]), 1))
"""


def test_a_process_stuck_in_c_still_shows_its_stacks(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "src"
    log = tmp_path / "log"
    with log.open("wb") as stream:
        stuck = subprocess.Popen(
            [sys.executable, "-c", _STUCK, tmp_path], stderr=stream, env={"PYTHONPATH": str(source)}
        )
    try:
        deadline = time.monotonic() + 120
        while not (beats := read_beats(tmp_path)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        said: list[str] = []
        print_stacks(beats, said.append)
        assert said == ["stacks of rank 1 (training, step 5 done):"]
        assert "in in_the_collective" in log.read_text()
        assert stuck.poll() is None
    finally:
        stuck.kill()
        stuck.wait()
