"""The guard lets a group train that is what was asked for, and no other."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def results(trainer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str] | None]:
    """What the guard said to a group of two in each case."""
    script = Path(__file__).with_name("guard_cases.py")
    launcher = [str(trainer_python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, str(script), str(tmp_path_factory.mktemp("guard"))],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[int, str] | None] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("case", ["same", "no folder"])
def test_a_group_that_is_what_was_asked_for_trains(results: dict[str, tuple[int, str] | None], case: str) -> None:
    assert results[case] is None


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("larger world", "the world size is 2, but 4 was requested: this process would train in another group"),
        ("other plan", "ranks 1 and 0 have different plans (plan-1, plan-0)"),
        ("other image", "rank 1 runs image 1.1, rank 0 runs 1.0"),
        ("own folders", "the workspace is not shared: rank 1 does not see the file of rank 0"),
    ],
)
def test_any_other_group_is_refused(results: dict[str, tuple[int, str] | None], case: str, message: str) -> None:
    refused = results[case]
    assert refused is not None
    assert refused[0] == 78
    assert message in refused[1]
