"""Entries of the catalogue: one runtime to a file, data only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from charts.helm import ROOT, TRAINING_RUNTIMES

SCHEMAS = TRAINING_RUNTIMES / "schema"


def shape() -> jsonschema.Draft202012Validator:
    """Return the validator for an entry, whose parts an entry shares with its overrides in the chart's values."""
    definitions = DRAFT202012.create_resource(yaml.safe_load((SCHEMAS / "definitions.yaml").read_text()))
    registry: Registry[Any] = Registry().with_resource("definitions.yaml", definitions)
    return jsonschema.Draft202012Validator(yaml.safe_load((SCHEMAS / "entry.yaml").read_text()), registry=registry)


@pytest.fixture(params=sorted((ROOT / "runtimes").iterdir()), ids=lambda path: str(path.name))
def path(request: pytest.FixtureRequest) -> Path:
    chosen: Path = request.param
    return chosen


def test_an_entry_has_the_shape_of_one(path: Path) -> None:
    problems = [
        f"{error.json_path}: {error.message}" for error in shape().iter_errors(yaml.safe_load(path.read_text()))
    ]
    assert problems == []


def test_an_entry_lies_in_a_file_of_its_name(path: Path) -> None:
    assert path.name == f"{yaml.safe_load(path.read_text())['name']}.yaml"


def test_an_entrys_image_is_in_the_lock(path: Path) -> None:
    lock = yaml.safe_load((ROOT / "images" / "images.lock.yaml").read_text())
    assert yaml.safe_load(path.read_text())["image"] in lock["images"]
