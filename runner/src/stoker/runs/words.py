"""Runs in words: columns of lists, lines of one run, durations, small curves. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from stoker.runs.explain import Finding
from stoker.runs.read import Seen
from stoker.runs.run import Pod, Run, State, moment

_BARS = "▁▂▃▄▅▆▇█"
_GAP = 2


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under heads.

    Attributes:
        heads: a word for each column.
        rows: a text for each column.
        order: the heads from the most to the least important: a narrow terminal leaves out the last ones, and never
            STATE or one before it.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    order: tuple[str, ...]

    def fitting(self, width: int) -> Table:
        """Return the table without what does not fit, and without columns that are empty.

        The last column, a text, may wrap: it counts with at most a third of the width.
        """
        columns = list(zip(self.heads, *self.rows, strict=True))
        kept = {column[0]: column for column in columns if not self.rows or any(column[1:])}
        sizes = {head: max(map(len, column)) + _GAP for head, column in kept.items()}
        last = self.heads[-1]
        if last in sizes:
            sizes[last] = min(sizes[last], max(len(last), width // 3))
        for head in reversed(self.order[1:]):
            if head == "STATE" or sum(sizes.values()) - _GAP <= width:
                break
            sizes.pop(head, None)
        chosen = [kept[head] for head in self.heads if head in sizes]
        rows = tuple(tuple(column[row + 1] for column in chosen) for row in range(len(self.rows)))
        return Table(tuple(column[0] for column in chosen), rows, self.order)

    def plain(self) -> list[str]:
        """Return its lines, aligned, without what a terminal adds."""
        lines = [self.heads, *self.rows]
        sizes = [max(len(line[column]) for line in lines) for column in range(len(self.heads))]
        return [
            "".join(f"{text:<{size + _GAP}}" for text, size in zip(line, sizes, strict=True)).rstrip() for line in lines
        ]


def list_of(runs: Iterable[Run], now: datetime, namespaces: bool = False) -> Table:
    """Return the table of `stoker runs`."""
    found = [
        (
            *((run.namespace,) if namespaces else ()),
            run.name,
            run.state.value,
            percent(run),
            number(run.progress.metric("loss") if run.progress else None),
            left(run),
            "" if run.nodes is None else str(run.nodes),
            str(run.restarts),
            duration(run.seconds(now)),
            run.runtime,
            run.reason,
        )
        for run in runs
    ]
    heads = ("NAME", "STATE", "DONE", "LOSS", "LEFT", "NODES", "RESTARTS", "AGE", "RUNTIME", "REASON")
    order = ("NAME", "STATE", "DONE", "REASON", "LEFT", "AGE", "LOSS", "RESTARTS", "NODES", "RUNTIME")
    first = ("NAMESPACE",) if namespaces else ()
    return Table(first + heads, tuple(found), order[:1] + first + order[1:])


def top_of(
    runs: Iterable[Run], losses: Mapping[str, Iterable[float]], now: datetime, namespaces: bool = False
) -> Table:
    """Return the table of `stoker top`.

    Args:
        runs: the runs.
        losses: UID of a run → its losses so far.
        now: the time.
        namespaces: True to tell the namespace of each.
    """
    found = []
    for run in runs:
        metric = run.progress.metric if run.progress else lambda *_: None
        found.append(
            (
                *((run.namespace,) if namespaces else ()),
                run.name,
                run.state.value,
                percent(run),
                number(metric("step")),
                number(metric("loss")),
                curve([*losses.get(run.uid, ())]),
                number(metric("tokens_per_second")),
                number(metric("reward")),
                number(metric("staleness/mean")),
                left(run),
                str(run.restarts),
                duration(run.seconds(now)),
                run.reason,
            )
        )
    heads = ("NAME", "STATE", "DONE", "STEP", "LOSS", "CURVE", "TOKENS/S", "REWARD", "STALE", "LEFT", "RESTARTS", "AGE")
    order = ("NAME", "STATE", "DONE", "LOSS", "REASON", "LEFT", "CURVE", "TOKENS/S", "STEP", "STALE", "REWARD")
    first = ("NAMESPACE",) if namespaces else ()
    return Table((*first, *heads, "REASON"), tuple(found), (*order[:1], *first, *order[1:], "RESTARTS", "AGE"))


def pods_of(run: Run) -> Table:
    """Return the table of a run's pods."""
    rows = tuple(
        (pod.label, _pod_state(pod), str(pod.attempt), str(pod.restarts), pod.node, pod.name, _pod_reason(pod))
        for pod in run.pods
    )
    heads = ("ROLE", "STATE", "ATTEMPT", "RESTARTS", "NODE", "POD", "REASON")
    return Table(heads, rows, ("ROLE", "STATE", "REASON", "POD", "NODE", "RESTARTS", "ATTEMPT"))


