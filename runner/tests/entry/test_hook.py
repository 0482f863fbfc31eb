"""What bypasses the PATH shims is recognised from how Python itself was started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stoker
from stoker.contract.variables import PLAN_FILE
from stoker.entry import hook
from stoker.entry.hook import is_trainer, launcher_of

PTH = Path(stoker.__file__).parent.parent / "stoker_guard.pth"


def test_the_variable_that_it_may_not_import_is_the_contracts() -> None:
    assert hook.PLAN_FILE == PLAN_FILE


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("python -m torch.distributed.run --nnodes=2 -m a", ("torchrun", "--nnodes=2 -m a")),
        ("python -u -X dev -W ignore -m torch.distributed.run x.py", ("torchrun", "x.py")),
        ("python -um torch.distributed.launch x.py", ("torchrun", "x.py")),
        ("python -m accelerate.commands.launch x.py", ("accelerate", "launch x.py")),
        ("python -m accelerate.commands.accelerate_cli launch x.py", ("accelerate", "launch x.py")),
        ("python -m trl.cli.main sft", ("trl", "sft")),
        ("python -m trl sft", ("trl", "sft")),
        ("python -um trl sft", ("trl", "sft")),
        ("python -m torchtune._cli.tune run full", ("tune", "run full")),
        ("python -uc pass torchrun", None),
        ("python /opt/venv/bin/torchrun -m trl.scripts.sft", ("torchrun", "-m trl.scripts.sft")),
        ("python -I /opt/venv/bin/trl sft", ("trl", "sft")),
        ("python /opt/venv/bin/accelerate launch x.py", ("accelerate", "launch x.py")),
        ("python train.py -m torch.distributed.run", None),
        ("python -c pass torchrun", None),
        ("python -m my.module torchrun", None),
        ("python -m", None),
        ("python", None),
        ("python -W torchrun train.py", None),
    ],
)
def test_launchers_are_recognised(words: str, expected: tuple[str, str] | None) -> None:
    found = launcher_of(words.split())
    assert found == (None if expected is None else (expected[0], expected[1].split()))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("python -m trl.scripts.sft --max_steps 1", True),
        ("python -Im trl.scripts.dpo", True),
        ("python -u /site-packages/trl/scripts/sft.py", True),
        ("python -m stoker.scripts.orpo", True),
        ("python /site-packages/stoker/scripts/orpo.py", True),
        ("python train.py -m trl.scripts.sft", False),
        ("python scripts/sft.py", False),
        ("python -c trl", False),
        ("python", False),
    ],
)
def test_bare_trainers_are_recognised(words: str, expected: bool) -> None:
    assert is_trainer(words.split()) is expected


def started(folder: Path, script: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a Python that reads the .pth line, as one with the package installed does."""
    (folder / "sitecustomize.py").write_text(PTH.read_text())
    path = os.pathsep.join([str(folder), str(PTH.parent)])
    return subprocess.run(
        [sys.executable, script], env={**os.environ, "PYTHONPATH": path}, check=True, capture_output=True, text=True
    )


def test_the_pth_line_costs_other_processes_next_to_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys; print(*sorted(sys.modules))")
    usual = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True).stdout.split()
    ours = started(tmp_path, script).stdout.split()
    assert set(ours) - set(usual) == {"sitecustomize", "__future__", "stoker", "stoker.entry", "stoker.entry.hook"}


@pytest.mark.parametrize(("script", "guarded"), [("stoker/scripts/orpo.py", True), ("my/scripts/orpo.py", False)])
def test_the_pth_line_arms_the_guard_in_trainers_alone(tmp_path: Path, script: str, guarded: bool) -> None:
    path = tmp_path / script
    path.parent.mkdir(parents=True)
    path.write_text("import sys; print(any(type(finder).__name__ == 'GuardFinder' for finder in sys.meta_path))")
    done = started(tmp_path, path)
    assert (done.stdout.strip(), done.stderr) == (str(guarded), "")
