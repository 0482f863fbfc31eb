"""Guards a trainer process that `stoker run` did not start, once transformers' Trainer is imported in it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_TRAINER = "transformers.trainer"


class GuardFinder(MetaPathFinder):
    """Lets `transformers.trainer` load as usual, then adds the guard to the callbacks every Trainer starts with."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Wrap the loader of the one module that is waited for."""
        if fullname != _TRAINER:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _GuardLoader(spec.loader)
        return spec


class _GuardLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave that to the real loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then add the guard."""
        self._loader.exec_module(module)
        from stoker.frameworks.trl.callback import GuardCallback

        module.__dict__["DEFAULT_CALLBACKS"].append(GuardCallback(guard_bare_process))


def guard_bare_process() -> None:
    """Guard a trainer that carries no orders of ours: its world must be the one its pod was told.

    Leaves the process with the guard's exit code if it is not.
    """
    from stoker.contract.exits import ExitCode, RunError
    from stoker.contract.words import say, write_termination_message
    from stoker.plan.facts import read_facts
    from stoker.plan.world import resolve_world
    from stoker.rank.guard import Identity, guard

    facts = read_facts()
    world = resolve_world(facts)
    try:
        if world.problems:
            raise RunError(ExitCode.CONFIG, "\n".join(world.problems))
        guard(world.size, Identity("", facts.image_version), None)
    except RunError as error:
        say(error.message)
        write_termination_message(facts.termination_log, f"{error.code.meaning}: {error.message}")
        sys.exit(error.code)
