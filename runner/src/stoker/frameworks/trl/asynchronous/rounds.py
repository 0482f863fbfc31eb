"""Says whose samples the identity guard judges in a step. Pure: all ranks see the same samples and decide the same.

A fault counts when the same sampler shows it twice. One that writes for every step is there again in the next one, so
one look within the promised steps is early enough. One that a step had no samples of may be away again, so it is looked
at twice as often.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

# A sampler that so many steps had no samples of is no longer waited for.
_AWAY = 16


@dataclass(slots=True)
class _Known:
    """What is known of a sampler.

    Attributes:
        seen: the last step that had samples of it.
        judged: the last step that judged it; None for none.
        version: what it was judged with; -1 for nothing.
        absent: a step since then had no samples of it.
        suspected: it was at fault then.
    """

    seen: int
    judged: int | None = None
    version: int = -1
    absent: bool = False
    suspected: bool = False


class Rounds:
    """Remembers when each sampler was judged, and what was found.

    Args:
        every: within how many steps a fault must be seen twice.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._known: dict[str, _Known] = {}

    def see(self, step: int, replicas: Iterable[str]) -> None:
        """Note whose samples a step has."""
        for replica in replicas:
            known = self._known.setdefault(replica, _Known(step))
            known.absent = known.absent or step > known.seen + 1
            known.seen = step

    def present(self, step: int) -> int:
        """Return how many samplers there are."""
        return len(self._there(step))

    def is_due(self, replica: str, step: int, rare: int) -> bool:
        """Return whether a step must judge a sampler.

        Args:
            replica: the sampler.
            step: the step.
            rare: what it can be judged with now and seldom can be, so that this is not left out; -1 for nothing.
        """
        known = self._known.get(replica, _Known(step))
        return known.version < rare or self._due(known) <= step

    def judged(self, step: int, versions: Mapping[str, int], faulty: Collection[str]) -> set[str]:
        """Note what was found, and return the samplers that were at fault the last time too.

        Args:
            step: the step.
            versions: what each sampler was judged with.
            faulty: the samplers that are at fault.
        """
        twice = set()
        for replica, version in versions.items():
            known = self._known.setdefault(replica, _Known(step))
            if known.suspected and replica in faulty:
                twice.add(replica)
            known.judged, known.version, known.absent = step, version, False
            known.suspected = replica in faulty
        return twice

    def lack(self, step: int, until: int, comes: int) -> bool:
        """Return whether a sampler must be judged soon and there is nothing to judge it with.

        Args:
            step: the step.
            until: the step that counts as soon.
            comes: the version whose samples may still come; -1 for none.
        """
        there = self._there(step) or [_Known(step)]  # before the first step nobody is known
        return any(known.version >= comes and self._due(known) <= until for known in there)

    def _there(self, step: int) -> list[_Known]:
        return [known for known in self._known.values() if step - known.seen <= _AWAY]

    def _due(self, known: _Known) -> int:
        if known.judged is None:
            return 0
        if known.suspected:
            return known.judged + 1
        within = self._every // 2 if known.absent else self._every
        return known.judged + max(1, within - 1)
