"""Guards a trainer process that `stoker run` did not start, as soon as it imports transformers' Trainer."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_TRAINER = "transformers.trainer"


class GuardFinder(MetaPathFinder):
    """Loads `transformers.trainer` as usual, then adds the guard to the callbacks of every Trainer."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Wrap the loader of `transformers.trainer`."""
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
        """Let the real loader create it."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then add the guard."""
        self._loader.exec_module(module)
        from stoker.frameworks.trl.callback import GuardCallback

        module.__dict__["DEFAULT_CALLBACKS"].append(GuardCallback(guard_bare_process))


def guard_bare_process(device: torch.device | None = None) -> None:
    """Guard a trainer that has no plan: its world and its device must match the variables of its pod.

    Exits with the guard's exit code if it does not.
    """
    from stoker.contract.exits import ExitCode, RunError
    from stoker.contract.words import report_error, write_termination_message
    from stoker.plan.facts import read_facts
    from stoker.plan.world import resolve_world
    from stoker.rank.accelerator import check_device, check_trainers_device
    from stoker.rank.guard import Identity, guard

    facts = read_facts()
    world = resolve_world(facts)
    try:
        if world.problems:
            raise RunError(ExitCode.CONFIG, "\n".join(world.problems))
        if device is not None:
            # A driver that torch cannot use is the reason why a trainer computes on the CPU, so it is looked at first.
            check_device(facts.accelerator, int(os.environ.get("LOCAL_RANK", "0")), facts.is_accelerator_guessed)
            check_trainers_device(facts.accelerator, device, facts.is_accelerator_guessed)
        guard(world.size, Identity("", facts.image_version), None)
    except RunError as error:
        report_error(error.message)
        write_termination_message(facts.termination_log, f"{error.code.meaning}: {error.message}")
        sys.exit(error.code)
