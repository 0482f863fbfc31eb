"""The registry of backends: Stoker's, those that users register, and those of installed packages.

A package adds a backend with an entry point in the group `stoker.backends` that names the config class. A plugin that
fails to load does not stop the others; the registry keeps its error.
"""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any, ClassVar, TypeVar

from stoker.plan.interfaces import TrainingFramework

ENTRY_POINT_GROUP = "stoker.backends"


class Backend(ABC):
    """What the registry needs to know about a config class.

    Attributes:
        framework: value of the label `trainer.kubeflow.org/framework` of its runtimes.
        runner: the framework class for `stoker run`; None if Stoker only submits the backend.
    """

    framework: ClassVar[str]
    runner: ClassVar[type[TrainingFramework] | None] = None

    @classmethod
    @abstractmethod
    def undeclared(cls) -> str:
        """Return what the class must declare before it can be registered; empty if nothing is missing."""


B = TypeVar("B", bound=type[Backend])

_BACKEND = "a subclass of stoker.backends.LLMBackend"
_log = logging.getLogger(__name__)
_registered: dict[str, type[Backend]] = {}


@dataclass(frozen=True, slots=True)
class BrokenPlugin:
    """A package's backend that could not be loaded.

    Attributes:
        name: the entry point's name.
        target: the object it names.
        package: its distribution, with the version.
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

    A class for the same framework may take the name of one of Stoker's own: it replaces ours in this process.

    Args:
        name: the backend's name, usually that of its framework.

    Raises:
        ValueError: the name is taken, or the class is not a complete backend.
    """

    def decorate(backend: B) -> B:
        _expect_backend(backend)
        holder = _registered.get(name)
        if holder is not None and holder is not backend and not _may_replace(holder, backend):
            raise _taken(name, holder, backend)
        _expect_new_runner(name, backend)
        _registered[name] = backend
        return backend

    return decorate


def register_framework(backend: B) -> B:
    """Register a backend under its framework's label, as a decorator without arguments (KEP-2839's newest text).

    Raises:
        ValueError: the label is taken, or the class is not a complete backend.
    """
    _expect_backend(backend)
    return register_backend(backend.framework)(backend)


def get_backend(name: str) -> type[Backend] | None:
    """Return the backend registered under a name; None without one."""
    return get_registered_backends().get(name)


def get_registered_backends() -> dict[str, type[Backend]]:
    """Return all backends by name, including those of installed packages."""
    broken_plugins()
    return dict(_registered)


@cache
def broken_plugins() -> tuple[BrokenPlugin, ...]:
    """Load the backends of installed packages, once, and return those that could not be loaded."""
    broken = []
    for entry in metadata.entry_points(group=ENTRY_POINT_GROUP):
        before = dict(_registered)
        try:
            backend = entry.load()
            _expect_kept(before)
            if not (inspect.isclass(backend) and issubclass(backend, Backend)):
                raise TypeError(f"{entry.value} is not {_BACKEND}")
            if _registered.get(entry.name) is not backend:
                if entry.name in before:
                    raise _taken(entry.name, before[entry.name], backend)
                register_backend(entry.name)(backend)
        # The import of a plugin may do anything, even exit.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            _registered.update(before)
            package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown package"
            broken.append(BrokenPlugin(entry.name, entry.value, package, f"{type(error).__name__}: {error}"))
            _log.warning("%s", broken[-1])
    return tuple(broken)


def runners() -> Mapping[str, type[TrainingFramework]]:
    """Return the framework class of each registered backend that has one, by the framework's name."""
    found = (backend.runner for backend in get_registered_backends().values())
    return {runner.name: runner for runner in found if runner is not None}


def _may_replace(holder: type[Backend], backend: type[Backend]) -> bool:
    """Return whether a class may take the name of another: ours, for the same framework, which runs as before."""
    is_ours = holder.__module__.partition(".")[0] == __name__.partition(".")[0]
    return is_ours and backend.framework == holder.framework and backend.runner in (None, holder.runner)


def _taken(name: str, holder: type[Backend], backend: type[Backend]) -> ValueError:
    return ValueError(
        f"backend {name!r} is already registered by {holder.__module__}.{holder.__qualname__}: "
        f"register {backend.__qualname__} under another name"
    )


def _expect_kept(before: Mapping[str, type[Backend]]) -> None:
    """Refuse a package that replaces a backend: only a program itself chooses to."""
    for name, holder in before.items():
        if _registered[name] is not holder:
            raise _taken(name, holder, _registered[name])


def _expect_backend(backend: type) -> None:
    if not (inspect.isclass(backend) and issubclass(backend, Backend)):
        raise ValueError(f"{backend!r} is not {_BACKEND}")
    if missing := backend.undeclared():
        raise ValueError(f"{backend.__qualname__} must declare {missing}")


def _expect_new_runner(name: str, backend: type[Backend]) -> None:
    runner: Any = backend.runner
    if runner is None:
        return
    if not (inspect.isclass(runner) and issubclass(runner, TrainingFramework)):
        raise ValueError(f"runner {runner!r} of backend {name!r} is not a subclass of stoker.plugin.TrainingFramework")
    which = f"runner {runner.__qualname__} of backend {name!r}"
    if inspect.isabstract(runner):
        missing = ", ".join(sorted(getattr(runner, "__abstractmethods__", ())))
        raise ValueError(f"{which} does not define {missing}")
    # The pod's label is all that `stoker run` knows of the backend.
    if runner().name != backend.framework:
        raise ValueError(
            f"{which} is named {runner.name!r}, but the label of its runtimes is {backend.framework!r}: "
            "give both the same name"
        )
    for other, holder in _registered.items():
        if holder.runner is not None and holder.runner is not runner and holder.runner.name == runner.name:
            raise ValueError(
                f"{which} runs framework {runner.name!r}, but {holder.runner.__qualname__} of backend {other!r} "
                "already runs it: give the framework another name"
            )
