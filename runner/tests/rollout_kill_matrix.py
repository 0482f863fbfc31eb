"""The kill matrix of asynchronous GRPO: two nodes that train, two samplers, and what may be taken from them.

Local processes (integration/test_rollout_kills.py) and pods of a cluster (tests/e2e/test_rollout_kills.py) go through
the same cases, as far as both have what is hit.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

FRAMEWORK = "grpo_async"
# What is hit. A sampler is a pod of all its processes, or `stoker sampler` with all of them.
SAMPLER, VLLM, WATCHER, PROXY = (
    "a sampler",
    "the vLLM of a sampler",
    "the watcher of a sampler",
    "the proxy of a sampler",
)
FIRST, SECOND, EVERYTHING = "the node of rank 0", "the node of rank 1", "all nodes and samplers"
HITS = (SAMPLER, VLLM, WATCHER, PROXY, FIRST, SECOND, EVERYTHING)
DISK = "the disk of the versions is full"


@dataclass(frozen=True, slots=True)
class RolloutCase:
    """A row of the matrix.

    Attributes:
        hit: one of `HITS`; or `DISK`, which is no signal.
        number: the signal; None for the disk.
    """

    hit: str
    number: signal.Signals | None

    def __str__(self) -> str:
        return self.hit if self.number is None else f"{self.number.name} to {self.hit}"

    @property
    def framework(self) -> str:
        """What trains."""
        return FRAMEWORK

    @property
    def key(self) -> str:
        """The row."""
        return str(self)

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes that get the signal."""
        return {FIRST: (0,), SECOND: (1,), EVERYTHING: (0, 1)}.get(self.hit, ())

    @property
    def samplers(self) -> tuple[int, ...]:
        """The samplers that get the signal, or in which a process gets it."""
        return (0, 1) if self.hit == EVERYTHING else () if self.nodes or self.hit == DISK else (0,)

    @property
    def code(self) -> int:
        """The documented code of the attempt that is hit."""
        if self.hit == DISK:
            return 78
        if not self.nodes:
            return 0
        return 70 if self.number is signal.SIGKILL else 75


ROLLOUT_CASES = [
    *(RolloutCase(hit, number) for hit in HITS for number in (signal.SIGTERM, signal.SIGKILL)),
    RolloutCase(DISK, None),
]
# What `make test-full` plays on the cluster. Of local processes it plays the disk alone: the others take ten minutes.
OFTEN = (
    RolloutCase(SAMPLER, signal.SIGTERM),
    RolloutCase(VLLM, signal.SIGKILL),
    RolloutCase(WATCHER, signal.SIGTERM),
    RolloutCase(EVERYTHING, signal.SIGKILL),
)
# `stoker local` has no proxy.
LOCAL_CASES = [case for case in ROLLOUT_CASES if case.hit != PROXY]


def in_two_runs(cases: Sequence[RolloutCase]) -> list[Any]:
    """Return the parameters of a test that plays cases in one run: those of `make test-full`, and the others."""
    played = [case for case in cases if case in OFTEN]
    others = [case for case in cases if case not in OFTEN]
    return [pytest.param(played, id="some"), pytest.param(others, id="others", marks=pytest.mark.matrix)]
