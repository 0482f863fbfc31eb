"""An image's environment as a virtual environment on this machine, from the same locks and by the same steps.

It is cached by the hash of what it is made from. The Stoker runner is not part of it, since it changes far more often
than torch: with `--with-runner` a second, small environment is made on top, which holds the runner, sees the first
one's packages and takes seconds.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from pathlib import Path

from images.builder import ROOT, cache, install, mends, torch_choice


def this_python() -> list[str]:
    """Return what tells one Python from another, as a virtual environment is bound to the one that made it."""
    return [platform.python_implementation(), sys.version, platform.machine(), sys.base_prefix]


def locked_accelerators(requirements: Path) -> list[str]:
    """Return the accelerators that an image's locks are for; `any` for an image that needs none."""
    if not install.has_torch(requirements):
        return ["any"]
    own = {"cpu": "torch-cpu.lock", "cuda": "cuda.lock"}
    return [accelerator for accelerator, lock in own.items() if (requirements / lock).exists()]


def build_tools(requirements: Path) -> Path:
    """Return the environment with the locked pip and build backend, made where it is missing."""
    key = cache.digest(this_python(), [requirements / "tools.lock"], requirements)
    folder = cache.root() / "venv" / f"tools-{key}"
    return cache.entry(folder, "tools", lambda folder: install.install_tools(folder, requirements))


def stack(image: Path, accelerator: str) -> Path:
    """Return the environment of one image and accelerator, made where it is missing."""
    requirements = image / "requirements"
    files = [Path(install.__file__), *install.inputs(requirements), *mends.programs(image)]
    key = cache.digest([*this_python(), accelerator], files, ROOT)
    family = f"{image.name}-{accelerator}"

    def folder(torch_build: str) -> Path:
        return cache.root() / "venv" / f"{family}-{torch_build}-{key}"

    source, torch_build = torch_choice.choose(
        requirements, accelerator, lambda torch_build: cache.is_complete(folder(torch_build))
    )

    def build(folder: Path) -> None:
        install.say(f"{image.name} environment for {accelerator} into {folder}")
        install.install_stack(
            folder, requirements, accelerator, source, torch_choice.wheels_folder(), build_tools(requirements)
        )
        for program in mends.programs(image):
            subprocess.run([folder / "bin" / "python", program], check=True)

    return cache.entry(folder(torch_build), family, build)


def with_runner(image: Path, base: Path, runner: Path) -> Path:
    """Return an environment that holds the runner and sees the packages of `base`."""
    requirements = image / "requirements"
    sources = [runner / "pyproject.toml", runner / "README.md", runner / "src"]
    key = cache.digest([str(base)], [Path(install.__file__), requirements / "tools.lock", *sources], ROOT)
    family = f"{image.name}-runner"

    def build(folder: Path) -> None:
        install.install_runner(folder, requirements, runner, build_tools(requirements))
        packages, shared = install.packages_folder(folder), install.packages_folder(base)
        # addsitedir, unlike a bare path, also runs the .pth files that lie there.
        (packages / "_stack.pth").write_text(f"import site; site.addsitedir({str(shared)!r})\n", encoding="utf-8")

    return cache.entry(cache.root() / "venv" / f"{family}-{key}", family, build)


def main(image: Path, command: str) -> None:
    """Run the command line of an image's `venv` command.

    Args:
        image: the image's folder.
        command: the command's name, for the help.

    Raises:
        SystemExit: with the exit codes of `install.py`.
    """
    parser = install.CommandLine(
        prog=command,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=f"Make the {image.name} image's Python environment on this machine, from the image's own locks,\n"
        "and print its folder. The second call is instant. Needs Python 3.11 or newer and no root.",
        epilog=f"""environment:
  WHEELS           folder that may hold a CPU torch (default: ../shared/wheels beside the checkout, where it exists)
  TORCH_CPU_INDEX  PyTorch's index of CPU wheels (now {install.torch_cpu_index()}), asked next; PyPI's torch is last
  XDG_CACHE_HOME   the environment lies under its folder `stoker` (default: ~/.cache)
  PIP_*            pip's own settings apply

examples:
  {command}                                       trainers only
  "$({command} --with-runner)"/bin/stoker --help  with this checkout's runner""",
    )
    accelerators = locked_accelerators(image / "requirements")
    parser.add_argument("--accelerator", choices=accelerators, default=accelerators[0], help="default: %(default)s")
    parser.add_argument("--with-runner", action="store_true", help="add the runner of this checkout, in an own layer")
    options = parser.parse_args()
    if sys.version_info < (3, 11):
        install.fail(install.EX_CONFIG, f"Python 3.11 or newer is needed, this is {platform.python_version()}")
    folder = stack(image, options.accelerator)
    print(with_runner(image, folder, ROOT / "runner") if options.with_runner else folder)
