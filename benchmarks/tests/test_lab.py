"""What the lab's benchmark makes of its sides, and that it refuses wrong arguments."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks import lab, lab_sides
from benchmarks.jobs import JobFailed
from benchmarks.lab import ROWS, Bench, latency, main, of_latency, of_memory, of_rollouts, of_training


def test_pairs_of_trainings_are_reported_by_speed_and_memory() -> None:
    speed, memory = of_training([({"speed": 99.0, "peak": 510.0}, {"speed": 100.0, "peak": 500.0})] * 3)
    assert speed == (
        "training                 stoker.lab 99.00 tokens/s, TRL alone 100.00 tokens/s, "
        "ratio 0.990 (0.990 to 0.990) of 3 pairs, goal at least 0.98: met"
    )
    assert "TRL alone 500.00 MiB, ratio 1.020" in memory
    assert memory.endswith("goal at most 1.02: met")
    assert "not measured" in next(of_training([]))


def test_rollouts_are_reported_with_the_best_batch() -> None:
    line, batch = of_rollouts([{"vllm": 500, "transformers": 100, "batch": 64}])
    assert "vLLM 500.00 tokens/s, transformers 100.00 tokens/s, ratio 5.000" in line
    assert batch == "  transformers was fastest with 64 prompts at a time"
    assert line.endswith("goal at least 2: met")
    assert "not measured" in next(of_rollouts([]))


def test_both_samplers_get_all_prompts_and_transformers_its_best_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []
    clock = [0.0]

    class Sampler:
        """Takes a second for each time that it is asked, and two with another batch than 16."""

        def __init__(self, name: str, size: int) -> None:
            self.name, self.size = name, size

        def sample(self, prompts: Sequence[Sequence[int]]) -> list[Any]:
            asked.append((self.name, len(prompts)))
            clock[0] += len(prompts) * (1 if self.size == 16 else 2)
            return [SimpleNamespace(ids=[0]) for _ in prompts]

    monkeypatch.setattr(lab_sides, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    prompts = [[0]] * lab_sides.PROMPTS
    assert lab_sides.best(functools.partial(Sampler, "transformers"), prompts) == 16
    assert [count for _, count in asked] == [32, 32, 32, 64, 128]
    for number, order in enumerate((["vllm", "transformers"], ["transformers", "vllm"])):
        asked.clear()
        found = lab_sides.sampled(Sampler("vllm", 16), Sampler("transformers", 64), prompts, number)
        assert found == {"vllm": 1.0, "transformers": 0.5}
        assert asked == [(name, len(prompts)) for name in order]


def test_a_training_is_timed_from_its_rows_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [3.0]
    monkeypatch.setattr(lab_sides, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(lab_sides, "Peak", lambda: nullcontext(SimpleNamespace(bytes=2**20)))

    class Trainer:
        """Is made in 6 seconds, and trains for 2."""

        def __init__(self) -> None:
            clock[0] += 6

        def train(self) -> float:
            clock[0] += 2
            return 2.0

    found = lab_sides.trained(lambda: Trainer().train())
    assert found == {"speed": len(lab_sides.rows()) * lab_sides.LENGTH / 8, "peak": 1.0}
    updates = len(lab_sides.rows()) / lab_sides.SHARED["per_device_train_batch_size"]
    assert updates * lab_sides.SHARED["num_train_epochs"] >= 32


def test_memory_is_reported_of_the_pairs_that_ended() -> None:
    (line,) = of_memory([({"peak": 600.0}, {"peak": 500.0})])
    assert "RLHF 600.00 MiB, training 500.00 MiB, ratio 1.200 (1.200 to 1.200) of 1 pairs" in line
    assert "not measured" in next(of_memory([]))


def test_short_answers_are_reported_by_their_time() -> None:
    (line,) = of_latency([{"ours": 51.0, "plain": 50.0}] * 3)
    assert "stoker.lab 51.00 ms, vLLM 50.00 ms, ratio 1.020" in line
    assert line.endswith("goal at most 1.05: met")
    assert "not measured" in next(of_latency([]))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return one whose sides are `side.py` in `tmp_path`."""
    monkeypatch.setattr(lab, "_SCRIPT", tmp_path / "side.py")
    bench = Bench(tmp_path, argparse.Namespace(pairs=3, patience=600))
    bench._python = Path(sys.executable)
    return bench


def test_a_side_that_fails_or_hangs_is_told(bench: Bench, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "side.py").write_text("import sys; sys.exit('the model is gone')")
    with pytest.raises(JobFailed, match=r"side\.py ended with 1: its message is above"):
        bench.once("plain")
    assert "the model is gone" in capfd.readouterr().err
    (tmp_path / "side.py").write_text("import time; time.sleep(5)")
    bench.args.patience = 0.5
    with pytest.raises(JobFailed, match=r"side\.py did not measure within 0\.5 s"):
        bench.once("plain")


def test_pairs_are_told_one_by_one_and_reported_though_a_later_one_is_lost(
    bench: Bench, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "side.py").write_text(
        "from benchmarks.children import answer\n"
        "pairs = iter([{'ours': 51, 'plain': 50}] * 2)\n"
        "answer({'measure': lambda: next(pairs)})\n"
    )
    with pytest.raises(JobFailed):
        latency(bench)
    told = capfd.readouterr()
    assert "pair 1 of 3: {'ours': 51, 'plain': 50}" in told.err
    assert "ratio 1.020 (1.020 to 1.020) of 2 pairs" in told.out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--pairs", "0"], "argument --pairs: must be a whole number, 1 or more: '0'"),
        (["--patience", "0"], "argument --patience: must be a positive number of seconds: '0'"),
        (["engine"], f"argument ROW: there is no row 'engine': choose from {', '.join(ROWS)}"),
    ],
)
def test_wrong_arguments_are_refused_at_once(words: Sequence[str], problem: str, refusal: Callable[..., str]) -> None:
    assert problem in refusal(main, *words)
