"""The registry of backends: ours, those a user registers, and those that installed packages bring.

A package brings one with an entry point in the group `stoker.backends`, whose object is the config class. A plugin that
fails to load is kept with its error and does not stop the others.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any, ClassVar, TypeVar

from stoker.plan.framework import TrainingFramework

ENTRY_POINT_GROUP = "stoker.backends"


class Backend:
    """What the registry must know of a config class.

    Attributes:
        framework: value of the label `trainer.kubeflow.org/framework` of the runtimes it runs on.
        supported_frameworks: the same by the name of KEP-2839's second text; a class declares either.
        command: what the arguments are meant for; one word or more.
        runner: what `stoker run` must know of the framework; None where stoker only submits it.
    """

    framework: ClassVar[str]
    supported_frameworks: ClassVar[list[str]]
    command: ClassVar[tuple[str, ...]]
    runner: ClassVar[type[TrainingFramework] | None] = None

    def __init_subclass__(cls, **more: Any) -> None:
        """Fill in the label under the name that the class did not use."""
        super().__init_subclass__(**more)
        own = vars(cls)
        if isinstance(own.get("framework"), str):
            cls.supported_frameworks = [cls.framework]
        elif own.get("supported_frameworks"):
            cls.framework = cls.supported_frameworks[0]


B = TypeVar("B", bound=type[Backend])

_log = logging.getLogger(__name__)
_registered: dict[str, type[Backend]] = {}


@dataclass(frozen=True, slots=True)
class BrokenPlugin:
    """A package's backend that could not be loaded.

    Attributes:
        name: the entry point's name.
        target: the object it names.
        package: the distribution it is from, with its version.
        error: what went wrong.
    """

    name: str
    target: str
    package: str
    error: str

    def __str__(self) -> str:
        return f"backend {self.name} ({self.target}) of {self.package}: {self.error}"


def register_backend(name: str) -> Callable[[B], B]:
    """Return a class decorator that registers a backend under a name.

    Args:
        name: the backend's name, commonly its framework's.

    Raises:
        ValueError: the name is taken, or the class lacks what a backend needs.
    """

    def decorate(backend: B) -> B:
        holder = _registered.get(name)
        if holder is not None and holder is not backend:
            raise ValueError(
                f"backend {name!r} is already registered by {holder.__module__}.{holder.__qualname__}: "
                f"register {backend.__qualname__} under another name"
            )
        _expect_backend(backend)
        _expect_new_runner(name, backend)
        _registered[name] = backend
        return backend

    return decorate


def register_framework(backend: B) -> B:
    """Register a backend under its framework's label, as a decorator without arguments (KEP-2839's newest text).

    Raises:
        ValueError: the label is taken, or the class lacks what a backend needs.
    """
    _expect_backend(backend)
    return register_backend(backend.framework)(backend)


def get_backend(name: str) -> type[Backend] | None:
    """Return the backend registered under a name, None if there is none."""
    return get_registered_backends().get(name)


def get_registered_backends() -> dict[str, type[Backend]]:
    """Return all backends by name, those of installed packages included."""
    broken_plugins()
    return dict(_registered)


@cache
def broken_plugins() -> tuple[BrokenPlugin, ...]:
    """Load the backends of installed packages, once, and return those that could not be loaded."""
    broken = []
    for entry in metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            backend = entry.load()
            if not (inspect.isclass(backend) and issubclass(backend, Backend)):
                raise TypeError(f"{entry.value} is no subclass of stoker.backends.LLMBackend")
            if _registered.get(entry.name) is not backend:
                register_backend(entry.name)(backend)
        # A plugin may do anything when it is imported, exit included.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown package"
            broken.append(BrokenPlugin(entry.name, entry.value, package, f"{type(error).__name__}: {error}"))
            _log.warning("%s", broken[-1])
    return tuple(broken)


def runners() -> Mapping[str, type[TrainingFramework]]:
    """Return the framework class of each registered backend that has one, by the framework's name."""
    found = (backend.runner for backend in get_registered_backends().values())
    return {runner.name: runner for runner in found if runner is not None}


def _expect_backend(backend: type) -> None:
    if not (inspect.isclass(backend) and issubclass(backend, Backend)):
        raise ValueError(f"{backend!r} is no subclass of stoker.backends.LLMBackend")
    label, command = getattr(backend, "framework", ""), getattr(backend, "command", ())
    if not (isinstance(label, str) and label and isinstance(command, tuple) and command):
        raise ValueError(
            f"{backend.__qualname__} must declare a framework and a command: "
            'framework: ClassVar[str] = "…"; command: ClassVar[tuple[str, ...]] = ("…",)'
        )


def _expect_new_runner(name: str, backend: type[Backend]) -> None:
    runner: Any = backend.runner
    if runner is None:
        return
    if not (inspect.isclass(runner) and issubclass(runner, TrainingFramework)):
        raise ValueError(f"{runner!r}, the runner of backend {name!r}, is no subclass of stoker.frameworks.Framework")
    if inspect.isabstract(runner):
        missing = ", ".join(sorted(getattr(runner, "__abstractmethods__", ())))
        raise ValueError(f"{runner.__qualname__}, the runner of backend {name!r}, does not define {missing}")
    # The pod's label is all that `stoker run` knows of the backend.
    if runner().name != backend.framework:
        raise ValueError(
            f"{runner.__qualname__}, the runner of backend {name!r}, is named {runner.name!r}, but the label of its "
            f"runtimes is {backend.framework!r}: give both the same name"
        )
    for other, holder in _registered.items():
        if holder.runner is not None and holder.runner is not runner and holder.runner.name == runner.name:
            raise ValueError(
                f"{runner.__qualname__}, the runner of backend {name!r}, is for framework {runner.name!r}, which "
                f"{holder.runner.__qualname__} of backend {other!r} runs already"
            )
