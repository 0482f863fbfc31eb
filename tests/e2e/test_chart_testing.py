"""`ct install`: each way to install the catalogue, upgraded in place, tested and uninstalled again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from charts.chart_testing import path, pull_request
from charts.helm import TRAINING_RUNTIMES, values_files
from cluster import Cluster
from e2e.image import Image
from e2e.kube import Kube


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
    helm("uninstall", "catalogue", "--namespace", "stoker-system", "--wait")
    try:
        done = cluster.run(
            ["ct", "install", "--charts", "charts/training-runtimes", "--helm-extra-set-args", settings(image)],
            check=False,
            capture_output=True,
            cwd=repository,
            env={"PATH": os.pathsep.join([path(), cluster.env["PATH"]])},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for values in values_files(TRAINING_RUNTIMES):
            assert f'with values file "charts/training-runtimes/ci/{values.name}"' in done.stdout
        assert (
            Kube(cluster, "default").items("clustertrainingruntimes", "app.kubernetes.io/name=training-runtimes") == []
        )
    finally:
        catalogue()
