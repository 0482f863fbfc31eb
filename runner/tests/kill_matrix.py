"""The kill matrix: its cases, what must become of each, and docs/reference/kill-matrix.md.

Local processes (integration/test_kills.py) and pods of a cluster (tests/e2e/test_kills.py) go through the same cases.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runner.tests.rollout_kill_matrix import FRAMEWORK as ROLLOUTS
from runner.tests.rollout_kill_matrix import LOCAL_CASES, ROLLOUT_CASES

from stoker.rank.pulse import FINISHING, SAVING, TRAINING

INITIALIZING, RENDEZVOUS = "initializing", "rendezvous"
FRAMEWORKS = ("trl", "torchtune")
PHASES = (INITIALIZING, RENDEZVOUS, TRAINING, SAVING, FINISHING)
SIGNALS = (signal.SIGTERM, signal.SIGKILL)
# What is hit: number of pods of the job → which of them. Of two it is the one that does more in the phase.
TARGETS = ("one pod", "one of two", "both")
# What runs the cases.
LOCAL, CLUSTER = "as local processes", "as pods of a cluster"

# The file that the cases write what they saw into. Read here, as tests of the runner do not see such variables.
REPORT = os.environ.get("KILL_MATRIX_REPORT")
NOT_SEEN = "not seen"
_INTRODUCTION = """\
# Kill matrix

<!-- Generated from runs by `make kill-matrix` and `make kill-matrix-cluster`: do not edit. -->

What happens to a job whose pods are killed, from real runs: torchrun, a small model, several checkpoints on the way.
Evictions and deletions send SIGTERM; a lack of memory or a lost node amounts to SIGKILL. Every job that lost pods
ended Complete, with all the steps it was asked for. A cell has the exit code of the attempt that was hit and of its
restart, or what the restart cost on the cluster (counted: against `maxRestarts`), and where the restart began.

