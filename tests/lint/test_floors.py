"""The rooms of the runner import downward, and name each other in imports alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lint.files import ROOT, report
from lint.source import SOURCE, literals, source_files
from stoker.frameworks import known_frameworks

# What is started with `python -m`, with the arguments that show that it starts.
TARGETS = {
    "stoker.entry.shims": ["trl", "--version"],
    "stoker.node.torchrun": [],
    "stoker.rank.lifeline": [],
    "stoker.rank.worker": [],
    "stoker.rollouts.child": [],
}
# The modules that run a trainer in each process: a plan names them.
TRAINERS = {"stoker.frameworks.torchtune.trainer", "stoker.frameworks.trl.trainer"}
# Names that are no module of a room: the scripts that TRL lacks, public faces in messages, and the entry-point group.
PUBLIC = {
    "stoker.backends",
    "stoker.plugin",
    "stoker.scripts",
    "stoker.scripts.orpo",
    "stoker.scripts.grpo_async",
}
# Files that name modules below their own folder in strings → why.
BELOW = {
    "lab/__init__.py": "a public name is loaded when it is used; imports for types beside them show the arrows",
    "serve/weights/workers.py": "vLLM loads a copy of that file; the runner's processes for serving have no torch",
}


def test_rooms_import_downward() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "NO_COLOR": "1"},
    )
    if done.returncode:
        pytest.fail(done.stdout.partition("Broken contracts")[2] or done.stdout + done.stderr, pytrace=False)


def modules() -> set[str]:
    """Return every module of the runner by its dotted name."""
    paths = (path.relative_to(SOURCE).with_suffix("") for path in source_files())
    return {".".join(path.parts).removesuffix(".__init__") for path in paths}


def named_in_strings() -> Iterator[tuple[Path, int, str]]:
    """Yield each module of the runner that a string of it names: file, line, name. Docstrings may name any."""
    known = modules() - {"stoker"}
    for path in source_files():
        for line, text in literals(path):
            for word in re.findall(r"stoker(?:\.\w+)+", text):
                if module := module_in(word, known):
                    yield path.relative_to(ROOT), line, module


def module_in(word: str, known: set[str]) -> str:
    """Return the module in a dotted name, which may go on with what is in it; empty without one."""
    while word and word not in known:
        word = word.rpartition(".")[0]
    return word


def named_below() -> Iterator[tuple[str, str]]:
    """Yield each string that names a module below its file's folder, by its file or with dots: file, string.

    One word alone may mean anything.
    """
    for path in source_files():
        for _, text in literals(path):
            if re.fullmatch(r"\w+\.py|\w+(?:\.\w+)+", text):
                below = path.parent / (text if text.endswith(".py") else f"{text.replace('.', '/')}.py")
                if below.is_file():
                    yield str(path.relative_to(SOURCE / "stoker")), text


def test_the_trainers_are_those_of_the_frameworks() -> None:
    assert {framework.training for framework in known_frameworks().values()} == TRAINERS


def test_strings_name_no_module_but_what_is_started_or_public() -> None:
    allowed = {*TARGETS, *TRAINERS, *PUBLIC}
    found = list(named_in_strings())
    report(
        [f"{path}:{line}: {name}" for path, line, name in found if name not in allowed],
        "Import the module: a name in a string hides the arrow.",
    )
    assert allowed == {name for _, _, name in found}, "what no string names any more leaves the list"


def test_a_name_may_go_on_behind_its_module() -> None:
    known = {"stoker.plan", "stoker.plan.plan"}
    assert module_in("stoker.plan.plan.Plan.read", known) == "stoker.plan.plan"
    assert module_in("stoker.dev.Plan", known) == ""


def test_few_files_name_a_module_below_them() -> None:
    found = {*named_below()}
    report(
        [f"{path}: {text}" for path, text in sorted(found) if path not in BELOW],
        "Import the module: a name in a string hides the arrow.",
    )
    assert {*BELOW} == {path for path, _ in found}, "a file that names none any more leaves the list"


@pytest.mark.parametrize("module", sorted(TARGETS))
def test_what_is_started_as_a_module_starts(module: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, *TARGETS[module]],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert not re.search(r"No module named '?stoker|ImportError", done.stderr), done.stderr
