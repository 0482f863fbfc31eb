"""The runner as its users have it: a wheel, installed beside click and PyYAML and nothing else."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from runner.tests.wheel.installed import Installed

ROOT = Path(__file__).parents[3]
# What click and PyYAML are made of.
_DEPENDENCIES = ("click", "yaml", "_yaml")
_PIP = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")


def pip(*words: str | Path) -> None:
    """Run the pip of the tests."""
    subprocess.run([sys.executable, "-m", "pip", *map(str, words)], check=True)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runner's wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", *_PIP, "--no-build-isolation", "--wheel-dir", folder, ROOT / "runner")
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    pip("--python", folder / "bin" / "python", "install", *_PIP, wheel)
    for name in _DEPENDENCIES:
        (packages / name).symlink_to(Path(sysconfig.get_path("platlib")) / name)
    return Installed(folder / "bin", packages, tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture(scope="session")
def plugin(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The same with the example's backend as it was built, unedited, for stoker 0.1."""
    folder = tmp_path_factory.mktemp("plugin")
    pip("install", *_PIP, "--target", folder, Path(__file__).with_name("stoker_classifier-0.1.0-py3-none-any.whl"))
    return Installed(installed.commands, installed.packages, installed.folder, {"PYTHONPATH": str(folder)})
