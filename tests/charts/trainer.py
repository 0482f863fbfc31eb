"""Schemas of Kubeflow Trainer's objects, made from the CRDs of its releases: for kubeconform, and for the runner."""

from __future__ import annotations

import re
from typing import Any

import yaml

from charts import crds

VERSIONS = ("v2.2.1", "v2.3.0")
"""The newest release of each minor version that the runtimes are made for."""

KINDS = ("clustertrainingruntimes", "trainingruntimes", "trainjobs")
CRDS = "manifests/base/crds/trainer.kubeflow.org_{}.yaml"
CHOICES = re.compile(r"self in \[(.*)\]$")
KEPT = (
    *("type", "format", "properties", "additionalProperties", "items", "required", "enum", "pattern", "minimum"),
    *("minLength", "maxLength", "maxItems", "x-kubernetes-int-or-string", "x-kubernetes-list-map-keys"),
)
"""What of a schema the runner reads (stoker/shape.py)."""


def schema_location(version: str) -> str:
    """Return kubeconform's -schema-location for a release of Trainer; see `crds.schema_location`."""
    return crds.schema_location(_release(version))


def trainjob_schema() -> dict[str, Any]:
    """Return the shape of a TrainJob as the newest release has it, for `stoker validate`: without texts and status."""
    path = crds.source(_release(VERSIONS[-1])) / CRDS.format("trainjobs")
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


def _release(version: str) -> crds.Release:
    files = tuple(CRDS.format(kind) for kind in KINDS)
    return crds.Release("trainer", "github.com/kubeflow/trainer/v2", version, files)
