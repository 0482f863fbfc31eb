"""The model of examples/async-grpo, made once for all benchmarks."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks.jobs import ROOT
from benchmarks.paired import say
from images.builder import cache

_EXAMPLE = ROOT / "examples" / "async-grpo" / "adding_model.py"


def adding_inputs(python: Path) -> Path:
    """Return the folder with `model` and `dataset`, which nobody writes to.

    Args:
        python: the Python with trainers.
    """

    def build(folder: Path) -> None:
        say("trains the example's base model (a minute or two)")
        subprocess.run([python, _EXAMPLE, "--output", folder], check=True, stdout=subprocess.DEVNULL)

    key = cache.digest([], [_EXAMPLE, ROOT / "images" / "trl" / "requirements"], ROOT)
    return cache.entry(cache.root() / "benchmarks" / f"adding-{key}", "adding", build)
