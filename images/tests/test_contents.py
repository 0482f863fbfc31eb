"""What the runner knows of the images is what is in them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from images.builder import ROOT, contents
from images.builder.catalogue import Variant, variants
from packaging.utils import canonicalize_name

from stoker.cluster.images import has_package, packages_of
from stoker.frameworks import known_frameworks
from stoker.frameworks.torchtune import packages as torchtune
from stoker.frameworks.trl import packages as trl

# The trainers' images that can be made on a machine without a GPU.
TRAINERS = [v for v in variants() if v.image in known_frameworks() and v.accelerator == "cpu"]
_INSTALLED = """
import importlib.metadata, importlib.util, json, sys
names = sorted(d.metadata["Name"] for d in importlib.metadata.distributions())
print(json.dumps([names, {name: importlib.util.find_spec(name) is not None for name in sys.argv[1:]}]))
"""


def test_the_generated_file_is_up_to_date() -> None:
    assert contents.FILE.read_text(encoding="utf-8") == contents.document(), "run: make generate-images"


def test_every_image_of_a_trainer_is_known() -> None:
    found = [v.reference for v in variants() if v.image in known_frameworks() and packages_of(v.reference) is None]
    assert not found


@pytest.mark.parametrize("package", ["bitsandbytes", "liger_kernel"])
def test_only_the_cuda_image_has_what_needs_a_gpu(package: str) -> None:
    by_accelerator = {v.accelerator: packages_of(v.reference) for v in variants() if v.image == "trl"}
    assert {name for name, held in by_accelerator.items() if has_package(held or frozenset(), package)} == {"cuda"}


@pytest.mark.parametrize("variant", TRAINERS, ids=lambda variant: variant.target)
def test_an_images_environment_has_what_the_runner_knows_of_it(variant: Variant) -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "images" / variant.image / "venv"], check=True, stdout=subprocess.PIPE, text=True
    )
    # Either of two will do: a distribution may have another name than what it is imported by.
    optional = {"trl": trl, "torchtune": torchtune}[variant.image].ALL_PACKAGES
    either = [names.split(" or ") for names in (*optional, *known_frameworks()[variant.image].packages)]
    asked = sorted({name for names in either for name in names})
    python = f"{made.stdout.strip()}/bin/python"
    done = subprocess.run([python, "-c", _INSTALLED, *asked], check=True, stdout=subprocess.PIPE, text=True)
    names, importable = json.loads(done.stdout)
    held = packages_of(variant.reference)
    assert held is not None
    # Without PyTorch's CPU index, torch brings CUDA's libraries.
    locked = contents.distributions(ROOT / "images" / variant.image / "requirements", "cuda")
    installed = {canonicalize_name(name) for name in names}
    assert not held - installed
    assert not installed - held - {*locked}
    assert [names for names in either if any(has_package(held, name) for name in names)] == [
        names for names in either if any(importable[name] for name in names)
    ]
