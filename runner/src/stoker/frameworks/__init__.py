"""The training frameworks, by the value of the runtime's label `trainer.kubeflow.org/framework`."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.contract.exits import ExitCode, RunError
from stoker.frameworks.base import Framework
from stoker.frameworks.registry import broken_plugins, runners
from stoker.frameworks.torchtune.framework import TorchTune
from stoker.frameworks.trl.framework import TRL
from stoker.plan.interfaces import FlagNames, TrainingFramework

__all__ = ["TRL", "Framework", "TorchTune", "flag_names_of", "get_framework", "known_frameworks"]

_BUILT_IN: tuple[type[TrainingFramework], ...] = (TRL, TorchTune)


def known_frameworks() -> Mapping[str, TrainingFramework]:
    """Return every framework the runner can launch, by the value of the label; installed plugins add theirs."""
    plugins = {name: runner() for name, runner in runners().items()}
    return {**plugins, **{framework.name: framework() for framework in _BUILT_IN}}


def get_framework(name: str | None = None) -> TrainingFramework:
    """Return a framework by its name.

    Args:
        name: value of the label; None for TRL.

    Raises:
        RunError: there is no such framework (78).
    """
    name = name or TRL.name
    for framework in _BUILT_IN:
        if framework.name == name:  # saves searching the installed packages
            return framework()
    known = known_frameworks()
    if name not in known:
        broken = "".join(f"\na plugin could not be loaded: {plugin}" for plugin in broken_plugins())
        raise RunError(
            ExitCode.CONFIG,
            f"framework {name!r} is unknown: set the label trainer.kubeflow.org/framework of the runtime's pods "
            f"(STOKER_FRAMEWORK) to one of {', '.join(sorted(known))}{broken}",
        )
    return known[name]


def flag_names_of(name: str) -> FlagNames:
    """Return how a framework spells the settings that advice names; no names if it is not installed here.

    Args:
        name: value of the label; empty if nothing tells.
    """
    try:
        return get_framework(name).flag_names if name else FlagNames()
    except RunError:
        return FlagNames()
