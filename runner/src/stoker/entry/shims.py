"""The shims `torchrun`, `trl`, `accelerate` and `tune`: in the images they come before the real commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stoker.contract.exits import RunError
from stoker.contract.words import report_error
from stoker.node.signals import listen


def real_command(name: str, path: str, own_folder: Path) -> str | None:
    """Return the real command of that name: the next one on the PATH after the shims."""
    for folder in path.split(os.pathsep):
        candidate = Path(folder) / name
        if folder and Path(folder).resolve() != own_folder.resolve() and os.access(candidate, os.X_OK):
            return str(candidate)
    return None


def main() -> None:
    """Entry point of all shims; the file name says which one it is."""
    start(Path(sys.argv[0]).name, sys.argv[1:], Path(sys.argv[0]).parent)


def start(command: str, argv: list[str], own_folder: Path) -> None:
    """Launch with the runner, or become the real command. Does not return."""
    signals = listen()  # before the other imports, which take their time
    from stoker.entry.launchers import translate
    from stoker.node import launch

    try:
        found = translate(command, argv)
        if found is not None:
            sys.exit(launch.start(found.args, found.world))
        signals.refuse_if_stopped()
    except RunError as error:
        report_error(error.message)
        sys.exit(error.code)
    real = real_command(command, os.environ.get("PATH", ""), own_folder)
    if real is None:
        report_error(f"{command}: command not found")
        sys.exit(127)
    os.execv(real, [real, *argv])


if __name__ == "__main__":
    # `python -m stoker.entry.shims NAME ARGS…` works without a link on the PATH.
    start(sys.argv[1], sys.argv[2:], Path(__file__).parent)
