"""chart-testing (`ct`) on the charts as a pull request would change them, with the settings in ct.yaml."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from charts.helm import ROOT, tools

RELEASES = Path(__file__).parent / "fixtures"
"""Packages of released versions: what the branch is compared with and, where ct is told to, upgraded from."""

SETTINGS = ("ct.yaml", ".yamllint", "chart_schema.yaml")
READ_BY_CHARTS = ("charts", "runtimes", "images/images.lock.yaml")


def pull_request(folder: Path) -> Path:
    """Return a Git repository whose branch has this checkout's charts, and `origin/main` their releases before that.

    ct looks at what changed since `origin/main`, which a checkout need not have, and only at what is committed.

    Args:
        folder: an empty folder.
    """
    git = ["git", "-C", str(folder), "-c", "user.name=test", "-c", "user.email=test@example.com"]

    def commit(message: str) -> None:
        subprocess.run([*git, "add", "--all"], check=True)
        subprocess.run([*git, "commit", "--quiet", "--message", message], check=True)

    subprocess.run([*git, "init", "--quiet", "--initial-branch=work"], check=True)
    for name in SETTINGS:
        shutil.copy(ROOT / name, folder / name)
    for package in sorted(RELEASES.glob("*.tgz")):
        with tarfile.open(package) as archive:
            archive.extractall(folder / "charts", filter="data")
    commit("the releases")
    subprocess.run([*git, "update-ref", "refs/remotes/origin/main", "HEAD"], check=True)
    shutil.rmtree(folder / "charts")
    for name in READ_BY_CHARTS:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copy(source, target)
    commit("the change")
    return folder


def path() -> str:
    """Return a PATH on which ct finds what it calls: helm, helm-unittest, yamale and yamllint."""
    return os.pathsep.join([str(tools()), str(Path(sys.executable).parent), os.environ["PATH"]])
