"""Play command lines of `stoker` in one process: a JSON object per line in, its exit code and output per line out.

Needs click, PyYAML and a `stoker` on the path, of which it knows `python -m stoker` alone. What the machine is comes
from the line too, so that a run is the same everywhere.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import runpy
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

DEV = pathlib.Path("/dev")


class Machine:
    """What a container sees, in the place of what this machine has.

    Attributes:
        cpus: CPU cores.
        shm_mib: size of /dev/shm in MiB; None where there is none.
        devices: device nodes below /dev, e.g. `nvidia0` or `dri/renderD128`.
    """

    cpus = 4
    shm_mib: int | None = 1024
    devices: tuple[str, ...] = ()

    def imitate(self) -> None:
        """Let Python's standard library tell of this machine from here on."""
        statvfs, iterdir, exists = os.statvfs, pathlib.Path.iterdir, pathlib.Path.exists

        def our_statvfs(path: Any) -> Any:
            if pathlib.Path(path) != DEV / "shm":
                return statvfs(path)
            if self.shm_mib is None:
                raise FileNotFoundError(path)
            return SimpleNamespace(f_frsize=2**20, f_blocks=self.shm_mib)

        def our_iterdir(path: pathlib.Path) -> Iterator[pathlib.Path]:
            nodes = [DEV / name for name in self.devices]
            if path == DEV or DEV in path.parents:
                return iter([node for node in nodes if node.parent == path])
            return iterdir(path)

        def our_exists(path: pathlib.Path, **options: Any) -> bool:
            return str(path.relative_to(DEV)) in self.devices if DEV in path.parents else exists(path, **options)

        os.sched_getaffinity = lambda pid: {*range(self.cpus)}
        os.statvfs = our_statvfs
        os.geteuid = lambda: 1001
        os.getegid = lambda: 0
        pathlib.Path.iterdir = our_iterdir  # type: ignore[assignment, method-assign]
        pathlib.Path.exists = our_exists  # type: ignore[assignment, method-assign]


def play(arguments: list[str], env: dict[str, str], module: str = "stoker") -> dict[str, Any]:
    """Run `python -m stoker` with these arguments and variables, and return its exit code and what it printed."""
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [module, *arguments]
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_module(module, run_name="__main__")
        except SystemExit as ended:
            code = ended.code or 0
        except Exception as error:  # noqa: BLE001 - a crash is an outcome too
            code = f"{type(error).__name__}: {error}"
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def main() -> None:
    """Play what standard input says, until it ends."""
    answers = sys.stdout
    machine = Machine()
    machine.imitate()
    for line in sys.stdin:
        asked = json.loads(line)
        machine.__dict__.clear()
        machine.__dict__.update(asked["machine"])
        print(json.dumps(play(asked["arguments"], asked["env"])), file=answers, flush=True)


if __name__ == "__main__":
    main()
