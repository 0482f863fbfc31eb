"""Where an artifact comes from: an in-toto statement of SLSA's kind, the same bytes at every build of a commit."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

from release import ROOT, commit
from release.errors import DATA, ReleaseError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from release.artifacts import Artifact

REPOSITORY = "https://github.com/stoker-dev/stoker"
GUIDE = f"{REPOSITORY}/blob/main/docs/guides/release.md"
STATEMENT, PREDICATE = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
MEDIA_TYPE = "application/vnd.in-toto+json"


def statement(artifact: Artifact, sources: Iterable[Path], environment: Mapping[str, str] = os.environ) -> bytes:
    """Return the statement about an artifact that was built from this checkout.

    It names no registry and no time, so that it is the same wherever the artifact is built and pushed.

    Args:
        artifact: what was built, with its digest.
        sources: the locks that decided what else is in it.
        environment: the variables of GitHub's workflows name the builder.

    Raises:
        ReleaseError: the artifact has no digest.
    """
    if artifact.digest is None:
        raise ReleaseError(DATA, f"{artifact.reference} has no digest: only what was pushed has one")
    name = f"{artifact.name}:{artifact.tag}"
    algorithm, _, value = artifact.digest.partition(":")
    content: dict[str, Any] = {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {algorithm: value}}],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": f"{GUIDE}#make-a-release",
                "externalParameters": {"artifact": name},
                # A commit says nothing of what was changed after it.
                "internalParameters": {"modified": commit.is_modified()},
                "resolvedDependencies": [
                    {"uri": f"git+{REPOSITORY}", "digest": {"gitCommit": commit.revision()}},
                    *({"name": _name(path), "digest": {"sha256": _sha256(path)}} for path in sources),
                ],
            },
            "runDetails": {"builder": {"id": builder(environment)}},
        },
    }
    return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"


def builder(environment: Mapping[str, str]) -> str:
    """Return who builds: the workflow of GitHub's that this runs in, else somebody who tries a release out."""
    workflow = environment.get("GITHUB_WORKFLOW_REF")
    return f"https://github.com/{workflow}" if workflow else f"{GUIDE}#try-it-out"


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
