"""Runs in a pod that sees its node's processes: makes a folder of the node a disk of its own, of 32 MiB, or ends that.

Started as `python small_disk.py mount|umount FOLDER`, as root. Prints `done`.
"""

from __future__ import annotations

import subprocess
import sys

# Everybody may write to it, as to the folder of a claim.
WORDS = {"mount": ["-t", "tmpfs", "-o", "size=32m,mode=1777", "stoker-test"], "umount": ["--lazy"]}


def main(what: str, folder: str) -> None:
    """Mount it, or not any more, as the node sees it."""
    on_the_node = ["nsenter", "--target", "1", "--mount", "--"]
    if what == "mount":
        subprocess.run([*on_the_node, "mkdir", "-p", folder], check=True)
    subprocess.run([*on_the_node, what, *WORDS[what], folder], check=True)
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
