"""What the server's tests stand on: images and the chart in the cluster's registry, models and adapters on claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.helm import ROOT, VLLM_SERVING
from cluster import Cluster
from e2e.kube import Kube, restricted_namespace
from e2e.registry import Image, push_chart, push_image
from e2e.serving.server import Client, Server, client_objects
from e2e.trainjobs import Reader

EXAMPLE = ROOT / "examples/sft-lora"
VALUES = Path(__file__).with_name("values.yaml")
NAMESPACE = "stoker-serving"
MODELS, ADAPTERS = "models", "adapters"

Install = Callable[..., Server]


@pytest.fixture(scope="package")
def serving_images(cluster: Cluster, fetch_image: Image) -> dict[str, Image]:
    """The images of a server, by their names in the chart's values."""
    vllm = push_image(cluster, "vllm", "--accelerator", "cpu")
    return {"vllm": vllm, "fetch": fetch_image, "proxy": push_image(cluster, "proxy")}


@pytest.fixture(scope="package")
def serving_chart(
    cluster: Cluster,
    helm: Callable[..., str],
    serving_images: dict[str, Image],
    tmp_path_factory: pytest.TempPathFactory,
) -> list[str]:
    """The chart, packaged and pushed: the words by which helm finds it, with the tests' values."""
    folder = tmp_path_factory.mktemp("serving")
    chart = push_chart(cluster, helm, VLLM_SERVING.name, folder)
    values = folder / "images.yaml"
    values.write_text(yaml.safe_dump(image_values(serving_images)))
    return [*chart, "--values", str(VALUES), "--values", str(values)]


def image_values(images: Mapping[str, Image]) -> dict[str, Any]:
    """Return the chart's values for images built here, which have the version of vLLM that the chart is for."""
    description = yaml.safe_load((VLLM_SERVING / "Chart.yaml").read_text())
    return {"images": {name: image.values for name, image in images.items()}, "vllmVersion": description["appVersion"]}


@pytest.fixture(scope="package")
def serving_kube(cluster: Cluster) -> Iterator[Kube]:
    """A namespace that enforces the restricted pod security standard, with claims for models and for adapters."""
    with restricted_namespace(cluster, NAMESPACE) as found:
        for claim in (MODELS, ADAPTERS):
            found.create_claim(claim)
        yield found


@pytest.fixture(scope="package")
def client(serving_kube: Kube, fetch_image: Image) -> Client:
    """A pod that asks servers, with both claims."""
    serving_kube.create(*client_objects(fetch_image.reference, [MODELS, ADAPTERS]))
    serving_kube.kubectl("wait", "pod/client", "--for=condition=Ready", "--timeout=300s")
    return Client(serving_kube)


@pytest.fixture(scope="package")
def serving_reader(serving_kube: Kube, image: Image) -> Reader:
    """Runs programs of the trainer's image beside the claims."""
    return Reader(serving_kube, image.reference)


@pytest.fixture(scope="package")
def models(serving_kube: Kube, serving_reader: Reader) -> str:
    """The claim with a base model (`model`), a run's adapter on it (`output`) and wrong ones (`wrong/*`)."""
    folder = f"/claims/{MODELS}"
    for path in (EXAMPLE / "base_model.py", EXAMPLE / "data/elements.jsonl", Path(__file__).with_name("inputs.py")):
        serving_reader.write(MODELS, path.name, path.read_text())
    serving_reader.run(["python", f"{folder}/inputs.py", folder, folder], [MODELS], seconds=300)
    return MODELS


@pytest.fixture(scope="package")
def install(helm: Callable[..., str], serving_chart: list[str], client: Client) -> Iterator[Install]:
    """Installs or upgrades a release with further words for helm; all are uninstalled at the end."""
    names: set[str] = set()

    def run(name: str, *words: str, wait: bool = True) -> Server:
        names.add(name)
        waiting = ["--wait", "--timeout", "15m"] if wait else []
        helm("upgrade", "--install", name, *serving_chart, "--namespace", NAMESPACE, *waiting, *words)
        return Server(client.kube, name, client)

    yield run
    for name in names:
        helm("uninstall", name, "--namespace", NAMESPACE, "--ignore-not-found")
