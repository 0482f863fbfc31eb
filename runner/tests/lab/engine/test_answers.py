"""An engine that generates with transformers ends its answers, and computes where the machine is fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runner.tests.lab import scripts

CASES = Path(__file__).with_name("answer_cases.py")


@pytest.fixture(scope="module")
def seen(trainer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process with an engine saw."""
    found: dict[str, Any] = scripts.seen(trainer_python, CASES, tmp_path_factory.mktemp("answers"))
    return found


def test_an_answer_ends_by_the_tokenizer_where_the_model_names_no_end(seen: dict[str, Any]) -> None:
    assert seen["ends"] == {"before": "length", "tokens": [1, 1], "ends": ["stop", "stop"]}


def test_the_model_is_on_the_gpu_unless_the_user_says_where(seen: dict[str, Any]) -> None:
    assert seen["devices"] == [["cuda"], []]
