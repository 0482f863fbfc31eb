"""A packaged chart stands alone, and works below a parent chart."""

from __future__ import annotations

import base64
import gzip
import json
import tarfile
from pathlib import Path

import pytest
import yaml

from charts.helm import ROOT, TRAINING_RUNTIMES, manifests, output, template
from charts.runtimes import runtimes

SECRET_LIMIT = 2**20
"""Bytes that Kubernetes takes in a secret, which is where Helm keeps a release."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    output("helm", "package", TRAINING_RUNTIMES, "--destination", folder)
    (archive,) = folder.glob("*.tgz")
    return archive


@pytest.fixture(scope="module")
def members(package: Path) -> dict[str, bytes]:
    """Content of the package's regular files by path."""
    with tarfile.open(package) as archive:
        return {
            member.name.split("/", 1)[1]: content.read()
            for member in archive.getmembers()
            if member.isreg() and (content := archive.extractfile(member))
        }


def test_entries_and_lock_are_real_files(members: dict[str, bytes]) -> None:
    """In the repository they are links out of the chart, so that there is one copy of each."""
    sources = {f"files/runtimes/{path.name}": path for path in (ROOT / "runtimes").glob("*.yaml")}
    sources["files/images.lock.yaml"] = ROOT / "images" / "images.lock.yaml"
    files = TRAINING_RUNTIMES / "files"
    own = [files / "runner.json", files / "dashboard.json", *(files / "test").iterdir()]
    sources |= {path.relative_to(TRAINING_RUNTIMES).as_posix(): path for path in own}
    assert {name for name in members if name.startswith("files/")} == sources.keys()
    assert all(members[name] == path.read_bytes() for name, path in sources.items())


def test_what_only_developers_need_is_left_out(members: dict[str, bytes]) -> None:
    packed = {".helmignore", "Chart.yaml", "README.md", "values.yaml", "values.schema.json"}
    assert {name.split("/")[0] for name in members} == packed | {"charts", "files", "templates"}


def test_it_is_far_from_the_size_limit_of_a_release(package: Path) -> None:
    assert package.stat().st_size < SECRET_LIMIT / 10


def test_it_renders_the_same_as_the_folder(package: Path, tmp_path: Path) -> None:
    with tarfile.open(package) as archive:
        archive.extractall(tmp_path, filter="data")
    values = TRAINING_RUNTIMES / "ci" / "cpu-values.yaml"
    assert template(tmp_path / TRAINING_RUNTIMES.name, [values]) == template(TRAINING_RUNTIMES, [values])


@pytest.mark.parametrize("enabled", [True, False])
def test_it_works_below_a_parent_chart(package: Path, tmp_path: Path, enabled: bool) -> None:
    parent = tmp_path / "platform"
    (parent / "charts").mkdir(parents=True)
    (parent / "charts" / package.name).write_bytes(package.read_bytes())
    name = TRAINING_RUNTIMES.name
    version = yaml.safe_load((TRAINING_RUNTIMES / "Chart.yaml").read_text())["version"]
    dependency = {"name": name, "version": version, "condition": f"{name}.enabled"}
    (parent / "Chart.yaml").write_text(
        yaml.safe_dump({"apiVersion": "v2", "name": "platform", "version": "0.1.0", "dependencies": [dependency]})
    )
    (parent / "values.yaml").write_text(
        yaml.safe_dump(
            {"global": {"storageClass": "fast"}, name: {"enabled": enabled, "accelerator": "cpu", "skipApiCheck": True}}
        )
    )
    rendered = runtimes(manifests(output("helm", "template", "platform", parent)))
    entries = [yaml.safe_load(path.read_text()) for path in (ROOT / "runtimes").iterdir()]
    fitting = [entry["name"] for entry in entries if "cpu" in entry.get("accelerators", ["cpu"])]
    assert sorted(item["metadata"]["name"] for item in rendered) == (sorted(fitting) if enabled else [])


def test_a_parent_chart_leaves_the_user_to_the_cluster(package: Path, tmp_path: Path) -> None:
    """By an empty string: Helm 4 overlooks a null in a parent's values.yaml (helm/helm#32132)."""
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / package.name).write_bytes(package.read_bytes())
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: platform, version: 0.1.0}")
    own = {"skipApiCheck": True, "podSecurityContext": {"runAsUser": ""}}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({TRAINING_RUNTIMES.name: own}))
    rendered = output("helm", "template", "platform", tmp_path)
    assert "runAsGroup" in rendered
    assert "runAsUser" not in rendered


def test_a_release_of_the_whole_catalogue_fits_into_its_secret(package: Path) -> None:
    """Helm keeps chart, values and manifest together, zipped and in base64, in one secret."""
    rendered = template(TRAINING_RUNTIMES, settings=['names.style="both"', "policies.enabled=true"])
    release = json.dumps({"manifest": rendered, "chart": base64.b64encode(package.read_bytes()).decode()})
    # Twice base64: by Helm, and in the secret's own data.
    assert len(base64.b64encode(base64.b64encode(gzip.compress(release.encode())))) < SECRET_LIMIT / 4
