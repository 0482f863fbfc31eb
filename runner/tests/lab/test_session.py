"""A policy by the address of a session that trains: the same calls as in a notebook, at a real endpoint."""

from __future__ import annotations

from pathlib import Path

from runner.tests.lab.scripts import failures

CASES = Path(__file__).with_name("session_cases.py")


def test_a_policy_trains_and_answers_in_a_session(trainer_python: Path, inputs: Path, tmp_path: Path) -> None:
    failed = failures(trainer_python, CASES, inputs / "model", tmp_path)
    assert not failed, failed
