"""What was found of each adapter: by the checks, by loading it, and by what the server did afterwards."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from stoker.contract.words import say
from stoker.serve.vllm import ServerError

# A server that ends this soon after it was asked for an adapter, this many times, is not asked for it again.
_BLAME_SECONDS = 30.0
CRASHES = 2


@dataclass(frozen=True, slots=True)
class AdapterFinding:
    """What was found of an adapter.

    Attributes:
        time: when, in seconds since the epoch.
        path: the folder that was read.
        problem: what is wrong with it; empty if it can be served.
    """

    time: float
    path: str
    problem: str


class Findings:
    """The newest finding of each adapter."""

    def __init__(self) -> None:
        self._found: dict[str, AdapterFinding] = {}
        self._suspect = ("", 0.0)  # the adapter that the server last failed at, and when
        self._crashes: dict[str, int] = {}  # how often the server ended after that

    def of(self, name: str) -> AdapterFinding | None:
        """Return the newest finding of an adapter."""
        return self._found.get(name)

    def note(self, name: str, path: str, problem: str, now: float) -> None:
        """Remember a finding, and print a problem that is new."""
        known = self._found.get(name)
        if problem and (known is None or known.problem != problem):
            say(f"adapter {name}: {problem}")
        self._found[name] = AdapterFinding(now, path, problem)

    def problems(self, names: Collection[str]) -> dict[str, str]:
        """Return what is wrong with some adapters, by name."""
        return {name: one.problem for name, one in sorted(self._found.items()) if one.problem and name in names}

    def keep_only(self, names: Collection[str]) -> None:
        """Forget every other adapter."""
        for name in [name for name in self._found if name not in names]:
            del self._found[name]
            self._crashes.pop(name, None)

    def server_failed(self, name: str, error: ServerError, now: float) -> None:
        """Remember an adapter that the server itself failed at: if the server ends now, that may be why."""
        if error.status == 0 or error.status >= 500:
            self._suspect = (name, now)

    def server_ended(self, now: float) -> None:
        """Count a crash for the adapter that the server was asked for just before it ended."""
        name, when = self._suspect
        if name and now - when <= _BLAME_SECONDS:
            self._crashes[name] = self._crashes.get(name, 0) + 1
        self._suspect = ("", 0.0)

    def server_restarted(self) -> None:
        """Forget what was found with the server before; crashes still count."""
        self._found.clear()

    def crashes_server(self, name: str) -> bool:
        """Return whether an adapter crashed the server too often to try it again."""
        return self._crashes.get(name, 0) >= CRASHES
