"""Runs in a pod that sees its node's processes: sends a signal to processes of another pod.

Started as `python hit.py SIGNAL HOST,… TIME [WORD]`, as root: those of the pods with these host names whose command has
this word; all of them without a word. Waits for the time, in seconds since 1970, if it is to come. Prints `hit`, how
many, and the host, for each.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def found(host: str, word: str) -> Iterator[int]:
    """Yield the ids of a pod's processes."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # processes come and go
            environ = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if f"HOSTNAME={host}".encode() in environ and (not word or word in command):
                yield int(folder.name)


def main(number: signal.Signals, hosts: str, moment: str, word: str = "") -> None:
    """Send the signal, once it is known to whom: the end of one pod may end the others."""
    time.sleep(max(0.0, float(moment) - time.time()))
    pids = {host: sorted(found(host, word)) for host in hosts.split(",")}
    for pid in sorted(pid for its in pids.values() for pid in its):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    for host, its in pids.items():
        print(f"hit {len(its)} {host}")


if __name__ == "__main__":
    main(signal.Signals[sys.argv[1]], *sys.argv[2:])
