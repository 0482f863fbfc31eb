"""Play `stoker validate` and the containers of its TrainJobs in one process, each container up to its launch.

A JSON object per line in, its exit code and output per line out, as `runner.tests.parity.player`, whose machine the
containers see. Only what starts processes and waits for other pods is left out of them.
"""

from __future__ import annotations

import errno
import json
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from runner.tests.parity.player import Machine, play

from stoker.cluster.images import has_package
from stoker.contract.exits import ExitCode
from stoker.entry.hook import launcher_of, started
from stoker.node import launch, preflight
from stoker.rank.folders import Verdict

_NOT_HERE = 127
_SHIMS = ("torchrun", "trl", "accelerate", "tune")


class Image:
    """What a container has of its image.

    Attributes:
        packages: the packages of its Python; None for an image with every package.
        volumes: the folders that are mounted in it; all others are read-only.
    """

    packages: frozenset[str] | None = None
    volumes: tuple[str, ...] = ()

    def imitate(self) -> None:
        """Let the runner find this image from here on."""
        mkdir = pathlib.Path.mkdir

        def our_mkdir(path: pathlib.Path, *args: Any, **options: Any) -> None:
            if not any(path.is_relative_to(volume) for volume in self.volumes) and not path.exists():
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            mkdir(path, *args, **options)

        pathlib.Path.mkdir = our_mkdir  # type: ignore[assignment, method-assign]
        preflight.find_spec = self._find_spec  # type: ignore[assignment, attr-defined]

    def _find_spec(self, name: str) -> object | None:
        return self if self.packages is None or has_package(self.packages, name) else None


def container(argv: Sequence[str], env: dict[str, str]) -> dict[str, Any]:
    """Play a container's command as the image would start it."""
    name, words = pathlib.Path(argv[0]).name if argv else "", [*argv[1:]]
    if name.startswith("python"):
        module, _, rest = started(argv)
        found = launcher_of(argv)
        if module == "stoker":
            name, words = module, rest
        elif found is not None:
            name, words = found
    if name == "stoker" and words != ["doctor"]:
        return play(words, env)
    if name in _SHIMS:
        played = play([name, *words], env, "stoker.entry.shims")
        if played["code"] != _NOT_HERE:
            return played
    # A command of the image, which trains without stoker or prints its help.
    return {"code": 0, "out": "", "err": ""}


def main() -> None:
    """Play what standard input says, until it ends."""
    answers = sys.stdout
    machine, image = Machine(), Image()
    machine.imitate()
    image.imitate()
    launch._launch = lambda plan, *_: Verdict(ExitCode.FINISHED, "the trainer would start")
    launch._agree = lambda plan, shared, verdict, signals: verdict

    for line in sys.stdin:
        asked = json.loads(line)
        machine.__dict__.clear()
        machine.__dict__.update(asked["machine"])
        image.packages = None if asked["packages"] is None else frozenset(asked["packages"])
        image.volumes = tuple(asked["volumes"])
        os.chdir(asked["folder"])
        played = container(asked["argv"], asked["env"])
        print(json.dumps(played, default=str), file=answers, flush=True)


if __name__ == "__main__":
    main()
