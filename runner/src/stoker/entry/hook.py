"""Guards trainers that were started past the PATH shims. Armed from `stoker_guard.pth` at Python start-up.

- `python -m torch.distributed.run … -m trl.scripts.sft`, or a launcher by its absolute path, becomes the runner's
  launch, as it would have through the PATH.
- A trainer process that exists already (`python -m trl.scripts.sft`, a worker of some other launcher) gets the
  world-size guard at train start.
A user's own script matches neither and is left alone.

Every Python of the image imports this module, so it imports nothing itself that Python has not imported already.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as of typing, which takes milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Sequence

# contract.variables.PLAN_FILE, which is not imported: every Python start of the image would pay for it.
PLAN_FILE = "STOKER_PLAN"

_LAUNCHERS = {"torchrun", "trl", "accelerate", "tune"}
# Module → the command it is, with the words the command has on top.
_LAUNCHER_MODULES = {
    "torch.distributed.run": ("torchrun",),
    "torch.distributed.launch": ("torchrun",),
    "accelerate.commands.launch": ("accelerate", "launch"),
    "accelerate.commands.accelerate_cli": ("accelerate",),
    "trl.cli.main": ("trl",),
    "torchtune._cli.tune": ("tune",),
}
_SCRIPTS = ("trl.scripts.", "stoker.scripts.")
# Options of Python itself whose value is the next word.
_VALUED = {"-W", "-X", "--check-hash-based-pycs"}


def launcher_of(argv: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the launcher and its arguments that a Python command line starts; None if it starts none.

    Args:
        argv: `sys.orig_argv`, e.g. `["python", "-m", "torch.distributed.run", "--nnodes=2", …]`.
    """
    module, script, rest = _started(argv)
    if module in _LAUNCHER_MODULES:
        command, *first = _LAUNCHER_MODULES[module]
        return command, [*first, *rest]
    name = os.path.basename(script)  # noqa: PTH119 - pathlib takes milliseconds to import
    return (name, rest) if name in _LAUNCHERS else None


def is_trainer(argv: Sequence[str]) -> bool:
    """Return True if a Python command line runs a training script of TRL's, or of ours, itself."""
    module, script, _ = _started(argv)
    return module.startswith(_SCRIPTS) or ".".join(script.split("/")[-3:]).startswith(_SCRIPTS)


def _started(argv: Sequence[str]) -> tuple[str, str, list[str]]:
    """Return the module or the script that a Python command line runs (the other is empty), and its arguments."""
    words = list(argv[1:])
    while words:
        word = words.pop(0)
        # Python takes short options in one word: `-um` is `-u -m`.
        if _ends_short_options(word, "m"):
            return words[0] if words else "", "", words[1:]
        if _ends_short_options(word, "c"):
            break
        if word in _VALUED:
            words = words[1:]
        elif not word.startswith("-"):
            return "", word, words
    return "", "", []


def _ends_short_options(word: str, option: str) -> bool:
    return word.startswith("-") and not word.startswith("--") and word.endswith(option) and word not in _VALUED


def arm() -> None:
    """Look at how this Python was started, and redirect or guard it; do nothing for anything else."""
    if PLAN_FILE in os.environ:
        return
    found = launcher_of(sys.orig_argv)
    if found is not None:
        _redirect(*found)
    elif is_trainer(sys.orig_argv) and not {"-h", "--help"} & set(sys.orig_argv):
        from stoker.entry.bare_trainer import GuardFinder

        sys.meta_path.insert(0, GuardFinder())


def _redirect(command: str, argv: list[str]) -> None:
    from stoker.contract.exits import RunError
    from stoker.entry.launchers import translate

    try:
        meant = translate(command, argv) is not None
    except RunError:
        meant = True
    if meant:
        os.execv(sys.executable, [sys.executable, "-m", "stoker.entry.shims", command, *argv])
