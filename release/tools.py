"""Runs the pinned third-party tools that do the work of a release."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from release import ROOT
from release.errors import CONFIG, UNAVAILABLE, ReleaseError

if TYPE_CHECKING:
    from collections.abc import Mapping

_OWN_MODULE = {"cosign"}
"""Tools that tools/build makes only when asked by name."""


@cache
def _folder(module: str) -> Path:
    done = subprocess.run([ROOT / "tools" / "build", *filter(None, [module])], check=False, stdout=subprocess.PIPE)
    if done.returncode != 0:
        raise ReleaseError(UNAVAILABLE, "tools/build failed; its message is above")
    return Path(os.fsdecode(done.stdout).strip())


def path(tool: str) -> Path:
    """Return where a tool lies: helm, crane and cosign as tools/ pins them, others on PATH.

    Raises:
        ReleaseError: it is not there, or could not be built.
    """
    if tool in _OWN_MODULE:
        return _folder(tool) / tool
    if (pinned := _folder("") / tool).exists():
        return pinned
    if (found := shutil.which(tool)) is None:
        raise ReleaseError(CONFIG, f"{tool} is needed and not on PATH")
    return Path(found)


def run(tool: str, *words: str | Path, with_stderr: bool = False) -> str:
    """Run a tool and return what it prints, also on stderr if asked for.

    Raises:
        ReleaseError: it failed; the message has its command line and what it said.
    """
    command = [str(path(tool)), *map(str, words)]
    done = subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if with_stderr else subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    if done.returncode != 0:
        said = f"{tool} {' '.join(command[1:])}: exit code {done.returncode}\n{done.stdout}{done.stderr or ''}"
        raise ReleaseError(UNAVAILABLE, said.rstrip())
    return done.stdout


def show(tool: str, *words: str | Path, env: Mapping[str, str] | None = None) -> None:
    """Run a tool that takes long; what it says appears as it comes, on stderr.

    Raises:
        ReleaseError: it failed.
    """
    command = [str(path(tool)), *map(str, words)]
    done = subprocess.run(command, check=False, stdout=sys.stderr, cwd=ROOT, env={**os.environ, **(env or {})})
    if done.returncode != 0:
        raise ReleaseError(
            UNAVAILABLE, f"{tool} {' '.join(command[1:])}: exit code {done.returncode}; its message is above"
        )
