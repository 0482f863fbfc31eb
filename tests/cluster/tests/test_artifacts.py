"""What is built from which pins, and the images made of it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from cluster import artifacts, gobuild, images, oci
from cluster.artifacts import GoModule
from cluster.errors import ClusterError, UsageError


def blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")


def document(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(file.read_text())
    return loaded


def test_every_go_folder_has_its_pins() -> None:
    for go_mod in artifacts.GO.glob("*/go.mod"):
        assert go_mod.read_text().startswith(f"module {go_mod.parent.name}\n")


def test_versions_come_from_go_mod() -> None:
    assert artifacts.KUBERNETES.version.startswith("v1.34.")
    assert f"gitVersion={artifacts.KUBERNETES.version}" in artifacts.KUBERNETES.linker_flags
    assert "gitMinor=34" in artifacts.KUBERNETES.linker_flags
    assert artifacts.PAUSE.linker_flags == "-s -w"


def test_a_missing_pin_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module x\n")
    with pytest.raises(ClusterError, match=r"does not require k8s\.io/kubernetes"):
        artifacts.pinned_version(tmp_path / "go.mod", "k8s.io/kubernetes")


def test_the_key_follows_the_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "GO", tmp_path)
    module = GoModule("x")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "go.mod").write_text("module x\n")
    before = module.key
    assert module.key == before
    (tmp_path / "x" / "go.sum").write_text("")
    assert module.key != before


def test_a_chart_loses_its_dependencies_and_nothing_else() -> None:
    chart = "name: a\ndependencies:\n- name: b\n  version: 1\n\n- name: c\n\nkeywords:\n- k\n"
    assert gobuild.without_dependencies(chart) == "name: a\n\nkeywords:\n- k\n"
    assert gobuild.without_dependencies("name: a\n") == "name: a\n"


def test_a_build_counts_downloads_and_packages_and_keeps_errors() -> None:
    work = gobuild.Work()
    work.follow(
        io.StringIO("go: downloading k8s.io/api v0.34.1\nk8s.io/api/core/v1\nfmt\n# x\n./main.go:3: undefined: y\n")
    )
    assert str(work) == "1 modules downloaded, 2 packages compiled"
    assert work.last_words == "# x\n./main.go:3: undefined: y"


def test_an_image_layout_is_whole_and_reproducible(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    for name in ("one", "two"):
        oci.write_layout(tmp_path / name, {"/bin/program": program}, ["/bin/program"])
    one = tmp_path / "one"
    assert (one / "index.json").read_bytes() == (tmp_path / "two" / "index.json").read_bytes()
    for file in (one / "blobs" / "sha256").iterdir():
        assert hashlib.sha256(file.read_bytes()).hexdigest() == file.name

    manifest = document(blob(one, document(one / "index.json")["manifests"][0]["digest"]))
    config = document(blob(one, manifest["config"]["digest"]))
    assert config["config"]["Entrypoint"] == ["/bin/program"]
    assert config["config"]["User"] == "65532:65532"
    assert config["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]
    with tarfile.open(blob(one, manifest["layers"][0]["digest"])) as tar:
        assert [(entry.name, entry.mode, entry.uid) for entry in tar] == [("bin/program", 0o755, 0)]


def layout(folder: Path, manifests: int) -> Path:
    (folder / "index.json").write_text(json.dumps({"manifests": [{}] * manifests}))
    return folder


@pytest.mark.parametrize(("manifests", "flags"), [(1, []), (2, ["--index"])])
def test_push_prints_the_reference_with_its_digest(tmp_path: Path, manifests: int, flags: list[str]) -> None:
    seen = []

    def run(argv: Any, stdin: str = "") -> str:
        seen.append(list(argv))
        return "localhost:5000/trainer@sha256:abc\n"

    reference = images.push(layout(tmp_path, manifests), "trainer:1.0", "localhost:5000", run)
    assert reference == "localhost:5000/trainer:1.0@sha256:abc"
    assert seen == [["crane", "push", "--insecure", *flags, str(tmp_path), "localhost:5000/trainer:1.0"]]


@pytest.mark.parametrize("name", ["trainer", ":1.0", "host:5000/trainer"])
def test_push_wants_a_name_and_a_tag(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="is not NAME:TAG"):
        images.push(layout(tmp_path, 1), name, "localhost:5000", lambda argv, stdin="": "")


def test_push_wants_an_oci_layout(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not an OCI layout"):
        images.push(tmp_path, "trainer:1.0", "localhost:5000", lambda argv, stdin="": "")


def test_programs_that_share_a_folder_share_its_pins() -> None:
    shim = artifacts.CONTAINERD_SHIM
    assert shim.source == artifacts.CONTAINERD.source
    assert shim.version == artifacts.CONTAINERD.version
    assert shim.key != artifacts.CONTAINERD.key