def facts_of(run: Run, now: datetime) -> list[tuple[str, str]]:
    """Return what is known of one run, as names and texts."""
    state = f"{run.state}: {run.reason}" if run.reason else str(run.state)
    runtime = f"{run.runtime} ({run.framework})" if run.framework else run.runtime
    nodes = "" if run.nodes is None else "1 node" if run.nodes == 1 else f"{run.nodes} nodes"
    age = duration(run.seconds(now))
    found = [
        ("run", f"{run.name} in namespace {run.namespace}"),
        ("state", state),
        ("runtime", ", ".join(filter(None, (runtime, nodes)))),
        ("submitted", f"{run.created}, took {age}" if run.ended else f"{run.created}, {age} ago"),
        ("ended", run.ended),
        ("restarts", str(run.restarts)),
        ("progress", _progress(run, now)),
    ]
    return [(name, text) for name, text in found if text]


def findings_of(findings: Iterable[Finding]) -> list[str]:
    """Return causes as lines, each with what to do below it."""
    return [line for found in findings for line in (f"{found.about}: {found.cause}", f"  → {found.fix}")]


def unexplained(seen: Seen) -> Finding:
    """Return what to say of a run that nothing hinders."""
    run = seen.run
    get, estimate = f"`stoker get {seen.named} FOLDER", "`stoker estimate --model MODEL --measured OUTPUT TRAINJOB`"
    told = {
        State.COMPLETE: ("it is complete", f"{get}` brings its result"),
        State.FAILED: (
            "it has failed, and its pods are gone with the reason",
            f"{get} --only last-error.json` brings the last error from its claim",
        ),
        State.RUNNING: (
            "it is running normally",
            f"`stoker top{seen.options}` shows how fast, and {estimate} what to expect, from an earlier run's output",
        ),
    }
    other = (
        f"it is {run.state.value.lower()}, and the cluster reports no problem",
        f"`stoker logs {seen.named} --follow` shows what its pods do",
    )
    return Finding(f"TrainJob {run.name}", *told.get(run.state, other))


def state_of(run: Run) -> str:
    """Return a run's state as a line, such as `tune is pending: Unschedulable`."""
    return f"{run.name} is {run.state.value.lower()}" + (f": {run.reason}" if run.reason else "")


def percent(run: Run) -> str:
    """Return how much of a run is done, such as `42 %`."""
    done = run.progress.percent if run.progress else None
    return "" if done is None else f"{done} %"


def left(run: Run) -> str:
    """Return how long a run that goes on still takes."""
    seconds = run.progress.seconds_left if run.progress else None
    return "" if seconds is None or run.state is not State.RUNNING else duration(seconds)


def number(value: float | None) -> str:
    """Return a metric in four digits; empty for none."""
    return "" if value is None else f"{value:.4g}" if abs(value) < 10000 else f"{value:.0f}"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units, such as `2h 5m`; empty for none."""
    if seconds is None:
        return ""
    units = [(86400, "d"), (3600, "h"), (60, "m"), (1, "s")]
    rest = round(seconds)
    found: list[str] = []
    for size, name in units:
        count, rest = divmod(rest, size)
        if found or count or name == "s":
            found.append(f"{count}{name}" if count or not found else "")
    return " ".join(filter(None, found[:2]))


def size_of(count: float) -> str:
    """Return a number of bytes, such as `1.5 MiB`."""
    if count < 1024:
        return f"{count:.0f} B"
    units = ("KiB", "MiB", "GiB")
    power = min(len(units), int(math.log(count, 1024)))
    return f"{count / 1024**power:.1f} {units[power - 1]}"


def curve(values: Sequence[float], width: int = 12) -> str:
    """Return values as a line of bars; of many, the newest."""
    shown = values[-width:]
    if not shown:
        return ""
    least, most = min(shown), max(shown)
    scale = (len(_BARS) - 1) / (most - least) if most > least else 0.0
    return "".join(_BARS[round((value - least) * scale)] for value in shown)


def _progress(run: Run, now: datetime) -> str:
    if run.progress is None:
        return ""
    parts = [percent(run)]
    parts += [f"{name} {number(value)}" for name, value in sorted(run.progress.metrics.items()) if name != "world_size"]
    parts += [f"{left(run)} left"] if left(run) else []
    told = moment(run.progress.time)
    parts += [f"reported {duration((now - told).total_seconds())} ago"] if told and not run.ended else []
    return ", ".join(filter(None, parts))


def _pod_state(pod: Pod) -> str:
    return "Ending" if pod.deleting else pod.phase


def _pod_reason(pod: Pod) -> str:
    if pod.waits:
        return f"{pod.waits}: {pod.message}" if pod.message else pod.waits
    if pod.ending and pod.ending.code:
        last = pod.ending.message.splitlines()[-1:] or [""]
        return f"exit code {pod.ending.told}" + (f": {last[0]}" if last[0] else "")
    return ""
