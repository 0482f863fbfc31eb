"""A release, from the image built here to a TrainJob that runs from a mirror, by digest all the way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from release import tools
from release.artifacts import chart, read_references

from builders import trainjob
from cluster import Cluster
from e2e.conftest import ROOT
from e2e.kube import Kube
from e2e.registry import Image
from e2e.trainjobs import Run

CHART = chart("training-runtimes")
RELEASE = "mirrored"
NAMESPACE = "stoker-mirrored"

Release = Callable[..., str]


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Release:
    """Runs `python -m release`, as the make targets do, where the cluster's registry can be reached."""

    def run(*words: str | Path) -> str:
        command = [sys.executable, "-m", "release", *map(str, words), "--plain-http"]
        done = cluster.run(command, check=False, capture_output=True, cwd=ROOT)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return str(done.stdout)

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the lists of what was pushed go, and the lock with its digests."""
    return tmp_path_factory.mktemp("release")


@pytest.fixture(scope="module")
def published(cluster: Cluster, image: Image, release: Release, folder: Path) -> list[Path]:
    """The lists of images and charts that were pushed to `REGISTRY/stoker-dev`."""
    images, charts, lock = (folder / name for name in ("images.txt", "charts.txt", "images.lock.yaml"))
    to = ["--registry", f"{cluster.registry}/stoker-dev"]
    release("images", "trl-cpu", "--builder", "buildah", *to, "--out", images)
    digests = [sys.executable, "-m", "release", "digests", str(images), "--overlay", str(lock)]
    subprocess.run(digests, check=True, cwd=ROOT)
    release("charts", CHART.name, *to, "--lock", lock, "--out", charts)
    return [images, charts]


@pytest.fixture(scope="module")
def mirror(cluster: Cluster, published: list[Path], release: Release, folder: Path) -> str:
    """A mirror to which all was copied that the mirror list names: registry and path."""
    prefix = f"{cluster.registry}/mirror"
    source = ["--registry", f"{cluster.registry}/stoker-dev", "--lock", folder / "images.lock.yaml", "--resolve"]
    commands = release("mirror-list", *source, "--chart", CHART.name, "--prefix", prefix)
    assert len(commands.splitlines()) == 2
    cluster.run(["sh", "-ec", commands], capture_output=True)
    return prefix


@pytest.fixture
def runtime(cluster: Cluster, mirror: str, published: list[Path], helm: Callable[..., str]) -> Iterator[str]:
    """The name of a runtime of the chart, installed from the mirror by its digest, beside the tests' catalogue."""
    (pushed,) = read_references(published[1].read_text())
    reference = f"oci://{mirror}/stoker-dev/charts/{CHART.name}@{pushed.digest}"
    version = yaml.safe_load((CHART.folder / "Chart.yaml").read_text())["appVersion"].rpartition(".")[0]
    helm(
        "upgrade", "--install", RELEASE, reference, "--plain-http", "--values", str(ROOT / "tests/e2e/values.yaml"),
        "--set", f"global.imageRegistry={mirror}", "--set", "names.style=versioned",
        # What was released here is the trainer's image alone; the test's pod has another.
        "--set", "test.enabled=false",
        "--namespace", NAMESPACE, "--create-namespace", "--wait",
    )  # fmt: skip
    yield f"trl-distributed-{version}"
    helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found")
    Kube(cluster, "default").delete("namespace", NAMESPACE, wait=False)


def test_a_trainjob_runs_from_the_mirror_by_digest(
    runtime: str, mirror: str, published: list[Path], kube: Kube
) -> None:
    (image,) = read_references(published[0].read_text())
    run = Run(kube, "mirrored")
    run.delete()
    kube.create(trainjob(run.name, runtime=runtime, numNodes=1, command=["stoker", "--version"]))
    try:
        run.wait_complete()
        (pod,) = run.pods()
        (status,) = pod["status"]["containerStatuses"]
        assert pod["spec"]["containers"][0]["image"] == f"{mirror}/stoker-dev/trl:{image.tag}@{image.digest}"
        assert status["imageID"].endswith(f"@{image.digest}")
    finally:
        run.delete()


@pytest.mark.full
def test_what_was_pushed_is_signed_and_verified_in_the_clusters_registry(
    published: list[Path], release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full, because cosign takes minutes to build."""
    monkeypatch.setenv("COSIGN_PASSWORD", "secret")
    subprocess.run([tools.path("cosign"), "generate-key-pair"], cwd=tmp_path, check=True, capture_output=True)
    with pytest.raises(AssertionError, match="no signatures found"):
        release("verify", *published, "--key", tmp_path / "cosign.pub")
    release("sign", *published, "--key", tmp_path / "cosign.key")
    release("verify", *published, "--key", tmp_path / "cosign.pub")
