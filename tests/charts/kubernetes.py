"""JSON schemas of Kubernetes' own objects, from the package kubernetes-validate."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from typing import Any

import kubernetes_validate
from jsonschema.validators import Draft202012Validator
from referencing import Registry, Resource


@cache
def schema(kind: str, api_version: str, release: str) -> Draft202012Validator:
    """Return what checks objects of a kind, unknown fields included.

    The package's own `validate` reads a release's definitions again for each object, which takes most of its time.

    Args:
        kind: such as Deployment.
        api_version: such as apps/v1.
        release: of Kubernetes, such as 1.36.

    Raises:
        FileNotFoundError: the release does not know the kind.
    """
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    return Draft202012Validator(_read(release, f"{kind.lower()}-{group}.json"), registry=_definitions(release))


@cache
def _definitions(release: str) -> Registry[Any]:
    found: Registry[Any] = Resource.from_contents(_read(release, "_definitions.json")) @ Registry()
    return found.crawl()


def _read(release: str, name: str) -> Any:
    folder = resources.files(kubernetes_validate) / "kubernetes-json-schema" / f"v{release}.0-local-strict"
    return json.loads((folder / name).read_text(encoding="utf-8"))
