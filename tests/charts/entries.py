"""The catalogue's entries with a model of their own, as the runner sees their pods."""

from __future__ import annotations

import re
from typing import Any

import yaml
from runner.tests.plan.models import PUBLISHED

from charts.helm import ROOT
from stoker.plan.facts import Facts
from stoker.plan.inputs import ModelFolder
from stoker.plan.model_shape import shape_of

ENTRIES = {
    entry["name"]: entry
    for entry in (yaml.safe_load(path.read_text()) for path in sorted((ROOT / "runtimes").glob("trl-*.yaml")))
    if "model" in entry
}


def published(model: str) -> dict[str, Any]:
    """Return the configuration of a model on the Hub."""
    return PUBLISHED[re.sub(r"(-Instruct|-it|-2507)+$", "", model.rpartition("/")[2])][0]


def sizes_of(entry: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the resources that an entry sets on devices of a kind: beside any GPU those for NVIDIA's."""
    sizes: dict[str, Any] = entry.get("sizes", {})
    return sizes.get(kind) or (sizes.get("nvidia", {}) if kind in ("amd", "intel") else {})


def facts_of(entry: dict[str, Any], kind: str) -> Facts:
    """Return the facts of a pod of the entry on devices of a kind."""
    devices = sizes_of(entry, kind).get("devices", 1)
    env = {
        "STOKER_ACCELERATOR": "nvidia",
        "STOKER_METHOD": entry["method"],
        "STOKER_RUN_ID": "run",
        "STOKER_SHARDING": entry.get("sharding", ""),
        "PET_NPROC_PER_NODE": str(devices),
        **{f"STOKER_ARG_{flag.upper()}": value for flag, value in entry["args"].items()},
    }
    return Facts(env, tuple(f"nvidia{index}" for index in range(devices)))


def model_of(entry: dict[str, Any]) -> ModelFolder:
    """Return the entry's model in the workspace."""
    return ModelFolder("/workspace/model", None, None, shape_of(published(entry["model"])))
