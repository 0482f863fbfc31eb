"""An image's environment as a virtual environment on this machine, from the same locks and by the same steps.

It is cached by the hash of what it is made from. The Stoker runner is not part of it, since it changes far more often
than torch: with `--with-runner` a second, small environment is made on top, which holds the runner, sees the first
one's packages and takes seconds.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path

from images.builder import ROOT, cache, install

DEFAULT_WHEELS = ROOT.parent / "shared" / "wheels"
"""Folder that is looked in for a CPU torch when WHEELS names no other."""


def wheels_folder() -> Path | None:
    """Return the folder of wheels to use: `$WHEELS`, else the default one, else none.

    Raises:
        SystemExit: 66 when WHEELS names a folder that does not exist.
    """
    named = os.environ.get("WHEELS")
    if named:
        if not Path(named).is_dir():
            install.fail(install.EX_NOINPUT, f"WHEELS={named} is not a folder; unset it to take torch from an index")
        return Path(named)
    return DEFAULT_WHEELS if DEFAULT_WHEELS.is_dir() else None


def this_python() -> list[str]:
    """Return what tells one Python from another, as a virtual environment is bound to the one that made it."""
    return [platform.python_implementation(), sys.version, platform.machine(), sys.base_prefix]


def stack(image: Path, accelerator: str) -> Path:
    """Return the environment of one image and accelerator, made where it is missing.

    An environment with a CPU torch is the same whether its wheel came from a folder or from an index. One with PyPI's
    torch is made only where neither can be had, and then stays in use: a warm start asks no index.
    """
    requirements = image / "requirements"
    wheels = wheels_folder()
    facts = [*this_python(), accelerator]
    key = cache.digest(facts, [Path(install.__file__), *sorted(requirements.glob("*.lock"))], ROOT)
    family = f"{image.name}-{accelerator}-"
    without_cuda, with_cuda = (cache.root() / "venv" / f"{family}{build}-{key}" for build in ("cpu-torch", "pypi-torch"))
    if cache.is_complete(without_cuda):
        source = "wheels"
    elif cache.is_complete(with_cuda) and not install.has_cpu_wheel(requirements, accelerator, wheels):
        source = "pypi"
    else:
        source = install.torch_source(requirements, accelerator, wheels)
    folder = with_cuda if source == "pypi" else without_cuda

    def build(folder: Path) -> None:
        install.say(f"{image.name} environment for {accelerator} into {folder}")
        install.install_stack(folder, requirements, accelerator, source, wheels)

    return cache.entry(folder, build, family=family)


def with_runner(image: Path, base: Path, runner: Path) -> Path:
    """Return an environment that holds the runner and sees the packages of `base`."""
    requirements = image / "requirements"
    sources = [path for path in (runner / "pyproject.toml", runner / "README.md", runner / "src") if path.exists()]
    key = cache.digest([str(base)], [Path(install.__file__), requirements / "tools.lock", *sources], ROOT)
    family = f"{image.name}-runner-"

    def build(folder: Path) -> None:
        install.install_runner(folder, requirements, runner)
        (packages,) = (folder / "lib").glob("python*/site-packages")
        (shared,) = (base / "lib").glob("python*/site-packages")
        # addsitedir, unlike a bare path, also runs the .pth files that lie there.
        (packages / "_stack.pth").write_text(f"import site; site.addsitedir({str(shared)!r})\n", encoding="utf-8")

    return cache.entry(cache.root() / "venv" / f"{family}{key}", build, family=family)


def main(image: Path, command: str) -> None:
    """Run the command line of an image's `venv` command.

    Args:
        image: the image's folder.
        command: the command's name, for the help.

    Raises:
        SystemExit: with the exit codes of `install.py`.
    """
    parser = argparse.ArgumentParser(
        prog=command,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=f"Make the {image.name} image's Python environment on this machine, from the image's own locks, and "
        "print its folder.\nThe second call is instant. Needs Python 3.11 or newer and no root.",
        epilog=f"""environment:
  WHEELS           folder that may hold a CPU torch (default: ../shared/wheels beside the checkout, where it exists)
  TORCH_CPU_INDEX  PyTorch's index of CPU wheels (now {install.TORCH_CPU_INDEX}), asked next; PyPI's torch is last
  XDG_CACHE_HOME   the environment lies under its folder `stoker` (default: ~/.cache)
  PIP_*            pip's own settings apply

examples:
  {command}                                       trainers only
  "$({command} --with-runner)"/bin/stoker --help  with this checkout's runner""",
    )
    parser.add_argument("--accelerator", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    parser.add_argument("--with-runner", action="store_true", help="add the runner of this checkout, in an own layer")
    options = parser.parse_args()
    if sys.version_info < (3, 11):
        install.fail(install.EX_CONFIG, f"Python 3.11 or newer is needed, this is {platform.python_version()}")
    folder = stack(image, options.accelerator)
    print(with_runner(image, folder, ROOT / "runner") if options.with_runner else folder)
