"""Source distribution, wheel and charts of a commit are the same bytes whoever builds them, and the wheel works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from release import ROOT, distributions, packages
from release.artifacts import Chart, charts
from release.tests.conftest import Release


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What a checkout gives, by suffix."""
    found = distributions.build(tmp_path_factory.mktemp("built"))
    return {"".join(path.suffixes[-1:]): path for path in found}


def elsewhere(folder: Path) -> Path:
    """Return a copy of the package with other times and another umask, as another checkout has."""
    copy = folder / "runner"
    (folder / ".git").mkdir()
    shutil.copyfile(ROOT / ".gitignore", folder / ".gitignore")
    shutil.copytree(ROOT / "runner", copy, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    for path in copy.rglob("*"):
        os.utime(path, (10**9, 10**9))
    return copy


def test_a_wheel_is_the_same_from_the_checkout_and_from_the_source_distribution(
    built: dict[str, Path], tmp_path: Path
) -> None:
    with tarfile.open(built[".gz"]) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    again = {path.suffix: path for path in distributions.build(tmp_path / "again", source)}
    assert again[".whl"].read_bytes() == built[".whl"].read_bytes()


def test_another_checkout_gives_the_same_bytes(built: dict[str, Path], tmp_path: Path) -> None:
    again = {path.suffix: path for path in distributions.build(tmp_path / "again", elsewhere(tmp_path))}
    assert {suffix: path.read_bytes() for suffix, path in again.items()} == {
        suffix: path.read_bytes() for suffix, path in built.items()
    }


def test_the_source_distribution_has_what_the_wheel_needs_and_no_tests(built: dict[str, Path]) -> None:
    with tarfile.open(built[".gz"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "src/stoker_guard.pth", "src/stoker/__main__.py"} <= names
    assert not [name for name in names if name.startswith(("tests/", "scripts/"))]


def test_sums_are_those_that_sha256sum_reads(release: Release, tmp_path: Path) -> None:
    shown = release("python", "--out", tmp_path).stdout
    assert len(shown.splitlines()) == 2
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True)


def test_an_installed_wheel_has_the_command(built: dict[str, Path], tmp_path: Path) -> None:
    """With the dependencies of the tests' own environment: pip asks no index."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    python = tmp_path / "env" / "bin" / "python"
    words = ["--quiet", "--no-index", "--no-deps", "--disable-pip-version-check", str(built[".whl"])]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", *words], check=True)
    beside = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
    done = subprocess.run(
        [tmp_path / "env" / "bin" / "stoker", "plan", "--model_name_or_path", "a/b", "--dataset_name", "c/d"],
        check=False, capture_output=True, text=True, cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": beside, "STOKER_METHOD": "sft"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "trl sft (trl.scripts.sft)" in done.stdout


@pytest.mark.full  # asks the index
def test_a_wheel_and_an_extra_of_it_are_all_that_a_laptop_needs(built: dict[str, Path], tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    words = ["--quiet", "--disable-pip-version-check", f"stoker[cluster] @ {built['.whl'].as_uri()}"]
    subprocess.run([python, "-m", "pip", "install", *words], check=True)

    def stoker(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(tmp_path / "env" / "bin" / "stoker"), *words]
        env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        return subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env=env)

    assert stoker("trainjob", "sft", "--name", "one", "--model", "hf://a/b", "--dataset", "hf://c/d").returncode == 0
    listed = stoker("runs")
    assert (listed.returncode, "kubeconfig" in listed.stderr) == (78, True), listed.stderr
    assert "Traceback" not in listed.stderr


@pytest.mark.parametrize("chart", charts(), ids=lambda chart: str(chart.name))
def test_a_chart_is_packaged_to_the_same_bytes(chart: Chart, tmp_path: Path) -> None:
    """From another checkout, whose files have other times."""
    copy = Path(shutil.copytree(chart.folder, tmp_path / "checkout" / chart.name))
    for path in copy.rglob("*"):
        os.utime(path, (10**9, 10**9))
    found = []
    for number, folder in enumerate((chart.folder, copy)):
        (target := tmp_path / str(number)).mkdir()
        found.append(packages.package(replace(chart, folder=folder), target).read_bytes())
    assert found[0] == found[1]
