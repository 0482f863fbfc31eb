"""Releases of the chart vllm-serving, as their Deployments tell of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml

from stoker.runs.run import Object, part, rows

# The chart's settings of a replica travel in an annotation of its pods; claims are mounted below this folder.
_SETTINGS = "stoker.dev/adapters.yaml"
_CLAIMS = PurePosixPath("/claims")
_INSTANCE = "app.kubernetes.io/instance"


@dataclass(frozen=True, slots=True)
class Release:
    """A release that serves a model.

    Attributes:
        namespace: where it is.
        name: the release's name.
        model: the name that requests use.
        origin: where the model comes from.
        ready: how many replicas answer.
        wanted: how many there should be.
        state: one word or two.
        reason: what hinders it; empty if nothing does.
        adapters: the adapters that it starts with.
        claim: the claim with adapters that come while it runs; empty if there is none.
        folder: their folder there.
    """

    namespace: str
    name: str
    model: str
    origin: str
    ready: int
    wanted: int
    state: str
    reason: str
    adapters: tuple[str, ...]
    claim: str
    folder: str


def release_of(deployment: Object) -> Release | None:
    """Return the release that a Deployment is of; None if it is something else's."""
    metadata, spec, status = part(deployment, "metadata"), part(deployment, "spec"), part(deployment, "status")
    told = _settings(part(part(part(spec, "template"), "metadata"), "annotations").get(_SETTINGS))
    if told is None:
        return None
    model, published = part(told, "model"), part(told, "published")
    adapters = [_text(row.get("name")) for row in rows(told, "adapters")]
    claim, folder = _published(published.get("folder"))
    wanted, ready = _count(spec.get("replicas"), 1), _count(status.get("readyReplicas"), 0)
    state, reason = _state(deployment, wanted, ready)
    return Release(
        namespace=str(metadata.get("namespace") or ""),
        name=str(part(metadata, "labels").get(_INSTANCE) or metadata.get("name") or ""),
        model=_text(model.get("name")),
        origin=_text(model.get("source")) or _text(model.get("value")),
        ready=ready,
        wanted=wanted,
        state=state,
        reason=reason,
        adapters=tuple(name for name in adapters if name),
        claim=claim,
        folder=folder,
    )


def _settings(text: Any) -> Mapping[str, Any] | None:
    try:
        found = yaml.safe_load(text) if isinstance(text, str) else None
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _text(value: Any) -> str:
    """Return a text; nothing for anything else, of which a few aliases could make gigabytes of text."""
    return value if isinstance(value, str) else ""


def _published(folder: Any) -> tuple[str, str]:
    """Return the claim of a folder in a replica, and the folder's path there; empty if it is on none."""
    path = PurePosixPath(folder) if isinstance(folder, str) else PurePosixPath()
    if not path.is_relative_to(_CLAIMS) or path == _CLAIMS or ".." in path.parts:
        return "", ""
    claim, *rest = path.relative_to(_CLAIMS).parts
    return claim, "/".join(rest)


def _state(deployment: Object, wanted: int, ready: int) -> tuple[str, str]:
    metadata, status = part(deployment, "metadata"), part(deployment, "status")
    conditions = {str(row.get("type")): row for row in rows(status, "conditions")}
    late, failing = conditions.get("Progressing", {}), conditions.get("ReplicaFailure", {})
    if failing.get("status") == "True":
        return "Failing", str(failing.get("message") or failing.get("reason") or "")
    if late.get("reason") == "ProgressDeadlineExceeded":
        return "Failing", "its newest version does not become ready"
    if not wanted:
        return "Stopped", "it is scaled to no replica"
    if _count(status.get("observedGeneration"), 0) < _count(metadata.get("generation"), 0) or (
        _count(status.get("updatedReplicas"), 0) < wanted
    ):
        return "Rolling out", ""
    return ("Ready" if ready >= wanted else "Degraded" if ready else "Starting"), ""


def _count(value: Any, otherwise: int) -> int:
    return value if type(value) is int else otherwise
