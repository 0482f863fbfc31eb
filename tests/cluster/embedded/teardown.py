"""Removing the cluster: everything, whatever state it is in, and nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ..errors import ClusterError
from . import cgroups, network
from .layout import DATA, RUN
from .node import PRIVATE_FOLDERS

_MADE_FOLDERS = RUN / "made-folders"


def leftovers() -> list[str]:
    """Return what of a cluster, running or not, is on this machine, in words."""
    found = []
    if pids := cgroups.processes():
        found.append(f"{len(pids)} processes")
    found += [f"network namespace {namespace.name}" for namespace in network.namespaces()]
    found += [str(folder) for folder in (RUN, DATA) if folder.exists()]
    return found


def make_private_folders() -> None:
    """Make the folders that the nodes mount their own over, and remember which were not there."""
    RUN.mkdir(parents=True, exist_ok=True)
    missing = [folder for folder in PRIVATE_FOLDERS if not folder.exists()]
    _MADE_FOLDERS.write_text("\n".join(map(str, missing)))
    for folder in missing:
        folder.mkdir(parents=True)


def remove_everything() -> None:
    """Kill the cluster's processes and remove its namespaces, cgroups and files.

    Nothing is asked to end in order: its data is removed with it. Mounts need no undoing, they are in mount namespaces
    that end with their processes.

    Raises:
        ClusterError: Processes survived, or files could not be removed.
    """
    if survivors := cgroups.kill_all():
        raise ClusterError(
            f"cannot kill the cluster's processes {survivors}: look at /proc/PID/stack, then run `down` again"
        )
    network.remove()
    cgroups.remove()
    if _MADE_FOLDERS.exists():
        for made in _MADE_FOLDERS.read_text().split():
            subprocess.run(["rmdir", "--ignore-fail-on-non-empty", made], stderr=subprocess.DEVNULL, check=False)
    for folder in (DATA, RUN):
        _remove_tree(folder)


def _remove_tree(folder: Path) -> None:
    # --one-file-system: should something be mounted below after all, its content is not ours to remove.
    done = subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"cannot remove {folder}: {done.stderr.strip()}")
