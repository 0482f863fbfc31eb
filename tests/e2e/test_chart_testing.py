"""`ct install`: each way to install a chart that can run here, upgraded in place, tested and uninstalled again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from charts.chart_testing import path, pull_request
from charts.helm import ROOT, TRAINING_RUNTIMES, VLLM_SERVING, values_files
from cluster import Cluster
from e2e.kube import Kube
from e2e.registry import Image
from e2e.serving import fixtures
from e2e.serving.server import Client

CATALOGUE = "charts/training-runtimes/ci"
WAYS = ("cpu", "namespaced", "policies", "side-by-side")
"""Values that differ in how a catalogue is installed; others differ in its runtimes, which `test_catalogue` admits."""


def ct_install(cluster: Cluster, repository: Path, *words: str) -> str:
    """Run `ct install` in a repository and return what it printed."""
    done = cluster.run(
        ["ct", "install", *words],
        check=False,
        capture_output=True,
        cwd=repository,
        env={"PATH": os.pathsep.join([path(), cluster.env["PATH"]])},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def settings(image: Image) -> str:
    """Return the words that give helm the image built here; the trainer's can do what the initializers' does."""
    names = (f"images.{name}" for name in ("trl", "fetch"))
    return " ".join(f"--set={name}.repository={image.repository},{name}.tag={image.tag}" for name in names)


@pytest.mark.full
def test_ct_install_passes_for_the_catalogue(
    cluster: Cluster, helm: Callable[..., str], catalogue: Callable[[], None], image: Image, tmp_path: Path
) -> None:
    """Full, because two releases are made and tested for each values file; those without CPUs only say so."""
    repository = pull_request(tmp_path)
    for values in values_files(TRAINING_RUNTIMES):
        if values.stem.removesuffix("-values") not in WAYS:
            (repository / values.relative_to(ROOT)).unlink()
    helm("uninstall", "catalogue", "--namespace", "stoker-system", "--wait")
    try:
        words = ["--charts", "charts/training-runtimes", "--helm-extra-set-args", settings(image)]
        printed = ct_install(cluster, repository, *words)
        for way in WAYS:
            assert f'with values file "{CATALOGUE}/{way}-values.yaml"' in printed
        assert (
            Kube(cluster, "default").items("clustertrainingruntimes", "app.kubernetes.io/name=training-runtimes") == []
        )
    finally:
        catalogue()


@pytest.mark.full
def test_ct_install_passes_for_the_server(
    cluster: Cluster,
    client: Client,
    models: str,
    serving_images: dict[str, Image],
    tmp_path: Path,
) -> None:
    """Full, because a server starts twice. Only the values for CPUs: a server without its GPUs is never ready."""
    repository = tmp_path / "repository"
    repository.mkdir()
    pull_request(repository)
    for values in values_files(VLLM_SERVING):
        if values.name != "cpu-values.yaml":
            (repository / values.relative_to(ROOT)).unlink()
    # What the cluster has in place of what the values for CPUs name.
    here = {
        "replicas": 1,
        **fixtures.image_values(serving_images),
        "model": {"claim": {"name": models}},
        "adapters": [{"name": "first", "claim": models, "path": "output"}],
    }
    found = tmp_path / "here.yaml"
    found.write_text(yaml.safe_dump(here))
    words = f"--values={fixtures.VALUES} --values={found}"
    before = deployments(client.kube)
    printed = ct_install(
        cluster, repository,
        *("--charts", "charts/vllm-serving", "--helm-extra-set-args", words, "--helm-extra-args", "--timeout 15m"),
        *("--namespace", fixtures.NAMESPACE, "--release-label", "app.kubernetes.io/instance"),
    )  # fmt: skip
    assert 'with values file "charts/vllm-serving/ci/cpu-values.yaml"' in printed
    assert deployments(client.kube) == before, "a release was left"


def deployments(kube: Kube) -> set[str]:
    """Return the names of the Deployments of all servers in a namespace."""
    return {found["metadata"]["name"] for found in kube.items("deployments", "app.kubernetes.io/name=vllm-serving")}
