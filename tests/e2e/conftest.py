"""What the end-to-end tests stand on: a cluster, our image and catalogue in it, a base model and data on a claim.

Everything comes as a user would get it: the image and the chart out of the cluster's registry, the catalogue by
`helm install oci://…`. A cluster that was up before stays up; one that was started here is stopped at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from runner.tests.integration.environments import environment, made_once

from cluster import Cluster
from cluster.testing import live
from e2e.kube import Kube, restricted_namespace
from e2e.registry import Image, push_chart, push_image
from e2e.rollouts import install_catalogue, sampler_runtime, submit_sums, sums, thorough
from e2e.serving.fixtures import (
    client,
    install,
    models,
    serving_chart,
    serving_images,
    serving_kube,
    serving_reader,
)
from e2e.strikers import strikers
from e2e.trainjobs import INPUTS_CLAIM, Reader, Run
from e2e.tune import tune_image, tune_inputs, tune_runtimes

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/sft-lora"
# Fixtures from elsewhere.
__all__ = ["client", "install", "live", "models", "serving_chart", "serving_images", "serving_kube", "serving_reader"]
__all__ += [
    "install_catalogue",
    "sampler_runtime",
    "strikers",
    "submit_sums",
    "sums",
    "thorough",
    "tune_image",
    "tune_inputs",
    "tune_runtimes",
]

NAMESPACE = "stoker-e2e"
RELEASE = "catalogue"


def asked_for(request: pytest.FixtureRequest, test: Callable[..., None], parameter: str) -> list[Any]:
    """Return the values of a parameter of the tests that run, for a fixture that prepares all of them at once."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    return [item.callspec.params[parameter] for item in items if item.originalname == test.__name__]


@pytest.fixture(scope="package")
def cluster(live: Cluster) -> Cluster:
    """A cluster that is up and current."""
    return live


@pytest.fixture(scope="package")
def image(cluster: Cluster) -> Image:
    """The CPU trainer image."""
    return push_image(cluster, "trl", "--accelerator", "cpu")


@pytest.fixture(scope="package")
def fetch_image(cluster: Cluster) -> Image:
    """The initializers' image, which serving's sidecar is of too."""
    return push_image(cluster, "fetch")


@pytest.fixture(scope="package")
def lab_image(cluster: Cluster) -> Image:
    """The image for notebooks and Jobs, for CPUs."""
    return push_image(cluster, "lab", "--accelerator", "cpu")


@pytest.fixture(scope="package")
def helm(cluster: Cluster) -> Callable[..., str]:
    """Runs helm against the cluster and returns what it printed."""

    def run(*argv: str) -> str:
        done = cluster.run(["helm", *argv], check=False, capture_output=True)
        assert done.returncode == 0, f"helm {' '.join(argv)}\n{done.stdout}{done.stderr}"
        return str(done.stdout)

    return run


@pytest.fixture(scope="package")
def chart(cluster: Cluster, helm: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The chart, packaged and pushed: the words by which helm finds it in the registry."""
    return push_chart(cluster, helm, "training-runtimes", tmp_path_factory.mktemp("chart"))


@pytest.fixture(scope="package")
def catalogue_values(image: Image, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The words that give helm the tests' values."""
    path = tmp_path_factory.mktemp("values") / "image.yaml"
    # The trainer image can do what the small one for initializers does: one image less to build and to copy.
    path.write_text(yaml.safe_dump({"images": {"trl": image.values, "fetch": image.values}}))
    return ["--values", str(Path(__file__).parent / "values.yaml"), "--values", str(path)]


@pytest.fixture(scope="package")
def catalogue(
    cluster: Cluster, helm: Callable[..., str], chart: list[str], catalogue_values: list[str]
) -> Iterator[Callable[[], None]]:
    """The installed catalogue; calling it installs it again after a test has removed it."""
    system = Kube(cluster, "default")

    def install() -> None:
        helm(
            "upgrade", "--install", RELEASE, *chart, *catalogue_values, "--namespace", "stoker-system",
            "--create-namespace", "--wait",
        )  # fmt: skip

    install()
    yield install
    helm("uninstall", RELEASE, "--namespace", "stoker-system", "--ignore-not-found")
    system.delete("namespace", "stoker-system", wait=False)


@pytest.fixture(scope="package")
def kube(cluster: Cluster) -> Iterator[Kube]:
    """The tests' namespace, which enforces the restricted pod security standard."""
    with restricted_namespace(cluster, NAMESPACE) as found:
        yield found


@pytest.fixture(scope="package")
def reader(kube: Kube, image: Image) -> Reader:
    """Reads files of claims."""
    return Reader(kube, image.reference)


@pytest.fixture(scope="package")
def inputs(kube: Kube, reader: Reader) -> str:
    """The claim with the example's base model and data."""
    data = EXAMPLE / "data/elements.jsonl"
    made = made_once("trl", environment("trl"), EXAMPLE / "base_model.py", "--data", data, "--output")
    kube.create_claim(INPUTS_CLAIM)
    reader.copy(made, INPUTS_CLAIM)
    for path in (EXAMPLE / "ask.py", data):
        reader.write(INPUTS_CLAIM, path.name, path.read_text())
    return INPUTS_CLAIM


@pytest.fixture(scope="module")
def submit_together(
    kube: Kube, catalogue: Callable[[], None], inputs: str
) -> Iterator[Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Run]]]:
    """Submits TrainJobs at once, deleted when the module ends: while one waits for its pods, another computes."""
    runs: dict[str, Run] = {}

    def create(trainjobs: Sequence[Mapping[str, Any]]) -> Mapping[str, Run]:
        for trainjob in trainjobs:
            name = trainjob["metadata"]["name"]
            runs[name] = Run(kube, name)
            runs[name].delete()
            kube.create(trainjob)
        return runs

    yield create
    for run in runs.values():
        run.delete()


@pytest.fixture
def submit(kube: Kube, catalogue: Callable[[], None], inputs: str) -> Iterator[Callable[[Mapping[str, Any]], Run]]:
    """Submits a TrainJob; it is deleted with its claim when the test ends."""
    runs: list[Run] = []

    def create(trainjob: Mapping[str, Any]) -> Run:
        run = Run(kube, trainjob["metadata"]["name"])
        run.delete()
        runs.append(run)
        kube.create(trainjob)
        return run

    yield create
    for run in runs:
        run.delete()
