"""The benchmark of the engine that trains asks the sides of each pair in turn, and refuses wrong arguments."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
from benchmarks.lab_engine import KINDS, PAIRS, main, measure

# Answers as a worker does, with the number of letters in what it is asked for.
WORKER = "import json, sys\nfor line in sys.stdin: print(float(len(json.loads(line)[0])), flush=True)"


def test_each_kind_of_pair_is_a_line() -> None:
    workers = {
        name: subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in KINDS
    }
    try:
        lines = list(measure(workers, 2, 1, 1))
    finally:
        for process in workers.values():
            process.kill()
            process.communicate()
    ratios = [line[line.index("ratio") :].split()[1] for line in lines]
    assert [line.startswith(what) for line, (what, _, _) in zip(lines, PAIRS, strict=True)] == [True] * 4
    assert ratios == ["1.750", "1.750", "1.000", "0.800"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--pairs", "0"], "argument --pairs: must be a whole number, 1 or more: '0'"),
        (["--tokens", "some"], "argument --tokens: must be a whole number, 1 or more: 'some'"),
        (["--hidden", "64"], "argument --hidden: must be a whole number, 128 or more: '64'"),
    ],
)
def test_wrong_arguments_are_refused_at_once(words: Sequence[str], problem: str, refusal: Callable[..., str]) -> None:
    assert problem in refusal(main, *words)
