"""Schemas of Kubeflow Trainer's objects, made from the CRDs of its releases: for kubeconform, and for the runner."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml
from images.builder import cache

VERSIONS = ("v2.2.1", "v2.3.0")
"""The newest release of each minor version that the runtimes are made for."""

MODULE = "github.com/kubeflow/trainer/v2"
CRDS = "manifests/base/crds/trainer.kubeflow.org_*.yaml"
CHOICES = re.compile(r"self in \[(.*)\]$")
KEPT = (
    *("type", "format", "properties", "additionalProperties", "items", "required", "enum", "pattern", "minimum"),
    *("minLength", "maxLength", "maxItems", "x-kubernetes-int-or-string", "x-kubernetes-list-map-keys"),
)
"""What of a schema the runner reads (stoker/shape.py)."""
LOCATION = "{{ .Group }}/{{ .ResourceKind }}_{{ .ResourceAPIVersion }}.json"
"""Where a schema lies below the folder of its release, as kubeconform's -schema-location takes it."""


def schema_location(version: str) -> str:
    """Return kubeconform's -schema-location for a release of Trainer, making the schemas first where they are missing.

    Raises:
        RuntimeError: Go could not download the module; the message holds what it said.
    """
    folder = cache.root() / "schemas" / f"trainer-{version}-{cache.digest(files=[Path(__file__)])}"
    cache.entry(folder, "trainer", lambda empty: _write(version, empty), keep=len(VERSIONS))
    return f"{folder}/{LOCATION}"


def _write(version: str, folder: Path) -> None:
    for path in sorted(_source(version).glob(CRDS)):
        crd = yaml.load(path.read_bytes(), yaml.CSafeLoader)["spec"]
        for served in crd["versions"]:
            kind = crd["names"]["kind"].lower()
            target = folder / crd["group"] / f"{kind}_{served['name']}.json"
            target.parent.mkdir(exist_ok=True)
            target.write_text(json.dumps(strict(served["schema"]["openAPIV3Schema"])))


def trainjob_schema() -> dict[str, Any]:
    """Return the shape of a TrainJob as the newest release has it, for `stoker validate`: without texts and status."""
    (path,) = _source(VERSIONS[-1]).glob("manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml")
    crd = yaml.load(path.read_bytes(), yaml.CSafeLoader)["spec"]
    schema: dict[str, Any] = shape(crd["versions"][0]["schema"]["openAPIV3Schema"])
    del schema["properties"]["status"]
    return schema


def shape(schema: Any) -> Any:
    """Return what a structural schema says of the shape of values, rules in CEL only as far as they list choices."""
    if isinstance(schema, list):
        return [shape(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    rules = [CHOICES.match(rule["rule"]) for rule in schema.get("x-kubernetes-validations", ())]
    choices = [re.findall(r"'([^']*)'", found[1]) for found in rules if found]
    kept = {key: shape(value) for key, value in schema.items() if key in KEPT and key != "properties"}
    if "properties" in schema:
        kept["properties"] = {name: shape(value) for name, value in schema["properties"].items()}
    return {**kept, **({"enum": choices[0]} if choices else {})}


def _source(version: str) -> Path:
    """Return the source of a release, which Go downloads into its module cache and checks against its sum database."""
    done = subprocess.run(
        ["go", "mod", "download", "-json", f"{MODULE}@{version}"], check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"go mod download {MODULE}@{version}: {done.stdout}{done.stderr}")
    return Path(json.loads(done.stdout)["Dir"])


def strict(schema: Any) -> Any:
    """Return an OpenAPI schema of a CRD as a JSON schema that refuses unknown fields.

    The API server prunes such fields in silence unless a client asks it to refuse them.
    """
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: strict(value) for key, value in schema.items()}
    if "properties" in result:
        result.setdefault("additionalProperties", False)
    return result
