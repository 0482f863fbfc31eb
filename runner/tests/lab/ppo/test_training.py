"""PPO with real models of transformers: sums as the definitions have them, checkpoints, and policies that learn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runner.tests.lab.scripts import failures, seen
from runner.tests.samples import check

CASES = Path(__file__).with_name("ppo_cases.py")


def test_ppo_is_what_its_definitions_say_and_learns(trainer_python: Path, tmp_path: Path) -> None:
    failed = failures(trainer_python, CASES, tmp_path)
    assert not failed, failed
    check(json.loads((tmp_path / "manifest.json").read_text()), "manifest-v1")


@pytest.mark.full
def test_ppo_learns_beside_vllm(lab_python: Path, tmp_path: Path) -> None:
    failed = failures(lab_python, CASES, tmp_path)
    assert not failed, failed


@pytest.mark.full
def test_three_seeds_reach_the_bar(trainer_python: Path, tmp_path: Path) -> None:
    assert seen(trainer_python, CASES, tmp_path, "three_seeds_reach_the_bar") == {}
