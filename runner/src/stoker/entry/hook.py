"""Guards trainers that bypass the PATH shims. `stoker_guard.pth` runs this when Python starts.

- `python -m torch.distributed.run … -m trl.scripts.sft`, or a launcher by its absolute path, becomes the runner's
  launch, as on the PATH.
- A trainer process (`python -m trl.scripts.sft`, or a worker of another launcher) gets the world-size guard when
  training starts.
A user's own script matches neither and runs unchanged.

Every Python of the image imports this module, so it imports only what Python has already imported.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing has it too, but takes milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Sequence

# The same as contract.variables.PLAN_FILE: importing it would slow down every Python of the image.
PLAN_FILE = "STOKER_PLAN"

_LAUNCHERS = {"torchrun", "trl", "accelerate", "tune"}
# Module → its command, with the first words that the command would have.
_LAUNCHER_MODULES = {
    "torch.distributed.run": ("torchrun",),
    "torch.distributed.launch": ("torchrun",),
    "accelerate.commands.launch": ("accelerate", "launch"),
    "accelerate.commands.accelerate_cli": ("accelerate",),
    # TRL cannot be started so, but KEP-2839 does.
    "trl": ("trl",),
    "trl.cli.main": ("trl",),
    "torchtune._cli.tune": ("tune",),
}
_SCRIPTS = ("trl.scripts.", "stoker.scripts.")
# Options of Python itself whose value is the next word.
_VALUED = {"-W", "-X", "--check-hash-based-pycs"}


def launcher_of(argv: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the launcher that a Python command line starts, and its arguments; None if it starts none.

    Args:
        argv: `sys.orig_argv`, for example `["python", "-m", "torch.distributed.run", "--nnodes=2", …]`.
    """
    module, script, rest = started(argv)
    if module in _LAUNCHER_MODULES:
        command, *first = _LAUNCHER_MODULES[module]
        return command, [*first, *rest]
    name = os.path.basename(script)  # noqa: PTH119 - pathlib takes milliseconds to import
    return (name, rest) if name in _LAUNCHERS else None


def is_trainer(argv: Sequence[str]) -> bool:
    """Return True if a Python command line runs a training script of TRL or of stoker directly."""
    module, script, _ = started(argv)
    return module.startswith(_SCRIPTS) or ".".join(script.split("/")[-3:]).startswith(_SCRIPTS)


def started(argv: Sequence[str]) -> tuple[str, str, list[str]]:
    """Return the module and the script that a Python command line runs (one is empty), and the arguments."""
    words = list(argv[1:])
    while words:
        word = words.pop(0)
        # Python accepts short options in one word: `-um` is `-u -m`.
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
    """Redirect or guard this Python, depending on its command line; do nothing for anything else."""
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
