"""The installed wheel, far from its source: the hook, the commands, every module that is started, and its data."""

from __future__ import annotations

import ast
import json
import os
import re
import sysconfig
import zipfile
from pathlib import Path

import pytest
from runner.tests.wheel.installed import Installed

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "runner" / "src"
# Modules of ours that `python -c pass` imported with the wheel of 869a3b6, besides packages' own files.
HOOKS = 1
# Launchers with a slip in the trainer's arguments, which only the runner's plan notices.
LAUNCHES = {
    "torchrun": "-m trl.scripts.sft --max_stps 1",
    "trl": "sft --max_stps 1",
    "accelerate": "launch -m trl.scripts.dpo --max_stps 1",
    "tune": "run full_finetune_distributed --config llama3_2/1B max_stps=1",
}
FRAMEWORKS = {"tune": {"STOKER_FRAMEWORK": "torchtune"}}
# Texts in quotes that look like a module of ours and name something else: the manifest, the plugins' entry points.
NO_MODULES = {"stoker.json", "stoker.backends"}


def stoker_modules(installed: Installed) -> set[str]:
    """Return the modules of ours that a Python has imported once it is up."""
    shown = installed.python("-c", "import sys; print(*(m for m in sys.modules if m.partition('.')[0] == 'stoker'))")
    return {*shown.stdout.split()}


def file_of(installed: Installed, module: str) -> Path:
    """Return an installed module's file."""
    path = installed.packages.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def named_modules(installed: Installed) -> list[str]:
    """Return the modules of ours that stand in quotes somewhere in the package: those that a process starts."""
    texts = [path.read_text() for path in (installed.packages / "stoker").rglob("*.py")]
    return sorted({name for text in texts for name in re.findall(r'"(stoker(?:\.\w+)+)"', text)} - NO_MODULES)


def test_all_that_lies_beside_the_modules_is_in_the_wheel(wheel: Path) -> None:
    held = {*zipfile.ZipFile(wheel).namelist()}
    wanted = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*") if path.is_file()}
    assert not {path for path in wanted if "__pycache__" not in path and not path.endswith(".pyc")} - held
    assert any(path.endswith("manifest-v1.json") for path in held)


def test_other_pythons_are_left_alone(installed: Installed) -> None:
    done = installed.python("-c", "pass")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    files = [file_of(installed, module) for module in stoker_modules(installed)]
    holding = [path for path in files if path.name != "__init__.py"]
    assert len(holding) == HOOKS
    for path in {*files} - {*holding}:
        lines = [line for line in ast.parse(path.read_text()).body if not isinstance(line, ast.Expr)]
        said = [ast.unparse(line) for line in lines]
        assert all(line.startswith("__version__ = ") for line in said), f"{path} is imported by every Python: {said}"


@pytest.mark.parametrize(("script", "guarded"), [("trl/scripts/sft.py", True), ("my/scripts/sft.py", False)])
def test_the_hook_arms_the_guard_in_trainers_alone(
    installed: Installed, tmp_path: Path, script: str, guarded: bool
) -> None:
    path = tmp_path / script
    path.parent.mkdir(parents=True)
    path.write_text("import sys; print(any(type(finder).__name__ == 'GuardFinder' for finder in sys.meta_path))")
    done = installed.python(path)
    assert (done.stdout.strip(), done.stderr) == (str(guarded), "")


def test_the_hook_brings_a_launcher_past_the_path_to_the_runner(installed: Installed) -> None:
    done = installed.python("-m", "torch.distributed.run", *LAUNCHES["torchrun"].split())
    assert (done.returncode, "max_stps" in done.stderr) == (64, True), done.stderr


@pytest.mark.parametrize("command", LAUNCHES)
def test_a_shim_launches_what_is_ours_and_passes_on_the_rest(
    installed: Installed, tmp_path: Path, command: str
) -> None:
    shim, real = tmp_path / "shims" / command, tmp_path / "real" / command
    for path in (shim, real):
        path.parent.mkdir()
    shim.symlink_to(installed.commands / "stoker-shim")
    real.write_text('#!/bin/sh\necho "real $@"\n')
    real.chmod(0o755)
    search = f"{shim.parent}:{real.parent}:/usr/bin:/bin"
    done = installed.run(shim, *LAUNCHES[command].split(), PATH=search, **FRAMEWORKS.get(command, {}))
    assert (done.returncode, "max_stps" in done.stderr) == (64, True), done.stderr
    done = installed.run(shim, "--help", PATH=search)
    assert (done.returncode, done.stdout) == (0, "real --help\n"), done.stderr


def test_every_module_that_is_started_is_there(installed: Installed) -> None:
    """Without torch and the trainers most of them do not come far; real runs are the integration tests'."""
    plan = installed.run(
        *("stoker", "plan", "--output", "json", "trl.scripts.sft"),
        *("--model_name_or_path", "a/b", "--dataset_name", "c/d"),
    )
    started = {*named_modules(installed), json.loads(plan.stdout)["torchrun_argv"][-1]}
    assert {"stoker.scripts.orpo", "stoker.scripts.grpo_async"} < started
    for module in started:
        assert file_of(installed, module).exists(), module
        done = installed.python("-m", module)
        assert not re.search(r"(No module named|cannot import name .* from) '?stoker", done.stderr), done.stderr


def test_the_commands_start(installed: Installed) -> None:
    for done in (installed.run("stoker", "--version"), installed.python("-m", "stoker", "--version")):
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout.startswith("stoker, version ")
    (lifeline,) = (module for module in named_modules(installed) if module.endswith(".lifeline"))
    done = installed.python("-m", lifeline, str(os.getpid()), "/bin/echo", "alive")
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


@pytest.mark.parametrize(
    "module",
    [
        *("stoker.backends", "stoker.backends.initializer", "stoker.frameworks", "stoker.frameworks.base"),
        *("stoker.arguments", "stoker.sdk", "stoker.training.transformers", "stoker.scripts.orpo", "stoker.lab.policy"),
    ],
)
def test_documented_names_import_as_before(installed: Installed, module: str) -> None:
    done = installed.python("-c", f"import {module}")
    assert done.returncode == 0 or re.search(r"No module named '(?!stoker)", done.stderr), done.stderr


def test_the_charts_facts_are_those_of_the_wheel(installed: Installed) -> None:
    program = "import charts.generate as g, stoker; print(stoker.__file__); print(g.runner_facts(), end='')"
    tests = [ROOT, ROOT / "tests", sysconfig.get_path("purelib")]
    done = installed.python("-c", program, PYTHONPATH=os.pathsep.join(map(str, tests)))
    where, _, facts = done.stdout.partition("\n")
    assert Path(where).is_relative_to(installed.packages), done.stderr
    assert facts == (ROOT / "charts/training-runtimes/files/runner.json").read_text()
