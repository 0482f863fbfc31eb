"""Runs in a pod that sees its node's processes: makes a folder of the node a disk of its own, of 32 MiB, or ends that.

Started as `python small_disk.py mount|umount FOLDER NODE`, as root. Nodes that share the folder, each with mounts of
its own, share the disk. Prints `done`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# Everybody may write to it, as to the folder of a claim.
SCRIPTS = {
    "mount": """
mkdir -p "$1"
[ -e "$1.disk" ] || { truncate --size 32M "$1.disk" && mkfs.ext4 -q "$1.disk"; }
mount -o loop "$1.disk" "$1"
chmod 1777 "$1"
rm -rf "$1/lost+found"
""",
    "umount": """
umount --lazy "$1"
rm -f "$1.disk"
""",
}


def kubelets(node: str) -> Iterator[str]:
    """Yield the process of a node's kubelet, whose mounts are those of its pods."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # processes come and go
            program, *words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if Path(program).name == "kubelet" and any(word.endswith(f"={node}") for word in words):
                yield folder.name


def main(what: str, folder: str, node: str) -> None:
    """Mount it, or not any more, as the node's kubelet sees it."""
    kubelet = next(kubelets(node))
    command = ["nsenter", "--target", kubelet, "--mount", "--", "sh", "-ec", SCRIPTS[what], "sh", folder]
    subprocess.run(command, check=True, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
