"""helm and crane, which are not the cluster's own: found, not built."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from .errors import ClusterError

NEEDED = ("helm", "crane")


def find() -> dict[str, Path]:
    """Return where helm and crane lie.

    Looked for in this order: the folder named by ``CLUSTER_TOOLS``; the folder printed by an executable ``tools/build``
    in a folder above this package; PATH.

    Raises:
        ClusterError: One of them is in none of these places, or ``tools/build`` failed.
    """
    folders = [Path(named)] if (named := os.environ.get("CLUSTER_TOOLS")) else _built()
    search = os.pathsep.join([*map(str, folders), os.environ.get("PATH", os.defpath)])
    found = {name: shutil.which(name, path=search) for name in NEEDED}
    if missing := [name for name, path in found.items() if path is None]:
        raise ClusterError(
            f"{' and '.join(missing)} not found: install on PATH, or set CLUSTER_TOOLS to a folder with helm and crane"
        )
    return {name: Path(path) for name, path in found.items() if path is not None}


def _built() -> list[Path]:
    for folder in Path(__file__).resolve().parents:
        program = folder / "tools" / "build"
        if program.is_file() and os.access(program, os.X_OK):
            done = subprocess.run([program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                raise ClusterError(f"{program} failed with exit code {done.returncode}; see its message above")
            return [Path(done.stdout.strip())]
    return []
