"""What stands around a model server: OpenAI's package, pods that a network policy keeps out, a model in an image."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from charts import openai_checks
from cluster import Cluster
from e2e.devices import CLASS, NODE, devices
from e2e.kube import Kube
from e2e.pods import CONTAINER_SECURITY, POD_SECURITY
from e2e.registry import Image
from e2e.serving import policies
from e2e.serving.fixtures import MODELS, NAMESPACE, Install
from e2e.serving.server import CLIENT, Client, Server, client_objects

__all__ = ["devices"]  # a fixture

pytestmark = pytest.mark.full  # a server of its own takes a minute or two to start

NAME = "seen"
STRANGERS = "stoker-strangers"
PATHS = {8080: "/v1/models", 8081: "/adapters", 8082: "/metrics"}


@pytest.fixture(scope="module")
def server(install: Install, models: str, cluster: Cluster, helm: Callable[..., str]) -> Iterator[Server]:
    """A replica with an adapter, on the node whose network the tests can reach."""
    yield install(
        NAME, "--set", f"model.claim.name={models}", "--set", "model.name=base",
        "--set-json", "adapters=" + json.dumps([{"name": "first", "claim": MODELS, "path": "output"}]),
        "--set", f"nodeSelector.kubernetes\\.io/hostname={cluster.nodes()[0]}",
    )  # fmt: skip
    helm("uninstall", NAME, "--namespace", NAMESPACE, "--wait")


@pytest.fixture(scope="module")
def said(
    server: Server, serving_kube: Kube, serving_images: dict[str, Image], cluster: Cluster
) -> Iterator[dict[str, Any]]:
    """What OpenAI's Python package, which vLLM's image has, was told by the Service."""
    program = Path(__file__).parents[1] / "charts/openai_user.py"  # imports what only that image has
    *_, pod = client_objects(serving_images["vllm"].reference, [])
    pod["metadata"] = {"name": "openai", "labels": {"role": "openai"}}
    pod["spec"]["nodeName"] = cluster.nodes()[0]  # where that image already is
    pod["spec"]["containers"][0]["resources"]["limits"]["memory"] = "1Gi"
    (volume,) = (volume for volume in pod["spec"]["volumes"] if volume["name"] == "program")
    volume["configMap"]["name"] = "openai"
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "openai"}}
    serving_kube.create({**config, "data": {program.name: program.read_text()}}, pod)
    serving_kube.kubectl("wait", "pod/openai", "--for=condition=Ready", "--timeout=300s")
    words = ["python", f"/client/{program.name}", f"{server.url}/v1", "base", "first"]
    yield json.loads(serving_kube.kubectl("exec", "openai", "--", *words).stdout)
    serving_kube.delete("pod", "openai", wait=False)
    serving_kube.delete("configmap", "openai")


def test_the_openai_package_lists_the_model_and_its_adapter(said: dict[str, Any]) -> None:
    openai_checks.check_models(said)


def test_the_openai_package_chats_and_completes(said: dict[str, Any]) -> None:
    openai_checks.check_answers(said)


def test_the_openai_package_is_streamed_the_same_in_pieces(said: dict[str, Any]) -> None:
    openai_checks.check_streams(said)


@pytest.mark.parametrize(("what", "error", "status", "words"), openai_checks.REFUSALS)
def test_the_openai_package_understands_a_refusal(
    said: dict[str, Any], what: str, error: str, status: int, words: str
) -> None:
    openai_checks.check_refusal(said, what, error, status, words)


@pytest.fixture(scope="module")
def stranger(cluster: Cluster, fetch_image: Image) -> Iterator[Client]:
    """A pod in a namespace that the network policy does not name, with the key."""
    kube = Kube(cluster, STRANGERS)
    kube.delete("namespace", STRANGERS)
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": STRANGERS}})
    kube.create(*client_objects(fetch_image.reference, []))
    kube.kubectl("wait", f"pod/{CLIENT}", "--for=condition=Ready", "--timeout=300s")
    yield Client(kube)
    kube.delete("namespace", STRANGERS, wait=False)


def test_who_is_outside_the_network_policy_reaches_nothing(
    server: Server, client: Client, stranger: Client, cluster: Cluster, tmp_path: Path
) -> None:
    requests = [{"url": f"http://{NAME}.{NAMESPACE}/v1/models", "timeout": 5}]
    requests += [
        {"url": address + path, "timeout": 5} for port, path in PATHS.items() for address in server.addresses(port)
    ]

    def statuses(who: Client) -> list[int]:
        return [answer["status"] for answer in who.ask(*requests)]

    # A cluster with a network of its own keeps strangers out from the beginning.
    if cluster.provider.name == "embedded":
        assert statuses(stranger) == [200] * 4, "nothing but the policy is to keep the stranger out"
        assert _leaves(server, client), "nothing but the policy is to keep a replica in"
    replicas = [pod["status"]["podIP"] for pod in server.ready()]
    with policies.enforced(cluster, cluster.nodes()[0], replicas, tmp_path / "agent.log"):
        server.kube.until("the policy to hold", lambda: statuses(stranger) == [0] * 4, 180)
        # The client stands for Prometheus too: see values.yaml.
        server.kube.until("the allowed client to be let in", lambda: statuses(client) == [200] * 4, 180)
        assert statuses(stranger) == [0] * 4
        assert not _leaves(server, client)


def _leaves(server: Server, client: Client) -> bool:
    """Return whether a replica reaches a pod that its policy does not name: the client's, where nobody listens."""
    pod = client.kube.get("pod", CLIENT)
    assert pod
    dial = f"import socket; socket.create_connection(('{pod['status']['podIP']}', 9), 5)"
    (replica,) = server.ready()
    words = ["exec", replica["metadata"]["name"], "--container", "adapters", "--", "python", "-c", dial]
    printed = server.kube.kubectl(*words, check=False).stderr
    # A pod that is reached refuses at once; one that is not is never heard of.
    assert "ConnectionRefusedError" in printed or "TimeoutError" in printed, printed
    return "ConnectionRefusedError" in printed


