"""What is drawn: which metrics belong into one figure, for one run and for several."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stoker.contract.metrics import (
    EVALUATION,
    GRADIENT_NORM,
    LEARNING_RATE,
    LOSS,
    PEAK_MEMORY,
    TOKENS,
    TOKENS_PER_SECOND,
)
from stoker.report.curves import thinned
from stoker.report.runs import RecordedRun

# Title, unit and the names of the metrics. The last ones are those of TRL (1.16), TorchTune (0.6) and grpo_async.
_KINDS = (
    ("Loss", "", rf"(?:{EVALUATION})?{LOSS}"),
    ("Reward", "", rf"(?:{EVALUATION})?reward|rewards/(?:chosen|rejected)"),
    ("Rewards by function", "", r"rewards/.+/mean"),
    ("Learning rate", "", LEARNING_RATE),
    ("Gradient norm", "", GRADIENT_NORM),
    ("Tokens per second", "", TOKENS_PER_SECOND),
    ("Peak memory", "GiB", PEAK_MEMORY),
    ("Accuracy", "", rf"(?:{EVALUATION})?(?:mean_token_accuracy|rewards/accuracies)"),
    ("Staleness of samples", "steps", r"staleness/(?:mean|max)"),
    ("Ratio of probabilities, trainer to samplers", "", r"sampling/ratio/mean"),
    ("Clipped tokens", "", r"clip_ratio/region_mean|cispo_clip_ratio"),
    ("Time waited", "s", r"rollout/(?:wait|idle)_seconds"),
)
# Numbers about an evaluation that say nothing of the model.
_ABOUT = re.compile(rf"{EVALUATION}(?:.*runtime|.*_per_second|{TOKENS}|version|rows)")
# So many lines look different from each other (page.css).
_MOST_SERIES = 8
_MOST_EVALUATIONS = 12


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a figure.

    Attributes:
        style: how it is drawn, from 0 up: a run has the same style in all figures of a comparison.
        label: what it shows.
        points: steps and values, in the order of the steps; at least one.
    """

    style: int
    label: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure.

    Attributes:
        title: what it shows.
        unit: of its values; may be empty.
        series: its lines.
        left_out: how many lines there would be besides.
    """

    title: str
    unit: str
    series: Sequence[Series]
    left_out: int = 0


def figures_of(run: RecordedRun) -> list[Figure]:
    """Return the figures of one run; metrics of a kind share one."""
    found = []
    for title, unit, names in _kinds([run]):
        series = [Series(style, name, thinned(run.curves[name])) for style, name in enumerate(names[:_MOST_SERIES])]
        found.append(Figure(title, unit, series, max(0, len(names) - _MOST_SERIES)))
    return found


def figures_between(runs: Mapping[str, RecordedRun]) -> list[Figure]:
    """Return the figures that compare runs, by their labels: one for each metric."""
    found = []
    for title, unit, names in _kinds([*runs.values()]):
        for name in names[:_MOST_SERIES]:
            having = {index: label for index, (label, run) in enumerate(runs.items()) if name in run.curves}
            drawn: dict[int, Series] = {}
            for index, label in having.items():
                style = index % _MOST_SERIES
                drawn.setdefault(style, Series(style, label, thinned(runs[label].curves[name])))
            shown = title if len(names) == 1 else f"{title}: {name}"
            found.append(Figure(shown, unit, [*drawn.values()], len(having) - len(drawn)))
    return found


def _kinds(runs: Sequence[RecordedRun]) -> list[tuple[str, str, list[str]]]:
    """Return title, unit and metrics of each kind that one of the runs has."""
    # In the order of the first run that has them.
    names = [*dict.fromkeys(name for run in runs for name in run.curves)]
    kinds = []
    seen: set[str] = set()
    for title, unit, pattern in _KINDS:
        # The metric itself comes before that of an evaluation.
        found = sorted((name for name in names if re.fullmatch(pattern, name)), key=lambda name: (len(name), name))
        seen.update(found)
        kinds.append((title, unit, found))
    others = [name for name in names if name.startswith(EVALUATION) and name not in seen and not _ABOUT.fullmatch(name)]
    kinds += [(f"Evaluation: {name.removeprefix(EVALUATION)}", "", [name]) for name in others[:_MOST_EVALUATIONS]]
    return [kind for kind in kinds if kind[2]]
