"""Asynchronous GRPO trains what samplers wrote: as TRL trains it, on one rank and two, and never what others wrote."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
# How often the guard looks in these runs.
EVERY = 6


def result_of(case: str, python: Path, inputs: Path, folder: Path, ranks: int = 1) -> dict[str, Any]:
    """Return what a case found in an environment with the trainers."""
    script = Path(__file__).with_name("grpo_async_cases.py")
    group = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    done = subprocess.run(
        [str(python), *group, str(script), case, str(inputs / "model"), str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def same(trainer_python: Path, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What TRL's trainer and ours made of the same samples."""
    return result_of("same", trainer_python, inputs, tmp_path_factory.mktemp("same"))


@pytest.fixture(scope="module")
def faults(trainer_python: Path, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How runs ended whose samplers were faulty."""
    return result_of("faults", trainer_python, inputs, tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def pair(trainer_python: Path, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two ranks did: train, evaluate, stop while they waited, resume."""
    return result_of("pair", trainer_python, inputs, tmp_path_factory.mktemp("pair"), ranks=2)


@pytest.mark.parametrize("case", ["uncorrected", "decoupled", "dr_grpo"])
def test_without_staleness_it_is_trls_trainer_bit_for_bit(same: dict[str, Any], case: str) -> None:
    theirs, ours = (same[case]["losses"][index] for index in (0, 1))
    assert theirs == ours
    assert same[case]["theirs"] == same[case]["ours"]


def test_two_ranks_are_trls_trainer_bit_for_bit(pair: dict[str, Any]) -> None:
    assert pair["theirs"] == pair["ours"]


def test_two_ranks_stop_while_they_wait_and_resume_where_they_were(pair: dict[str, Any]) -> None:
    assert pair["stopped"] == "stopped at step 3, checkpoint saved"
    assert "rollouts.json" in pair["seal"]
    assert (pair["state"]["step"], pair["state"]["frontier"]) == (3, 6)
    assert pair["step"] == 5
    assert len({*pair["weights"]}) == 1
    # Each step once, in order: the resumed attempt writes no step again.
    assert [line["step"] for line in pair["metrics"]] == [1, 2, 3, 4, 5]
    assert [line["eval_version"] for line in pair["evaluated"]] == [2, 4, 5]


def test_every_metric_of_every_step_and_a_few_texts_are_kept(pair: dict[str, Any]) -> None:
    for line in pair["metrics"]:
        assert {"loss", "grad_norm", "learning_rate", "reward", "entropy", "guard/error", "rollout/flat_groups"} <= {
            *line
        }
        assert line["staleness/max"] <= 1
        assert sum(line["staleness/histogram"]) == 8
        assert sum(line["sampling/ratio/histogram"]) == 8 * 6
    assert {sample["step"] for sample in pair["samples"]} >= {0, 1, 2, 3, 4}


def test_flags_give_the_arithmetic_of_kubetorchs_example(trainer_python: Path, inputs: Path, tmp_path: Path) -> None:
    found = result_of("kubetorch", trainer_python, inputs, tmp_path)
    assert found["correction"] == "none"
    assert found["moved"] > 1e-3
    # TRL adds 1e-4 to the standard deviation, the example 1e-8.
    assert found["difference"] < 1e-3 * found["moved"]


def test_what_is_written_ahead_is_trained_once_within_the_bound(
    trainer_python: Path, inputs: Path, tmp_path: Path
) -> None:
    found = result_of("ahead", trainer_python, inputs, tmp_path)
    for mode, run in found.items():
        assert [line["step"] for line in run["metrics"]] == [1, 2, 3, 4, 5, 6], mode
        assert max(line["staleness/max"] for line in run["metrics"]) <= 3, mode
        assert max(line["guard/error"] for line in run["metrics"] if line["guard/error"] is not None) < 1e-4, mode
        rows = [tuple(row) for row in run["rows"]]
        assert len(rows) == len({*rows}), mode
    # One forward pass less, but the same metric of how far trainer and samplers are apart.
    assert "sampling/importance_sampling_ratio/mean" in found["decoupled"]["metrics"][-1]
    assert "sampling/importance_sampling_ratio/mean" not in found["behaviour"]["metrics"][-1]
    assert "cispo_clip_ratio" in found["behaviour"]["metrics"][-1]
    assert all(line["sampling/ratio/mean"] for line in found["behaviour"]["metrics"])


def test_samplers_that_serve_what_they_name_are_no_fault(faults: dict[str, Any]) -> None:
    clean = faults["none"]
    assert (clean["step"], clean["ended"], clean["stopped"]) == (20, None, True)
    assert max(clean["staleness"]) == 2
    assert max(error for error in clean["error"] if error is not None) < 1e-4


@pytest.mark.parametrize(
    ("case", "code", "words"),
    [
        ("no effect", 70, "serves the base model, without an adapter"),
        ("stale", 70, "serves version"),
        ("swapped", 70, "serves version"),
        ("other base", 78, "serves no version of this run"),
        ("temperature", 78, "serves no version of this run"),
    ],
)
def test_samplers_that_serve_something_else_end_the_run(
    faults: dict[str, Any], case: str, code: int, words: str
) -> None:
    found = faults[case]
    assert found["ended"] is not None, found
    assert found["ended"][0] == code
    assert words in found["ended"][1]
    assert found["stopped"], "the rollouts ended with the run"
    # From the first version that differs by more than the noise, the guard needs no more steps than it promises. What
    # a version wrote is trained two steps later.
    noise = found["noise"][0] or 0.0
    apart = [int(version) for version, difference in found["differences"].items() if difference > noise]
    first = min(apart) + 2 if apart else 0
    assert found["step"] <= first + EVERY