| phase | means |
|---|---|
| initializing | `stoker run` checks and waits for the other pods |
| rendezvous | torchrun's nodes look for each other |
| training | after the first checkpoint |
| saving | a checkpoint is half written |
| finishing | all steps are done, the model is being written |
"""
_OF_ROLLOUTS = """
Jobs of `grpo_async` have two nodes and two samplers with vLLM. A lost sampler is replaced while they train. After each
of their cases all groups are trained once, no sample is older than it may be, and no process and no version is left.
"""
_OF_ROLLOUTS_ON_A_CLUSTER = """\
After a lost node a cluster makes the samplers anew too, and the cell says how long it took from the loss to the next
step. A full disk ends a run there as Failed, with its newest checkpoint whole.
"""
_ROLLOUTS_HEAD = "| what happens | exit codes and restarts |\n|---|---|"
_HEAD = f"| signal | while | {' | '.join(TARGETS)} |\n|---|---|---|---|---|"


@dataclass(frozen=True, slots=True)
class Case:
    """A cell of the matrix.

    Attributes:
        framework: what trains, one of `FRAMEWORKS`.
        number: the signal.
        phase: what the pods do when it comes.
        target: who gets it, one of `TARGETS`.
    """

    framework: str
    number: signal.Signals
    phase: str
    target: str

    def __str__(self) -> str:
        return f"{self.framework}: {self.number.name} to {self.target} while {self.phase}"

    @property
    def key(self) -> str:
        """The cell."""
        return _key(self.number.name, self.phase, self.target)

    @property
    def nodes(self) -> int:
        """Pods of the job."""
        return 1 if self.target == "one pod" else 2

    @property
    def killed(self) -> tuple[int, ...]:
        """The nodes that get the signal."""
        if self.target == "both":
            return (0, 1)
        # Node 0 writes the model and most of a checkpoint.
        return (0,) if self.nodes == 1 or self.phase in (SAVING, FINISHING) else (1,)

    @property
    def begins_to_train(self) -> bool:
        """True if there is a checkpoint when the signal comes."""
        return self.phase not in (INITIALIZING, RENDEZVOUS)

    @property
    def first_code(self) -> int:
        """The documented code of the attempt that is hit."""
        if self.number is signal.SIGKILL:
            return 70
        # Whoever has trained to the end only has to write it down, which a grace period is for.
        return 0 if self.phase == FINISHING else 75


CASES = [
    Case(framework, number, phase, target)
    for framework in FRAMEWORKS
    for number in SIGNALS
    for phase in PHASES
    for target in TARGETS
]


def twelfth(first: int) -> frozenset[Case]:
    """Return what `make test-full` plays of the matrix: each phase, with frameworks, signals and targets in turn.

    Args:
        first: where the turns begin: 0 or 1, so that local processes and pods of a cluster play other cases.
    """
    return frozenset(
        Case(FRAMEWORKS[turn % 2], SIGNALS[turn // 2 % 2], phase, TARGETS[turn % 3])
        for turn, phase in enumerate(PHASES, first)
    )


class Cell(Protocol):
    """A case of either matrix."""

    @property
    def framework(self) -> str:
        """What trains."""

    @property
    def key(self) -> str:
        """What tells its cell from the others of its table."""


@contextmanager
def recorded(case: Cell, where: str) -> Iterator[list[str]]:
    """Have what becomes of a case written down, if the environment names a file for it.

    Args:
        case: the case; until its end is known its cell says that it was not seen.
        where: what ran it, `LOCAL` or `CLUSTER`.

    Yields:
        a list that the cell's text is put into.
    """
    _record(case, where, NOT_SEEN)
    text: list[str] = []
    yield text
    _record(case, where, *text)


def cell(first_code: int, resumed_from: str | None) -> str:
    """Return what a cell says of a job that is Complete.

    Args:
        first_code: exit code of the attempt that was hit.
        resumed_from: the checkpoint that its restart began with, if any.
    """
    if first_code == 0:
        return "0, no restart"
    return f"{first_code}, then 0 {'from a checkpoint' if resumed_from else 'from step 0'}"


def _key(number: str, phase: str, target: str) -> str:
    return f"{number} {phase} {target}"


def _record(case: Cell, where: str, text: str) -> None:
    if REPORT:
        path = Path(REPORT)
        sections = read_table(path.read_text() if path.exists() else "")
        sections.setdefault(f"{case.framework}, {where}", {})[case.key] = text
        path.write_text(table(sections))


# Heading → key of a case → what its cell says.
Sections = dict[str, dict[str, str]]


def table(sections: Sections) -> str:
    """Return docs/reference/kill-matrix.md."""
    text = _INTRODUCTION
    if any(heading.startswith(f"{ROLLOUTS}, ") for heading in sections):
        text += _OF_ROLLOUTS
    if f"{ROLLOUTS}, {CLUSTER}" in sections:
        text += _OF_ROLLOUTS_ON_A_CLUSTER
    for heading, cells in sorted(sections.items()):
        if heading.startswith(f"{ROLLOUTS}, "):
            cases = LOCAL_CASES if heading.endswith(LOCAL) else ROLLOUT_CASES
            lines = [_ROLLOUTS_HEAD, *(f"| {case.key} | {cells.get(case.key, NOT_SEEN)} |" for case in cases)]
        else:
            lines = [_HEAD, *(_line(cells, number.name, phase) for number in SIGNALS for phase in PHASES)]
        text += f"\n## {heading}\n\n" + "".join(f"{line}\n" for line in lines)
    return text


def _line(cells: Mapping[str, str], number: str, phase: str) -> str:
    row = [cells.get(_key(number, phase, target), NOT_SEEN) for target in TARGETS]
    return f"| {number} | {phase} | {' | '.join(row)} |"


def read_table(text: str) -> Sections:
    """Return what docs/reference/kill-matrix.md says."""
    sections: Sections = {}
    for section in text.split("\n## ")[1:]:
        heading, _, rows = section.partition("\n")
        cells = sections.setdefault(heading, {})
        for number, phase, *row in re.findall(r"^\| (SIG\w+) \| (\w+) \| (.*) \| (.*) \| (.*) \|$", rows, re.MULTILINE):
            cells |= {_key(number, phase, target): said for target, said in zip(TARGETS, row, strict=True)}
        if heading.startswith(f"{ROLLOUTS}, "):
            known = {case.key for case in ROLLOUT_CASES}
            found = re.findall(r"^\| ([^|]*) \| ([^|]*) \|$", rows, re.MULTILINE)
            cells |= {key: said for key, said in found if key in known}
    return sections
