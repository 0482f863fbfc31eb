"""The evaluations of a result: a file beside the manifest that `stoker evaluate` writes, and the report reads.

schemas/evaluation-v1.json describes it. The newest evaluation is the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.contract.files import read_json, write_json

EVALUATION = "evaluation.json"
EVALUATION_VERSION = 1
# A file that grows without end helps nobody.
_MOST = 200


def read_evaluations(folder: Path) -> list[dict[str, Any]]:
    """Return the evaluations in a folder; anybody may have written there, so what is none is left out."""
    found = read_json(folder / EVALUATION)
    if not isinstance(found, dict) or found.get("schemaVersion") != EVALUATION_VERSION:
        return []
    entries = found.get("evaluations")
    return [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []


def add_evaluation(folder: Path, evaluation: Mapping[str, Any]) -> None:
    """Add an evaluation to those in a folder.

    Raises:
        OSError: the folder cannot be written to.
    """
    kept = [*read_evaluations(folder), dict(evaluation)][-_MOST:]
    write_json(folder / EVALUATION, {"schemaVersion": EVALUATION_VERSION, "evaluations": kept})