@pytest.fixture
def model_image(cluster: Cluster, client: Client, models: str, tmp_path: Path) -> str:
    """An image in the cluster's registry that holds the base model and nothing else.

    Skips where the cluster does not know volumes of images.
    """
    container = {"name": "probe", "image": "registry.example.com/probe:1", "securityContext": CONTAINER_SECURITY}
    volume = {"name": "model", "image": {"reference": "registry.example.com/model:1"}}
    spec = {"securityContext": POD_SECURITY, "containers": [container], "volumes": [volume]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": spec}
    words = ("create", "--dry-run=server", "--output=json", "-f", "-")
    taken = client.kube.kubectl(*words, check=False, stdin=json.dumps(pod))
    # Without the feature gate the API server drops the volume's source.
    if taken.returncode or not any("image" in volume for volume in json.loads(taken.stdout)["spec"]["volumes"]):
        pytest.skip(f"this cluster knows no volumes of images (feature gate ImageVolume): {taken.stderr.strip()}")
    layer = tmp_path / "model.tar"
    pack = f"import tarfile\nwith tarfile.open('/tmp/image.tar', 'w') as t: t.add('/claims/{models}/model', 'model')"
    client.run("python", "-c", pack)
    read = ["kubectl", "--namespace", NAMESPACE, "exec", CLIENT, "--", "cat", "/tmp/image.tar"]
    with layer.open("wb") as file:
        cluster.run(read, text=False, stdout=file)
    reference = f"{cluster.registry}/stoker-dev/model:1"
    cluster.run(["crane", "append", "--insecure", "--new_layer", str(layer), "--new_tag", reference])
    return reference


@pytest.fixture
def mounts_images(request: pytest.FixtureRequest, cluster: Cluster) -> list[str]:
    """The words for helm that bring a server to a node whose containerd mounts images."""
    if cluster.provider.name != "embedded":
        return []
    request.getfixturevalue(devices.__name__)
    tolerations = json.dumps([{"key": CLASS, "operator": "Exists"}])
    return ["--set", f"nodeSelector.kubernetes\\.io/hostname={NODE}", "--set-json", f"tolerations={tolerations}"]


def test_a_model_is_served_out_of_an_image(
    install: Install, client: Client, model_image: str, mounts_images: list[str], helm: Callable[..., str]
) -> None:
    server = install(
        "imaged", "--set", "model.name=base", "--set", f"model.image.reference={model_image}",
        "--set", "model.image.path=model", "--set", "model.source=base", *mounts_images,
    )  # fmt: skip
    # Whatever the model would say to no chat, it writes four tokens.
    body = {"model": "base", "prompt": "What is the symbol of iron?", "max_tokens": 4, "ignore_eos": True}
    (answer,) = client.ask({"url": f"{server.url}/v1/completions", "body": body})
    assert answer["status"] == 200, answer
    assert answer["body"]["usage"]["completion_tokens"] == 4
    helm("uninstall", server.name, "--namespace", NAMESPACE, "--wait")  # its node goes
