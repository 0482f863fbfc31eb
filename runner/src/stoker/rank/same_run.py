"""Compares a run with the one that left a checkpoint or a finished output: what refuses it, and what is only said.

A run is told by its fingerprint and by its fixed settings. A fingerprint has what was set, so what it lacks was not
set. Of the fixed settings a runner records every one that it knows, so what the record lacks, nobody can compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.secrets import hidden

# What the name of an input's content begins with, of which a digest is recorded.
CONTENT = "content of the "
# How many names a notice lists.
_NAMED = 5


def refuse_other_run(
    what: str,
    theirs: Mapping[str, Any],
    ours: Mapping[str, Any],
    sources: Mapping[str, str] | None = None,
) -> None:
    """Raise if two records of runs differ.

    Args:
        what: what the other run left, as the message calls it.
        theirs: that run's record, with `fingerprint` and, unless an older runner wrote it, `fixed`.
        ours: the record of the run about to start.
        sources: setting → the layer that set it now.

    Raises:
        RunError: they differ; names each difference (78).
    """
    fingerprint, fixed = _part(ours, "fingerprint"), _part(ours, "fixed")
    recorded = {name: value for name, value in _part(theirs, "fixed").items() if name in fixed}
    found = [
        *_differences(_part(theirs, "fingerprint"), fingerprint),
        *_differences(recorded, {name: fixed[name] for name in recorded}),
    ]
    if found:
        told = "; ".join(f"{_said(*each)}{_source(each[0], sources or {})}" for each in found)
        values = [name for name, _, _ in found if not name.startswith(CONTENT)]
        ways = [f"write the former {'value' if len(values) == 1 else 'values'}"] if values else []
        if len(values) < len(found):
            ways.append("let the initializer fetch what it fetched then, such as hf://OWNER/NAME@REVISION")
        raise RunError(
            ExitCode.CONFIG,
            f"{what} belongs to another run: {told}. To resume it, {' and '.join(ways)}; for the new, give this run "
            "its own workspace or output_dir, or set STOKER_RESUME=never to start anew",
        )


def notices(name: str, theirs: Mapping[str, Any], ours: Mapping[str, Any], free: Sequence[str]) -> Iterator[str]:
    """Yield what a user should know about a resume that is not refused.

    Args:
        name: the checkpoint's name.
        theirs: its record.
        ours: the record of the run about to start.
        free: the names, or patterns of names, of settings whose change is nothing to tell.
    """
    fixed, recorded, settings = _part(ours, "fixed"), _part(theirs, "fixed"), _part(ours, "settings")
    unknown = sorted({*fixed} - {*recorded}, key=lambda setting: (setting not in settings, setting))
    if unknown:
        more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        yield (
            f"{name} is from an older Stoker, which did not record {', '.join(unknown[:_NAMED])}{more}: they are not "
            "compared, and must be what they were"
        )
    former = _part(theirs, "settings")
    compared = {*fixed, *_leaves(_part(ours, "fingerprint"))}
    changed = [
        _said(*each)
        for each in (_differences(former, settings) if former else ())
        if each[0] not in compared and not any(fnmatchcase(each[0], pattern) for pattern in free)
    ]
    if changed:
        yield f"other settings than those of {name}: {'; '.join(changed)}"


def changed_settings(before: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Return the settings of a finished run that differ now, such as `learning_rate was 2e-4, now 1e-4`."""
    return [_said(*each) for each in _differences(before, settings)]


def _part(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = record.get(name)
    # An older runner wrote secrets into fingerprints.
    return hidden(part) if isinstance(part, Mapping) else {}


def _differences(
    theirs: Mapping[str, Any], ours: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    for key in sorted({*theirs, *ours}):
        old, new = _plain(theirs.get(key)), _plain(ours.get(key))
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key}", old, new


def _plain(value: Any) -> Any:
    # JSON has no tuples: a tuple comes back as a list.
    return list(value) if isinstance(value, tuple) else value


def _said(name: str, old: Any, new: Any) -> str:
    return f"{name} was {old}, now {new}"


def _source(name: str, sources: Mapping[str, str]) -> str:
    # Parts of a fingerprint stand before a setting's name, which may have dots of its own.
    source = sources.get(name) or sources.get(name.partition(".")[2])
    return f" ({source})" if source else ""


def _leaves(record: Mapping[str, Any]) -> Iterator[str]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        else:
            yield key
