"""What the launch benchmark prints of its pairs, and that it refuses wrong arguments before it does anything."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from benchmarks.jobs import Run
from benchmarks.launch_overhead import main, report

PROGRAM = Path(__file__).parents[1] / "launch_overhead.py"
ENDED = Run(10.0, 20.0, 24.0, 30.0)
TORCHRUN_ENDED = Run(8.0, 20.0, 32.0, 40.0)
HUNG = Run(8.0, 20.0, None, None, waited=20.0)
HUNG_EARLY = Run(None, None, None, None, waited=120.0)


def test_pairs_that_ended_are_reported_without_losses() -> None:
    ratios = [line[line.index("ratio") :].split()[1] for line in report([(ENDED, TORCHRUN_ENDED)] * 2)]
    assert ratios == ["1.250", "1.000", "0.750", "0.750"]


def test_a_run_that_hung_at_its_end_counts_as_far_as_it_came() -> None:
    """Leaving out the whole pair left nothing to report on a machine where most of torchrun's runs hang."""
    lines = list(report([(ENDED, TORCHRUN_ENDED), (ENDED, HUNG), (ENDED, HUNG)]))
    assert [line.rpartition("of ")[2] for line in lines[:4]] == ["3 pairs", "3 pairs", "1 pairs", "1 pairs"]
    (lost,) = lines[4:]
    assert lost == (
        "lost: torchrun did not end in 2 of 3 runs, which took 40 s of waiting: "
        "pair 2 (hung at its end, killed after 20 s of silence), "
        "pair 3 (hung at its end, killed after 20 s of silence)"
    )


def test_what_no_pair_has_is_said() -> None:
    lines = list(report([(HUNG_EARLY, HUNG)]))
    assert all("not measured" in line for line in lines[:4])
    assert [line[:40] for line in lines[4:]] == [
        "lost: stoker run did not end in 1 of 1 runs, which took 120 s"[:40],
        "lost: torchrun did not end in 1 of 1 runs, which took 20 s"[:40],
    ]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--pairs", "-1"], "argument --pairs: must be a whole number, 0 or more: '-1'"),
        (["--pairs", "some"], "argument --pairs: must be a whole number, 0 or more: 'some'"),
        (["--processes", "0"], "argument --processes: must be a whole number, 1 or more: '0'"),
        (["--steps", "0"], "argument --steps: must be a whole number, 1 or more: '0'"),
        (["--patience", "0"], "argument --patience: must be a positive number of seconds: '0'"),
        (["--pair-count", "1"], "unrecognized arguments: --pair-count 1"),
    ],
)
def test_wrong_arguments_are_refused_at_once(words: Sequence[str], problem: str, refusal: Callable[..., str]) -> None:
    assert refusal(main, *words) == problem


def test_it_starts_as_a_script_from_anywhere(tmp_path: Path) -> None:
    ended = subprocess.run([PROGRAM, "--help"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "--patience" in ended.stdout
