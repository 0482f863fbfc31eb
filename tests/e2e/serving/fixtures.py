"""What the server's tests stand on: images and the chart in the cluster's registry, models and adapters on claims."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import Cluster
from e2e.kube import Kube
from e2e.serving.server import Client, Server, client_objects
from e2e.trainjobs import Reader

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples/sft-lora"
CHART = ROOT / "charts/vllm-serving"
NAMESPACE = "stoker-serving"
MODELS, ADAPTERS = "models", "adapters"
IMAGES = {"vllm": ["--accelerator", "cpu"], "fetch": [], "proxy": []}

Install = Callable[..., Server]


@pytest.fixture(scope="session")
def serving_images(cluster: Cluster) -> dict[str, dict[str, str]]:
    """The images of a server, built from this checkout and pushed: values of the chart."""
    found = {}
    for name, words in IMAGES.items():
        built = subprocess.run([ROOT / "images/build", name, *words], check=True, stdout=subprocess.PIPE, text=True)
        facts = json.loads(built.stdout)
        cluster.push(Path(facts["oci"]), f"stoker-dev/{name}:{facts['tag']}")
        found[name] = {"repository": f"{cluster.registry}/stoker-dev/{name}", "tag": facts["tag"]}
    return found


@pytest.fixture(scope="session")
def serving_chart(
    cluster: Cluster,
    helm: Callable[..., str],
    serving_images: dict[str, dict[str, str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> list[str]:
    """The chart, packaged and pushed: the words by which helm finds it, with the tests' values."""
    folder = tmp_path_factory.mktemp("serving")
    helm("package", str(CHART), "--destination", str(folder))
    (package,) = folder.glob("*.tgz")
    helm("push", str(package), f"oci://{cluster.registry}/charts", "--plain-http")
    description = yaml.safe_load((CHART / "Chart.yaml").read_text())
    values = folder / "images.yaml"
    values.write_text(yaml.safe_dump({"images": serving_images, "vllmVersion": description["appVersion"]}))
    address = f"oci://{cluster.registry}/charts/{CHART.name}"
    given = ["--values", str(Path(__file__).with_name("values.yaml")), "--values", str(values)]
    return [address, "--version", description["version"], "--plain-http", *given]


@pytest.fixture(scope="session")
def serving_kube(cluster: Cluster) -> Iterator[Kube]:
    """A namespace that enforces the restricted pod security standard, with claims for models and for adapters."""
    found = Kube(cluster, NAMESPACE)
    found.delete("namespace", NAMESPACE)
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    found.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    for claim in (MODELS, ADAPTERS):
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        found.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim}, "spec": spec})
    yield found
    found.delete("namespace", NAMESPACE)


@pytest.fixture(scope="session")
def client(serving_kube: Kube, serving_images: dict[str, dict[str, str]]) -> Client:
    """A pod that asks servers, with both claims."""
    fetch = serving_images["fetch"]
    serving_kube.create(*client_objects(f"{fetch['repository']}:{fetch['tag']}", [MODELS, ADAPTERS]))
    serving_kube.kubectl("wait", "pod/client", "--for=condition=Ready", "--timeout=120s")
    return Client(serving_kube)


@pytest.fixture(scope="session")
def serving_reader(serving_kube: Kube, image: Any) -> Reader:
    """Runs programs of the trainer's image beside the claims."""
    return Reader(serving_kube, image.reference)


@pytest.fixture(scope="session")
def models(serving_kube: Kube, serving_reader: Reader) -> str:
    """The claim with a base model (`model`), a run's adapter on it (`output`) and wrong ones (`wrong/*`)."""
    folder = f"/claims/{MODELS}"
    for path in (EXAMPLE / "base_model.py", EXAMPLE / "data/elements.jsonl", Path(__file__).with_name("inputs.py")):
        serving_reader.write(MODELS, path.name, path.read_text())
    serving_reader.run(["python", f"{folder}/inputs.py", folder, folder], [MODELS], seconds=300)
    return MODELS


@pytest.fixture(scope="session")
def install(helm: Callable[..., str], serving_chart: list[str], client: Client) -> Iterator[Install]:
    """Installs or upgrades a release with further words for helm; all are uninstalled at the end."""
    names: set[str] = set()

    def run(name: str, *words: str, wait: bool = True) -> Server:
        names.add(name)
        waiting = ["--wait", "--timeout", "8m"] if wait else []
        helm("upgrade", "--install", name, *serving_chart, "--namespace", NAMESPACE, *waiting, *words)
        return Server(client.kube, name, client)

    yield run
    for name in names:
        helm("uninstall", name, "--namespace", NAMESPACE, "--ignore-not-found")
