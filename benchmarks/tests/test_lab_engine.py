"""The benchmark of the engine that trains asks the sides of each pair in turn, and refuses wrong arguments."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from benchmarks import lab_engine
from benchmarks.lab_engine import KINDS, PAIRS, lines, main, measure, ordered, to_first_token

# Answers as a worker does, with the number of letters in what it is asked for.
WORKER = "import json, sys\nfor line in sys.stdin: print(float(len(json.loads(line)[0])), flush=True)"


def test_each_kind_of_pair_is_a_line() -> None:
    workers = {
        name: subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in KINDS
    }
    try:
        found = dict(measure(workers, 2, 1, 1))
    finally:
        for process in workers.values():
            process.kill()
            process.communicate()
    told = list(lines(found))
    ratios = [line[line.index("ratio") :].split()[1] for line in told]
    assert [line.startswith(what) for line, (what, _, _) in zip(told, PAIRS, strict=True)] == [True] * 6
    assert ratios == ["1.750", "1.000", "1.000", "1.750", "1.000", "0.800"]
    goals = [line.partition(", goal ")[2] for line in told]
    assert goals == ["at least 0.98: met", "", "", "", "", "at most 20 ms: met"]


def test_two_untouched_engines_show_how_far_equal_sides_are_from_one() -> None:
    sides = {what: sides for what, sides, _ in PAIRS}
    assert sides["untouched to itself"] == ("untouched base", "again base")
    assert sides["none to untouched"] == ("shared base", "untouched base")


def test_each_kind_is_started_first_and_last() -> None:
    assert [*ordered(0)] == [*reversed(ordered(1))] == [*ordered(2)] == [*KINDS]


def test_the_pairs_of_all_starts_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[str] = []

    @contextmanager
    def worker(python: object, kind: str, model: object) -> Iterator[str]:
        started.append(kind)
        yield kind

    def measured(workers: object, pairs: int, *_: object) -> Iterator[tuple[str, list[tuple[float, float]]]]:
        for pair in PAIRS:
            yield pair[0], [(1.0, 1.0)] * pairs

    monkeypatch.setattr(lab_engine, "worker", worker)
    monkeypatch.setattr(lab_engine, "measure", measured)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="venv"))
    monkeypatch.setattr(sys, "argv", ["lab_engine.py", "--starts", "2", "--pairs", "4"])
    main()
    assert started == [*KINDS, *KINDS[::-1]]
    told = capsys.readouterr().out.splitlines()[1:]
    assert [" of 8 pairs" in line for line in told] == [True] * 6


def test_the_wait_for_a_token_counts_from_the_end_of_the_optimizers_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    hooks: list[Callable[..., None]] = []

    class Optimizer:
        """Calls whoever asks for it after each step."""

        def register_step_post_hook(self, hook: Callable[..., None]) -> SimpleNamespace:
            hooks.append(hook)
            return SimpleNamespace(remove=hooks.clear)

    class Engine:
        """Learns for 5 seconds, forgets what it had computed for 2, and answers for 1."""

        optimizer = Optimizer()

        def train_step(self, batch: object) -> None:
            clock[0] += 5
            hooks[0](None, (), {})
            clock[0] += 2

        def generate(self, prompts: object, max_tokens: int) -> None:
            clock[0] += 1

    monkeypatch.setattr(lab_engine, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    assert [to_first_token(Engine()), to_first_token(Engine(), {})] == [1000, 3000]
    assert not hooks


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
