"""What a container's command line starts, as the image would read it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.contract.exits import ExitCode, RunError
from stoker.entry.hook import is_trainer, launcher_of, started
from stoker.entry.launchers import Launch, translate
from stoker.entry.own_command import HELP_OPTIONS, own_command

_STOKER = "stoker"
_PROGRAMS = (_STOKER, "torchrun", "trl", "accelerate", "tune")


@dataclass(frozen=True, slots=True)
class Start:
    """What a command line starts that has to do with stoker.

    Attributes:
        launch: the launch of `stoker run` or `stoker plan`; None for a trainer that only the guard's hook watches.
        trains: False if the plan is only printed.
    """

    launch: Launch | None
    trains: bool = True


def start_of(argv: Sequence[str], environment: Mapping[str, str]) -> Start | None:
    """Return what a container's command line starts; None if it has nothing to do with stoker.

    Raises:
        RunError: `stoker` has no such command, a launcher option is not supported, or a whole command line is one word,
            which names no program (64).
    """
    if not argv:
        return None
    first = argv[0].split()
    if len(first) > 1 and (Path(first[0]).name in _PROGRAMS or first[0].startswith("python")):
        raise RunError(
            ExitCode.USAGE,
            f"command begins with {argv[0]!r}, and no program has that name: write each word as an item of its own, "
            f"{json.dumps(first)}",
        )
    name, words = Path(argv[0]).name, [*argv[1:]]
    if name.startswith("python"):
        module, script, rest = started(argv)
        if _STOKER in (module, Path(script).name):
            return _own(rest)
        found = launcher_of(argv)
        if found is None:
            return Start(None) if is_trainer(argv) and not {*HELP_OPTIONS} & {*argv} else None
        name, words = found
    if name == _STOKER:
        return _own(words)
    launch = translate(name, words, environment)
    return None if launch is None else Start(launch)


def _own(words: Sequence[str]) -> Start | None:
    own = own_command(words)
    return None if own is None else Start(Launch(own.args, {}), own.trains)
