"""The console script `stoker`, and `python -m stoker`."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command line; a stop is heard from here on, while the rest is still being imported.

    `stoker run` notes it. Any other first process of a container ends with 75 until it handles stops itself.
    """
    # The kernel drops a SIGTERM to a container's first process that has no handler for it.
    if sys.argv[1:2] == ["run"]:
        from stoker.node.signals import listen

        listen()
    elif os.getpid() == 1:
        from stoker.contract.exits import ExitCode

        signal.signal(signal.SIGTERM, lambda *_: sys.exit(ExitCode.STOPPED))
    from stoker.commands.main import main as commands

    commands()


if __name__ == "__main__":
    main()
