"""The console script `stoker`, and `python -m stoker`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; for `stoker run` a stop is noted from here on, while the rest is still being imported."""
    if sys.argv[1:2] == ["run"]:
        # The kernel drops a SIGTERM to a container's first process that has no handler for it.
        from stoker.node.signals import listen

        listen()
    from stoker.commands.main import main as commands

    commands()


if __name__ == "__main__":
    main()
