"""A stop that comes while `stoker run` is still importing itself is not lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from runner.tests.samples import POD

from stoker.contract.exits import ExitCode

# Asks the process to stop at the moment it begins to import its own command line.
_STOPPED_EARLY = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class Stop(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "stoker.commands.main":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Stop())
sys.argv = ["stoker", *sys.argv[1:]]
from stoker.__main__ import main
main()
"""
_AS_FIRST_PROCESS = ("unshare", "--pid", "--fork")


def stopped_early(tmp_path: Path, *args: str, by: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run a command that is asked to stop before it has imported itself.

    Args:
        tmp_path: the workspace.
        args: the command's arguments.
        by: the command that starts it.
    """
    told = {
        **POD,
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        "PET_MASTER_ADDR": "127.0.0.1",
        "STOKER_ARG_MODEL_NAME_OR_PATH": "org/model",
        "STOKER_ARG_DATASET_NAME": "org/data",
        "STOKER_WORKSPACE": str(tmp_path),
        "STOKER_TERMINATION_LOG": str(tmp_path / "termination-log"),
        # No peer will say how it ended.
        "STOKER_GRACE_PERIOD_SECONDS": "6",
    }
    # The run looks whether its packages are there before it waits for anything, and imports none of them.
    for name in ("torch", "transformers", "trl", "peft", "accelerate", "datasets"):
        (tmp_path / "packages" / name).mkdir(parents=True)
    told["PYTHONPATH"] += f"{os.pathsep}{tmp_path / 'packages'}"
    command = [*by, sys.executable, "-c", _STOPPED_EARLY, *args]
    return subprocess.run(command, env={**os.environ, **told}, check=False, capture_output=True, text=True, timeout=120)


def test_a_stop_during_the_imports_of_a_run_ends_it_before_training(tmp_path: Path) -> None:
    done = stopped_early(tmp_path, "run")
    assert done.returncode == ExitCode.STOPPED, done.stderr
    assert "stopped before training began; nothing was lost" in (tmp_path / "termination-log").read_text()


def test_another_command_just_ends(tmp_path: Path) -> None:
    assert stopped_early(tmp_path, "plan").returncode == -15


@pytest.mark.skipif(os.geteuid() != 0, reason="the first process of a namespace needs root")
def test_another_command_that_is_the_first_process_of_its_container_ends_too(tmp_path: Path) -> None:
    done = stopped_early(tmp_path, "plan", by=_AS_FIRST_PROCESS)
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.STOPPED, "", "")
