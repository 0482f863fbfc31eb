"""An environment with the runner's wheel, and commands run in it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel.

    Attributes:
        commands: folder of its Python and console scripts.
        packages: folder of its packages.
        folder: a folder to work in, far from the source.
        env: variables that every command of it is given.
    """

    commands: Path
    packages: Path
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def run(self, *words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command of it, or one by its path."""
        command, *arguments = words
        told = {"PATH": f"{self.commands}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", **self.env, **env}
        argv = [str(self.commands / command), *map(str, arguments)]
        return subprocess.run(argv, cwd=self.folder, env=told, check=False, capture_output=True, text=True)

    def python(self, *words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run its Python."""
        return self.run("python", *words, **env)
