"""Which torch a build takes, so that a repeated build takes the same one without asking any index."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from images.builder import ROOT, install

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_WHEELS = ROOT.parent / "shared" / "wheels"
"""Folder that is looked in for a CPU torch when WHEELS names no other."""

CPU_BUILD, PYPI_BUILD, NO_BUILD = "cpu-torch", "pypi-torch", "no-torch"
"""The builds of torch that differ: without CUDA, from wherever its wheel comes, and PyPI's; or an image has none."""


def wheels_folder() -> Path | None:
    """Return the folder of wheels to use: `$WHEELS`, else the default one, else none.

    Raises:
        SystemExit: 66 when WHEELS names a folder that does not exist.
    """
    named = os.environ.get("WHEELS")
    if named:
        if not Path(named).is_dir():
            install.fail(install.EX_NOINPUT, f"WHEELS={named} is not a folder; unset it to take torch from an index")
        return Path(named).resolve()
    return DEFAULT_WHEELS if DEFAULT_WHEELS.is_dir() else None


def choose(
    requirements: Path,
    accelerator: str,
    is_built: Callable[[str], bool],
    python: tuple[int, int] = install.THIS_PYTHON,
) -> tuple[str, str]:
    """Choose where torch comes from.

    What was built before decides: with a CPU torch it stays as it is, wherever the wheel came from; with PyPI's torch
    it stays too, unless a folder of wheels now offers the smaller one.

    Args:
        requirements: the image's folder of locks.
        accelerator: a variant of the image.
        is_built: tells whether the thing to build exists already with one of the two builds of torch.
        python: the Python it is built for.

    Returns:
        The source, as `install.torch_source` names them, and the build of torch it yields.
    """
    if not install.has_torch(requirements):
        return "none", NO_BUILD
    wheels = wheels_folder()
    if accelerator == "cpu" and is_built(CPU_BUILD):
        return "wheels", CPU_BUILD
    if is_built(PYPI_BUILD) and not install.has_cpu_wheel(requirements, accelerator, wheels, python):
        return "pypi", PYPI_BUILD
    source = install.torch_source(requirements, accelerator, wheels, python)
    return source, PYPI_BUILD if source == "pypi" else CPU_BUILD
