"""A mixture of data sets is the same in every process of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runner.tests.integration.scripts import printed


@pytest.mark.full
def test_all_processes_put_the_same_rows_of_a_mixture_aside(trainer_python: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.jsonl").write_text("".join(json.dumps({"text": f"{n}"}) + "\n" for n in range(100)))

    def aside(process: str, *flags: str) -> list[str]:
        (found,) = printed(trainer_python, "mixture_split.py", data, tmp_path / process, *flags)
        return [str(text) for text in found]

    first = aside("0")
    assert len(first) == 50
    assert aside("1") == first
    assert aside("0", "--seed", "7") != first
