"""Writes what was measured beside the manifest, and into the report."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from stoker.contract.evaluation import EVALUATION, add_evaluation
from stoker.contract.manifest import describe_again, leave_out
from stoker.contract.metrics import REPORT, plain
from stoker.contract.words import say, timestamp
from stoker.report.write import write_report
from stoker.results.folder import Result

_PACKAGES = ("torch", "transformers", "peft", "trl", "lm-eval")


def record(result: Result, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Add an evaluation to those of a result, and draw its report again.

    Args:
        result: the result.
        measured: the fields of the evaluation, but its time and versions.

    Returns:
        the evaluation.

    Raises:
        OSError: the folder cannot be written to.
    """
    evaluation = {name: _plain(value) for name, value in measured.items()}
    evaluation |= {"time": timestamp(), "versions": _versions()}
    # While they change, the manifest does not list them: one that dies here leaves a result that can be used.
    leave_out(result.path, (EVALUATION, REPORT))
    add_evaluation(result.path, evaluation)
    try:
        write_report(result.path, result.manifest)
    except (OSError, ValueError) as error:
        say(f"warning: {REPORT} could not be written ({error}); {EVALUATION} has the numbers")
    # The manifest lists both files with their digests, which servers compare.
    describe_again(result.path, (EVALUATION, REPORT))
    return evaluation


def _plain(value: Any) -> Any:
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, Mapping) else plain(value)


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
