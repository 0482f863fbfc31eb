"""Pages: the report of a run, and the comparison of several. Each is one file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

from stoker.contract.metrics import LOSS
from stoker.report.figures import Figure, figures_between, figures_of
from stoker.report.runs import RecordedRun
from stoker.report.svg import draw, key, number
from stoker.report.text import shown

# Of a prompt, and of each sample; as many as the file of samples keeps.
_CHARACTERS = 2000
_SAMPLES = 4
_MOST_ROWS = 300
# Facts of runs that stand side by side.
_COMPARED = ("method", "model", "steps", "duration")


def report_page(run: RecordedRun) -> str:
    """Return the report of a run."""
    facts = dict(_facts(run.facts))
    title = " ".join(facts[name] for name in ("method", "model") if name in facts) or "run"
    parts = [f"<h1>{shown(f'Training report: {title}')}</h1>", _list(facts), *run_parts(run)]
    return _page(f"Training report: {title}", parts)


def run_parts(run: RecordedRun) -> list[str]:
    """Return what a page shows of a run below its facts, escaped: curves, numbers, evaluations, samples."""
    return [*_figures(figures_of(run)), *_table(run), *_evaluations(run.evaluations), *_samples(run.groups)]


def facts_list(told: Mapping[str, Any]) -> str:
    """Return what a manifest says of a run as an escaped list; empty if it says nothing."""
    return _list(dict(_facts(told)))


def style() -> str:
    """Return the style sheet of these parts."""
    return resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")


def comparison_page(runs: Mapping[str, RecordedRun]) -> str:
    """Return the comparison of runs, by their labels."""
    title = f"{len(runs)} runs"
    rows = []
    for label, run in runs.items():
        facts = dict(_facts(run.facts))
        rows.append([label, *(facts.get(name, "–") for name in _COMPARED), _loss(run)])
    parts = [
        f"<h1>{shown(title)}</h1>",
        _rows(("run", *_COMPARED, "last loss"), rows),
        *_figures(figures_between(runs)),
    ]
    return _page(title, parts)


def _page(title: str, parts: Sequence[str]) -> str:
    template = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        title=shown(title), style=style(), body="\n".join(part for part in parts if part)
    )


def _facts(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a manifest says of a run, of which anything may be missing or of another kind."""
    model, versions = told.get("base_model"), told.get("versions")
    yield from _known("method", told.get("method"))
    yield from _known("model", model.get("name_or_path") if isinstance(model, dict) else None)
    yield from _known("framework", told.get("framework"))
    yield from _known("steps", told.get("steps"))
    yield from _known("processes", told.get("world_size"))
    seconds = told.get("seconds")
    if isinstance(seconds, int | float) and math.isfinite(seconds) and seconds >= 0:
        yield "duration", _duration(seconds)
    yield from _known("resumed from", told.get("resumed_from"))
    yield from _known("image", told.get("image_version"))
    yield from _known("ended", told.get("time"))
    if isinstance(versions, dict) and versions:
        yield "versions", ", ".join(f"{name} {version}" for name, version in sorted(versions.items(), key=str))


def _known(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, str | int) and value != "":
        yield name, str(value)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


def _loss(run: RecordedRun) -> str:
    return number(run.curves[LOSS].values[-1]) if LOSS in run.curves else "–"


def _list(facts: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{shown(name)}</dt><dd>{shown(value, 500)}</dd>" for name, value in facts.items())
    return f"<dl>{rows}</dl>" if rows else ""


def _figures(figures: Sequence[Figure]) -> Iterator[str]:
    yield '<h2>Curves</h2>\n<div class="figures">'
    for figure in figures:
        unit = f" <span>({shown(figure.unit)})</span>" if figure.unit else ""
        yield f"<figure><figcaption>{shown(figure.title)}{unit}</figcaption>\n{draw(figure)}"
        keys = [f"<li>{key(series)}{shown(series.label)}</li>" for series in figure.series]
        if figure.left_out:
            keys.append(f"<li>and {figure.left_out} more, which are not drawn</li>")
        yield f'<ul class="legend">{"".join(keys)}</ul></figure>'
    yield "</div>"


def _table(run: RecordedRun) -> Iterator[str]:
    names = sorted(run.curves)
    rows = []
    for name in names[:_MOST_ROWS]:
        values = run.curves[name].values
        rows.append([name, *(number(value) for value in (values[0], values[-1], min(values), max(values)))])
    yield f"<h2>Numbers</h2>\n<details><summary>All metrics ({len(names)})</summary>"
    yield _rows(("metric", "first", "last", "least", "largest"), rows)
    yield "</details>"


def _evaluations(evaluations: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = [row for evaluation in evaluations for row in _measured(evaluation)]
    if rows:
        yield '<h2>Evaluations</h2>\n<p class="note">What <code>stoker evaluate</code> measured of the result.</p>'
        yield _rows(("what", "metric", "value", "of", "when"), rows[-_MOST_ROWS:])


def _measured(evaluation: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a row for each number of an evaluation, of which anything may be missing or of another kind."""
    where = [str(evaluation.get("of", "")), str(evaluation.get("time", ""))]
    held, tasks = evaluation.get("held_out"), evaluation.get("tasks")
    parts = {}
    if isinstance(held, dict):
        parts[str(held.get("data", "held out"))] = held
    if isinstance(tasks, dict):
        parts |= {str(name): metrics for name, metrics in tasks.items() if isinstance(metrics, dict)}
    for name, metrics in parts.items():
        for metric, value in metrics.items():
            if type(value) in (int, float) and math.isfinite(value):
                yield [name, metric, number(value), *where]


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    titles = "".join(f'<th scope="col">{shown(name)}</th>' for name in head)
    lines = "\n".join("<tr>" + "".join(f"<td>{shown(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{titles}</tr></thead>\n<tbody>{lines}</tbody></table></div>'


def _samples(groups: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not groups:
        return
    yield '<h2>Samples</h2>\n<p class="note">A few of those that were trained, spread over the run.</p>'
    for index, group in enumerate(groups):
        is_open = ' open="open"' if index == len(groups) - 1 else ""
        yield f"<details{is_open}><summary>Step {shown(group['step'])}</summary>\n<p>Prompt</p>"
        yield f'<pre dir="auto">{shown(group.get("prompt", ""), _CHARACTERS)}</pre>'
        for sample in group["samples"][:_SAMPLES]:
            if isinstance(sample, dict):
                yield f"<p>{shown(_about(sample, group['step']))}</p>"
                yield f'<pre dir="auto">{shown(sample.get("text", ""), _CHARACTERS)}</pre>'
        yield "</details>"


def _about(sample: Mapping[str, Any], step: int) -> str:
    rewards, version = sample.get("rewards"), sample.get("version")
    parts = []
    if isinstance(rewards, list) and rewards:
        parts.append("reward " + ", ".join("–" if reward is None else f"{reward}" for reward in rewards))
    if type(version) is int:
        parts.append(f"version {version}, staleness {step - version}")
    if sample.get("finish"):
        parts.append(f"ended by {sample['finish']}")
    return "; ".join(parts) or "sample"
