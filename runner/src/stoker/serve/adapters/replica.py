"""Acts on one replica's server: loads adapters, unloads them, and measures their effect."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.contract.words import say
from stoker.serve.adapters.decide import Load
from stoker.serve.adapters.findings import Findings
from stoker.serve.adapters.settings import Settings
from stoker.serve.adapters.wanted import RETRY_SECONDS
from stoker.serve.vllm import Server, ServerError

# How long a folder that one container of a pod sees may be missing for the other.
_LAG_SECONDS = 60.0
# Without any effect two runs differ by the noise of the arithmetic, which is measured; this much is always allowed.
_NOISE_NATS = 1e-4
_NOISE_FACTOR = 4.0


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of an adapter.

    Attributes:
        nats: the largest difference that it makes to a log-probability; NaN if one is.
        noise: the largest difference between two runs of the base model.
    """

    nats: float
    noise: float


class ReplicaServer:
    """One replica's server, and what was done with it.

    Args:
        settings: what the adapters are.
        server: the replica's vLLM.
        findings: where failures are noted.
        clock: seconds since the epoch.

    Attributes:
        effects: largest difference an adapter makes to a log-probability, in nats, by name.
        delays: seconds from publishing to loaded, by name.
    """

    def __init__(self, settings: Settings, server: Server, findings: Findings, clock: Callable[[], float]) -> None:
        self._settings, self._server, self._findings, self._clock = settings, server, findings, clock
        self._started = clock()
        self._mine: set[str] = set()  # names that were loaded here
        self._measured: dict[str, float] = {}  # when an adapter's effect was last measured
        self.effects: dict[str, float] = {}
        self.delays: dict[str, float] = {}

    def restarted(self) -> None:
        """Forget what was measured with the server before."""
        self.effects.clear()
        self._measured.clear()

    def forget_delays(self, published: Collection[str]) -> None:
        """Forget when versions were loaded that are no longer published: a run may publish thousands."""
        self.delays = {name: seconds for name, seconds in self.delays.items() if name in published}

    def others(self, loaded: Mapping[str, str]) -> set[str]:
        """Return the names that somebody else has loaded and may keep, where others may load any."""
        if not self._settings.others:
            return set()
        published = self._settings.folder
        return {
            name
            for name, path in loaded.items()
            if name not in self._mine and not (published and Path(path).is_relative_to(published))
        }

    def load(self, action: Load, published: float, loaded: dict[str, str], now: float) -> None:
        """Load an adapter.

        Args:
            action: its name and folder.
            published: when it was published, in seconds since the epoch; 0 if not known.
            loaded: folder of each adapter that is served, by name; gets the new one.
            now: seconds since the epoch.
        """
        try:
            self._server.load(action.name, action.path)
        except ServerError as error:
            checked = self._findings.of(action.name)
            self._findings.server_failed(action.name, error, now)
            # No answer: it may be loaded all the same. 404: the server may not see the folder yet, though this
            # container does. The next look tells.
            lags = error.status == 404 and checked is not None and now - checked.time <= _LAG_SECONDS
            if error.status and not lags:
                self._findings.note(action.name, action.path, f"vLLM refused it: {error}", now)
            return
        loaded[action.name] = action.path
        self._mine.add(action.name)
        if published >= self._started:
            self.delays.setdefault(action.name, round(max(self._clock() - published, 0.0), 3))
        say(f"adapter {action.name} is served from {action.path}")

    def unload(self, name: str, loaded: dict[str, str]) -> None:
        """Unload an adapter, and take it out of `loaded`."""
        try:
            self._server.unload(name)
        except ServerError as error:
            if error.status != 404:
                say(f"adapter {name} could not be unloaded: {error}")
                return
        loaded.pop(name, None)
        self.effects.pop(name, None)
        self._measured.pop(name, None)
        self._mine.discard(name)
        say(f"adapter {name} is no longer served")

    def unmeasured(self, names: Iterable[str], loaded: Mapping[str, str], now: float) -> list[str]:
        """Return the adapters that are loaded and whose effect should be measured now."""
        return [
            name
            for name in names
            if name in loaded and name not in self.effects and now - self._measured.get(name, 0.0) >= RETRY_SECONDS
        ]

    def measure(self, name: str) -> Effect | ServerError:
        """Compare an adapter's log-probabilities with the base model's: equal ones mean that it does nothing.

        This takes three requests, behind everything else that the server has to do, and changes nothing here.
        """
        try:
            base = self._server.log_probabilities(self._settings.model_name)
            noise = _distance(base, self._server.log_probabilities(self._settings.model_name))
            return Effect(_distance(base, self._server.log_probabilities(name)), noise)
        except ServerError as error:
            return error

    def measured(self, name: str, path: str, found: Effect | ServerError, now: float) -> None:
        """Remember an adapter's effect, or why it is unknown."""
        self._measured[name] = now
        if isinstance(found, ServerError):
            self._findings.server_failed(name, found, now)
            self._findings.note(name, path, f"its effect is unknown: {found}", now)
            return
        self.effects[name] = found.nats
        problem = ""
        if math.isnan(found.nats):
            problem = "its log-probabilities are NaN: its training failed"
        elif found.nats <= max(_NOISE_NATS, _NOISE_FACTOR * found.noise):
            problem = (
                "it has no effect: every log-probability equals the base model's (wrong module names, or no training)"
            )
        self._findings.note(name, path, problem, now)


def _distance(one: list[float], other: list[float]) -> float:
    """Return the largest difference; NaN if any is, which `max` alone may not see.

    Raises:
        ServerError: the two are not of the same text.
    """
    if len(one) != len(other):
        raise ServerError(f"vLLM split the same text into {len(one)} and into {len(other)} tokens")
    distances = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return math.nan if any(map(math.isnan, distances)) else max(distances, default=0.0)
