"""How one Go module becomes a folder with a program, its links and its chart.

What this file does decides what is built, so its text is part of every cache key; progress and caching are elsewhere.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import IO

from .errors import ClusterError

_DOWNLOAD = "go: downloading "


class Work:
    """What a running build has done so far, for those who wait for it."""

    def __init__(self) -> None:
        """Start with nothing done."""
        self.downloaded = 0
        self.compiled = 0
        self._last: list[str] = []

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.downloaded} modules downloaded, {self.compiled} packages compiled"

    @property
    def last_words(self) -> str:
        """The last lines that were neither a download nor a package's name."""
        return "\n".join(self._last[-15:])

    def follow(self, stderr: IO[str]) -> None:
        """Count what ``go build -v`` reports until it ends."""
        for line in stderr:
            if line.startswith(_DOWNLOAD):
                self.downloaded += 1
            elif re.fullmatch(r"[\w.~/-]+\n", line):
                self.compiled += 1
            else:
                self._last.append(line.rstrip())


def make(
    folder: Path,
    source: Path,
    name: str,
    package: str,
    linker_flags: str,
    links: Sequence[str],
    work: Work,
    compiled: Path | None = None,
) -> None:
    """Build a program into an existing, empty folder.

    Args:
        folder: Gets the program and its links.
        source: The folder with go.mod.
        name: The program's.
        package: What to build, as ``go build`` takes it.
        linker_flags: What ``-ldflags`` is given.
        links: Further names of the program.
        work: Told of the progress.
        compiled: The folder of compiled packages, which several builds may share; None for Go's own.

    Raises:
        ClusterError: A download or the compilation failed.
    """
    arguments = ["build", "-v", "-trimpath", "-ldflags", linker_flags, "-o", str(folder / name), package]
    _go(source, arguments, work, compiled)
    for link in links:
        (folder / link).symlink_to(name)


def copy_chart(source: Path, module: str, chart: str, target: Path) -> None:
    """Copy the chart that a module has at ``chart``, made writable and without its dependencies.

    They are not in the module, and none is wanted here.

    Raises:
        ClusterError: The module cannot be had.
    """
    upstream = Path(_go(source, ["list", "-m", "-f", "{{.Dir}}", module], Work()).strip())
    shutil.copytree(upstream / chart, target, copy_function=shutil.copyfile)
    for folder, _, _ in os.walk(target):
        Path(folder).chmod(0o755)
    description = target / "Chart.yaml"
    description.write_text(without_dependencies(description.read_text()))


def without_dependencies(chart_yaml: str) -> str:
    """Return a Chart.yaml without its top-level ``dependencies`` list."""
    return re.sub(r"^dependencies:\n(?:[ \t-].*\n|\n(?=[ \t-]))*", "", chart_yaml, flags=re.MULTILINE)


def _go(source: Path, arguments: Sequence[str], work: Work, compiled: Path | None = None) -> str:
    cache = {"GOCACHE": str(compiled)} if compiled else {}
    process = subprocess.Popen(
        ["nice", "go", *arguments],
        cwd=source,
        env={**os.environ, "GOOS": "linux", "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", **cache},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stderr
    follower = Thread(target=work.follow, args=[process.stderr], daemon=True)
    with process:
        follower.start()
        output = process.stdout.read()
        follower.join()
    if process.returncode:
        raise ClusterError(f"go {arguments[0]} failed in {source}:\n{work.last_words}")
    return output
