"""What a run of asynchronous GRPO has trained in the end: each group once, and no sample older than it may be.

Local processes and pods of a cluster are judged by the same files of the output folder. They show all that was trained
if a step has no more than two groups.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What samples.jsonl shows of each step.
MOST_GROUPS = 2


@dataclass(frozen=True, slots=True)
class Trained:
    """What a run was to train.

    Attributes:
        steps: optimizer steps.
        groups: of each step.
        samples: of each group.
        rows: of the data.
        staleness: the bound.
    """

    steps: int
    groups: int
    samples: int
    rows: int
    staleness: int

    def flaws(self, metrics: str, samples: str, state: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with a run that has ended.

        Args:
            metrics: text of metrics.jsonl.
            samples: text of samples.jsonl.
            state: rollouts.json of the last checkpoint.
        """
        return [*self._of_metrics(lines_of(metrics)), *self._of_samples(lines_of(samples)), *self._of_state(state)]

    def _of_metrics(self, lines: list[dict[str, Any]]) -> list[str]:
        flaws = []
        steps = [line["step"] for line in lines]
        if steps != [*range(1, self.steps + 1)]:
            flaws.append(f"metrics of steps {steps}, and not of each of {self.steps} once")
        for line in lines:
            histogram = line["staleness/histogram"]
            if sum(histogram) != self.groups * self.samples:
                flaws.append(f"step {line['step']} trained {sum(histogram):g} samples")
            if sum(histogram[self.staleness + 1 :]) or line["staleness/max"] > self.staleness:
                flaws.append(f"step {line['step']} trained samples that are too old: {histogram}")
        return flaws

    def _of_samples(self, lines: list[dict[str, Any]]) -> list[str]:
        flaws = []
        shown: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for line in lines:
            shown[line["step"]].append(line)
        # A step that was done again is shown again, and only the last time counts.
        survived = {step: groups[-self.groups :] for step, groups in shown.items()}
        if sorted(survived) != [*range(self.steps)]:
            flaws.append(f"samples of steps {sorted(survived)}, and not of all {self.steps}")
        counted = Counter((group["epoch"], group["row"]) for groups in survived.values() for group in groups)
        flaws += [f"row {row} of epoch {epoch} was trained {n} times" for (epoch, row), n in counted.items() if n > 1]
        epochs, more = divmod(self.steps * self.groups, self.rows)
        wanted = dict.fromkeys(range(epochs), self.rows) | ({epochs: more} if more else {})
        if (found := Counter(epoch for epoch, _ in counted)) != wanted:
            flaws.append(f"rows trained by epoch: {dict(found)}, and not {wanted}")
        for step, groups in survived.items():
            versions = {sample["version"] for group in groups for sample in group["samples"]}
            if not versions <= {*range(step - self.staleness, step + 1)}:
                flaws.append(f"step {step} trained samples of versions {sorted(versions)}")
        return flaws

    def _of_state(self, state: Mapping[str, Any]) -> list[str]:
        groups = self.steps * self.groups
        given = (state["step"], state["frontier"], state["above"])
        wanted: tuple[Any, ...] = (self.steps, groups, [])
        return [] if given == wanted else [f"the last checkpoint has step, frontier and more {given}, not {wanted}"]


def lines_of(text: str) -> list[dict[str, Any]]:
    """Return the objects in a text with one in each line; only a newline ends a line."""
    return [json.loads(line) for line in text.split("\n") if line]
