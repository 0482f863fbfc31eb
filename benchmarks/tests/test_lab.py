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
from benchmarks.lab import ROWS, Bench, main, of_latency, of_rollouts, of_training, told


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
    line, batch = of_rollouts(told('{\'train_runtime\': 1}\n{"vllm": 500, "transformers": 100, "batch": 64}\nmore\n'))
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
    for number, order in enumerate((["vllm", "transformers"], ["transformers", "vllm"])):
        asked.clear()
        found = lab_sides.sampled(Sampler("vllm", 16), functools.partial(Sampler, "transformers"), prompts, number)
        assert found == {"vllm": 1.0, "transformers": 1.0, "batch": 16}
        assert asked[-2:] == [(name, len(prompts)) for name in order]


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


def test_short_answers_are_reported_by_their_time() -> None:
    (line,) = of_latency([{"ours": 51.0, "plain": 50.0}] * 3)
    assert "stoker.lab 51.00 ms, vLLM 50.00 ms, ratio 1.020" in line
    assert line.endswith("goal at most 1.05: met")
    assert "not measured" in next(of_latency([]))


def test_a_side_that_fails_or_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "side.py"
    monkeypatch.setattr(lab, "_SCRIPT", script)
    bench = Bench(tmp_path, argparse.Namespace(pairs=1, patience=600))
    bench._python = Path(sys.executable)
    script.write_text("import sys; sys.exit('the model is gone')")
    with pytest.raises(JobFailed, match=r"(?s)the model is gone.*plain ended with 1"):
        bench.run("plain")
    script.write_text("import time; time.sleep(600)")
    bench.args.patience = 0.5
    with pytest.raises(JobFailed, match=r"plain did not end within 0\.5 s"):
        bench.run("plain")


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
