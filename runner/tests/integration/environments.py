"""The images' environments on this machine, and what their Pythons make once for all sessions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from images.builder import cache

ROOT = Path(__file__).parents[3]
# A tiny `model` and data sets.
TINY_INPUTS = Path(__file__).with_name("tiny_inputs.py")
# Nothing else shows that trainers and vLLM go together: without it, tests fail, and are not skipped.
NEEDED = ("lab",)


def environment(image: str, accelerator: str = "cpu", runner: bool = True) -> Path:
    """Return the Python of an environment as in an image, with this runner; skip the test if it cannot be made.

    The test fails instead if the environment is one of `NEEDED`.
    """
    command = [sys.executable, f"images/{image}/venv", "--accelerator", accelerator]
    command += ["--with-runner"] if runner else []
    made = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if made.returncode:
        stop = pytest.fail if image in NEEDED else pytest.skip
        stop(f"no environment with {image} could be made: {made.stderr.strip().splitlines()[-1]}")
    return Path(made.stdout.strip()) / "bin" / "python"


def made_once(image: str, python: Path, script: Path, *options: str | Path) -> Path:
    """Return the folder that a script fills, made by the first session that asks for it: no test writes to it.

    Args:
        image: the name of the image that the Python is of.
        python: the Python.
        script: the script; the folder is its last argument.
        options: the arguments before it; the content of files decides what is made, as that of the script.
    """

    def build(folder: Path) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([python, script, *options, folder], check=True, env=env)

    words = [option for option in options if isinstance(option, str)]
    files = [option for option in options if isinstance(option, Path)]
    key = cache.digest(words, [script, *files, ROOT / "images" / image / "requirements"], ROOT)
    # A family for each script: what replaces an entry is made by the same one.
    family = f"{script.stem}-{image}"
    return cache.entry(cache.root() / "tests" / f"{family}-{key}", family, build)
