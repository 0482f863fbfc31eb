"""How soon versions come, and whether the next one is worth a moment of waiting: pure."""

from __future__ import annotations

# The longest moment, as a part of the time of a step.
_SOON = 0.25


class Lag:
    """Measures the time from asking for a step's batch, when its version is published, until samplers have the version.

    What is started with that version instead of the one before is a step younger when it is trained.
    """

    def __init__(self, publish_every: int) -> None:
        """Begin without knowing anything.

        Args:
            publish_every: steps from one version to the next.
        """
        self._publish_every = publish_every
        self._seconds: float | None = None
        # The version that is awaited, and since when.
        self._awaited: tuple[int, float] | None = None
        self._asked_at: float | None = None
        # The newest version that was published, as far as is known; -1 before the first.
        self._published = -1

    def ask(self, step: int, newest: int | None, now: float) -> bool:
        """Note that the batch of a step is asked for; return whether its version is about to come.

        Args:
            step: optimizer steps done.
            newest: the newest version that samplers have.
            now: seconds.
        """
        if self._awaited is not None:
            # It has not come in a whole step.
            self._seconds = now - self._awaited[1]
        step_seconds = 0.0 if self._asked_at is None else now - self._asked_at
        self._asked_at = now
        self._awaited = None
        # A resumed run publishes its first version at any step, and counts from there.
        self._published = max(self._published, -1 if newest is None else newest)
        if self._published >= 0 and step - self._published < self._publish_every:
            return False
        self._published = step
        self._awaited = (step, now)
        return self._seconds is not None and self._seconds < _SOON * step_seconds

    def come(self, version: int, now: float) -> None:
        """Note that samplers have a version."""
        if self._awaited is not None and version >= self._awaited[0]:
            self._seconds = now - self._awaited[1]
            self._awaited = None
