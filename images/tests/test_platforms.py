"""The images can be built for the processors that the documents name."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from images.builder import ROOT, contents, development
from images.builder.catalogue import Variant, platforms, variants
from images.builder.locking import OLDEST_PYTHON, with_pips_index

from stoker.frameworks import known_frameworks

# torch-cpu.lock is of PyTorch's own index; tools.lock is of packages without compiled code.
LOCKS = [
    lock
    for name in ("stack.lock", "torch.lock", "cuda.lock")
    for lock in sorted(ROOT.glob(f"images/*/requirements/{name}"))
]
TRAINERS = [variant for variant in variants() if variant.image in known_frameworks()]


def test_the_released_images_are_for_known_platforms() -> None:
    assert set(platforms()) <= {"linux/amd64", "linux/arm64"}


@pytest.mark.parametrize("image", sorted({variant.image for variant in TRAINERS}))
def test_nccl_finds_what_it_needs_for_rdma(image: str) -> None:
    packages = (ROOT / "images" / image / "Dockerfile").read_text().split()
    assert {"libibverbs1", "ibverbs-providers", "librdmacm1"} <= {*packages}


@pytest.mark.full  # asks the package index about each package
@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: f"{lock.parents[1].name}/{lock.name}")
def test_every_locked_package_has_a_wheel_for_arm64(lock: Path, tmp_path: Path) -> None:
    # The images' base is Debian 12, whose C library is 2.36.
    done = subprocess.run(
        [development.environment() / "bin" / "uv", "pip", "install", "--dry-run", "--quiet", "--no-deps",
         "--require-hashes", "--only-binary", ":all:", "--python-version", OLDEST_PYTHON,
         "--python-platform", "aarch64-manylinux_2_36", "--target", tmp_path, "--requirement", lock],
        env=with_pips_index(dict(os.environ)), check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("variant", TRAINERS, ids=lambda variant: variant.target)
def test_an_image_holds_the_same_packages_on_both_processors(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    """`stoker validate` knows one list for both."""

    def held() -> list[str]:
        return contents.distributions(variant.folder / "requirements", variant.accelerator)

    on_amd64 = held()
    monkeypatch.setitem(contents._PLATFORM, "platform_machine", "aarch64")
    assert held() == on_amd64
