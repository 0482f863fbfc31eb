"""Acts on one replica of a fleet: all but its adapters, so that it is as the fleet's desired state says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from stoker.contract.words import say
from stoker.serve.fleet.desired import Desired, Held, held
from stoker.serve.fleet.log import Log
from stoker.serve.fleet.weights import NO_WEIGHTS, ReplicaWeights
from stoker.serve.vllm import Server, ServerError


class Member:
    """One replica's part in its fleet.

    Args:
        folder: of the desired states.
        server: the replica's vLLM.
        weights: the replica's weights; None if they do not change.

    Attributes:
        newest: the newest desired state that was read.
        kept: the newest that was kept.
    """

    def __init__(self, folder: Path, server: Server, weights: ReplicaWeights | None = None) -> None:
        self._log, self._server, self._weights = Log(folder), server, weights
        self.newest = self.kept = Desired()
        self._told = 0  # a generation that is there, as somebody said
        self._resets: int | None = None  # for which generation the cache was dropped; None if that is not known
        self._names: set[str] = set()  # adapters of the state before
        self._gone: set[str] = set()  # adapters that were unloaded
        self._problem = ""

    def restarted(self) -> None:
        """Forget what the server before had.

        Raises:
            ServerError: the server does not answer.
        """
        self._resets, self._names, self._gone = None, set(), set()
        if self._weights:
            self._weights.restarted()

    def tell(self, generation: int) -> None:
        """Note a generation that is there, as somebody says: the next read finds it."""
        self._told = max(self._told, generation)

    def read(self) -> None:
        """Read the desired state. If it cannot be read, the last one stays."""
        problem = ""
        try:
            newest, kept = self._log.newest(self._told)
            if newest.generation >= self.newest.generation:  # else the file system shows an old content
                self.newest, self.kept = newest, kept
        except (OSError, ValueError) as error:
            problem = f"the fleet's state in {self._log.folder} cannot be read: {error}"
        if problem and problem != self._problem:
            say(problem)
        self._problem = problem

    def outdated(self) -> Held | None:
        """Return what a replica has that must not answer before it has other weights; None if it may."""
        if self._weights is None or self._weights.held in (self.newest.weights, self.kept.weights):
            return None
        has = self._weights.held or "its model"
        return Held(self.newest.generation, problem=f"it still has the weights in {has}, which are no longer wanted")

    def apply(self, loaded: Mapping[str, str], left: Collection[str], problems: Mapping[str, str]) -> Held:
        """Load weights, pause, resume and drop what is cached, and return what the replica has then.

        Args:
            loaded: folder of each adapter that it serves, by name.
            left: names that it serves and should not.
            problems: what is wrong with adapters, by name.
        """
        problem = self._problem
        paused = not self.newest.paused
        try:
            problem = problem or self._take(self.newest)
            wanted = self.newest  # another one may have come while weights were read
            paused = self._server.is_paused()
            if paused != wanted.paused:
                (self._server.pause if wanted.paused else self._server.resume)()
                paused = wanted.paused
            self._reset(wanted)
        except ServerError as error:
            problem = problem or f"vLLM: {error}"
        wrong = [f"{name}: {problems[name]}" for name in sorted(self.newest.adapters) if name in problems]
        return held(
            self.newest,
            self.kept,
            loaded,
            left,
            paused=paused,
            resets=self._resets or 0,
            weights=self._weights.held if self._weights else "",
            problem=problem or "; ".join(wrong),
        )

    def _take(self, wanted: Desired) -> str:
        if self._weights:
            return self._weights.take(wanted, self._wants)
        return NO_WEIGHTS if wanted.weights else ""

    def _wants(self, weights: str) -> bool:
        """Return whether the desired state, read anew, has these weights."""
        self.read()
        return self.newest.weights == weights

    def _reset(self, wanted: Desired) -> None:
        """Drop the cache if that is wanted, and if a name means other weights than before: vLLM caches by name."""
        names = {*wanted.adapters}
        self._gone |= self._names - names
        self._names = names
        # A server that is new to this process may be an old one, which has cached what calls wanted dropped meanwhile.
        if self._resets is None and not (wanted.resets or names):
            self._resets = 0
        if self._resets is None or self._resets < wanted.resets or self._gone & names:
            self._server.reset_cache()
            self._resets = wanted.resets
            self._gone -= names
