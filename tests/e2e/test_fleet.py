"""One URL over real replicas on a cluster: calls reach all of them or none, and requests never see which are there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.serving.fixtures import ADAPTERS, MODELS, Install
from e2e.serving.server import Client, Server
from e2e.strikers import Striker

pytestmark = pytest.mark.full  # replicas take a minute each to start on a small machine

HIT = Path(__file__).with_name("hit.py")
# How many ask, and how long before a replica is killed.
ASKERS, BUSY_SECONDS = 4, 5.0
FOREIGN = f"/claims/{ADAPTERS}/foreign"
# Copies a model, and turns the sign of each of its numbers, of float32, round.
TRAINED = """
import pathlib, shutil, sys
shutil.copytree(*sys.argv[1:])
file = pathlib.Path(sys.argv[2], "model.safetensors")
data = bytearray(file.read_bytes())
for at in range(8 + int.from_bytes(data[:8], "little") + 3, len(data), 4):
    data[at] ^= 0x80
file.write_bytes(data)
"""
PEERS = {"enabled": True, "adaptersOnly": True, "peers": [{"podSelector": {"matchLabels": {"role": "client"}}}]}


class Replicas(Server):
    """A release whose pods are its replicas alone, without those of the one URL."""

    @property
    def selector(self) -> str:
        """What finds its replicas."""
        return f"app.kubernetes.io/name=vllm-serving,{super().selector}"

    @property
    def url(self) -> str:
        """The one URL."""
        return f"http://{self.name}-fleet"


@pytest.fixture(scope="module")
def server(install: Install, models: str, client: Client, helm: Callable[..., str]) -> Iterator[Replicas]:
    """Two replicas with one URL, and adapters without a manifest on the claim."""
    found = install(
        "url", "--set", "replicas=2", "--set", f"model.claim.name={models}", "--set", "model.name=base",
        "--set", f"published.claim={ADAPTERS}", "--set", "lora.maxRank=8",
        "--set-json", f"rl={json.dumps(PEERS)}", "--set", "fleet.enabled=true",
    )  # fmt: skip
    client.run(
        "sh", "-c",
        f"mkdir -p {FOREIGN} && cp -r /claims/{MODELS}/output {FOREIGN}/v1 && rm {FOREIGN}/v1/stoker.json && "
        f"cp -r /claims/{MODELS}/wrong/too-large {FOREIGN}/large",
    )  # fmt: skip
    yield Replicas(found.kube, found.name, client)
    uninstall(helm, found)


@pytest.fixture
def whole(install: Install, models: str, client: Client, helm: Callable[..., str]) -> Iterator[Replicas]:
    """Two replicas that take whole weights."""
    found = install(
        "whole", "--set", "replicas=2", "--set", f"model.claim.name={models}", "--set", "model.name=base",
        "--set", f"published.claim={ADAPTERS}", "--set-json", f"rl={json.dumps(PEERS)}", "--set", "fleet.enabled=true",
    )  # fmt: skip
    yield Replicas(found.kube, found.name, client)
    uninstall(helm, found)


def uninstall(helm: Callable[..., str], server: Server) -> None:
    """Free the processors for the tests of other modules."""
    helm("uninstall", server.name, "--namespace", server.kube.namespace, "--wait")


def call(server: Replicas, client: Client, path: str, **body: Any) -> dict[str, Any]:
    """Return the answer to a call."""
    (answer,) = client.ask({"url": server.url + path, "body": body})
    return answer


def said(server: Replicas, client: Client, model: str) -> list[int]:
    """Return the status with which each replica answers for a model."""
    body = {"model": model, "prompt": "What is the symbol of iron?", "max_tokens": 1}
    asked = ({"url": f"{address}/v1/completions", "body": body} for address in server.addresses())
    return [answer["status"] for answer in client.ask(*asked)]


def test_a_call_reaches_every_replica(server: Replicas, client: Client) -> None:
    assert said(server, client, "run-v1") == [404, 404]
    answer = call(server, client, "/v1/load_lora_adapter", lora_name="run-v1", lora_path=f"{FOREIGN}/v1")
    assert answer["status"] == 200, answer
    assert said(server, client, "run-v1") == [200, 200]


def test_what_one_cannot_do_is_done_by_none(server: Replicas, client: Client) -> None:
    answer = call(server, client, "/v1/load_lora_adapter", lora_name="large", lora_path=f"{FOREIGN}/large")
    assert answer["status"] == 502, answer
    assert len(answer["body"]["replicas"]) == 2
    assert all("its rank is 32" in why for why in answer["body"]["replicas"].values())
    assert (said(server, client, "large"), said(server, client, "run-v1")) == ([404, 404], [200, 200])


def test_pausing_holds_all_and_resuming_lets_all_go_on(server: Replicas, client: Client) -> None:
    assert call(server, client, "/pause?mode=keep")["status"] == 200
    body = {"model": "run-v1", "prompt": "a", "max_tokens": 1}
    held = client.ask(
        *({"url": f"{address}/v1/completions", "body": body, "timeout": 3} for address in server.addresses())
    )
    assert [answer["status"] for answer in held] == [0, 0]
    assert call(server, client, "/resume")["status"] == 200
    assert said(server, client, "run-v1") == [200, 200]


def test_no_request_fails_while_a_replica_goes_and_another_comes(server: Replicas, client: Client) -> None:
    gone = server.ready()[0]["metadata"]["name"]
    with client.busy(server.url, "base", "run-v1") as load:
        server.kube.kubectl("delete", "pod", gone, "--wait=false")
        server.kube.until("the pod to go", lambda: gone not in [pod["metadata"]["name"] for pod in server.ready()], 180)
        server.wait_ready(2, seconds=600)
    assert load["failures"] == []
    assert load["requests"] > 20
    assert {model: len(texts) for model, texts in load["said"].items()} == {"base": 1, "run-v1": 1}
    assert load["said"]["base"] != load["said"]["run-v1"]
    assert said(server, client, "run-v1") == [200, 200], "the new one had it before it took requests"


def test_a_killed_replica_fails_no_request_but_those_whose_answer_had_begun_to_stream(
    server: Replicas, client: Client, strikers: list[Striker]
) -> None:
    killed = server.ready()[0]
    name = killed["metadata"]["name"]
    (striker,) = (one for one in strikers if one.node == killed["spec"]["nodeName"])

    def restarts() -> int:
        pod = server.kube.get("pod", name) or {"status": {}}
        return max((one["restartCount"] for one in pod["status"].get("containerStatuses", ())), default=0)

    before = restarts()
    with client.busy(server.url, "base", "run-v1", pause=0.2, askers=ASKERS) as load:
        time.sleep(BUSY_SECONDS)
        (line,) = (line for line in striker.run(HIT, "SIGKILL", name, "0") if line.startswith("hit "))
        assert int(line.split()[1]) >= 3, "vLLM, its proxy and its watcher"
        server.kube.until("the replica to start again", lambda: restarts() > before, 180)
        server.wait_ready(2, seconds=600)
    # An asker waits for its answer, so a kill meets one stream of each at most.
    streams = [failure for failure in load["failures"] if " stream " in failure]
    assert [failure for failure in load["failures"] if failure not in streams] == []
    assert len(streams) <= ASKERS, streams
    assert load["requests"] > 20
    assert {model: len(texts) for model, texts in load["said"].items()} == {"base": 1, "run-v1": 1}
    assert load["said"]["base"] != load["said"]["run-v1"]
    # Whoever has lost a stream asks again.
    body = {"model": "run-v1", "prompt": "a", "max_tokens": 1, "stream": True}
    (again,) = client.ask({"url": f"{server.url}/v1/completions", "body": body})
    assert again["status"] == 200, again
    assert said(server, client, "run-v1") == [200, 200]


def test_what_is_unloaded_is_gone_everywhere(server: Replicas, client: Client) -> None:
    assert call(server, client, "/v1/unload_lora_adapter", lora_name="run-v1")["status"] == 200
    assert said(server, client, "run-v1") == [404, 404]
    (state,) = client.ask({"url": f"{server.url}/fleet"})
    assert (state["body"]["adapters"], state["body"]["paused"]) == ({}, False)
    assert {one["problem"] for one in state["body"]["replicas"].values()} == {""}


def answers(server: Replicas, client: Client) -> list[str]:
    """Return what each replica makes of a text."""
    body = {"model": "base", "prompt": "What is the symbol of iron?", "max_tokens": 8, "temperature": 0}
    asked = ({"url": f"{address}/v1/completions", "body": body} for address in server.addresses())
    return [answer["body"]["choices"][0]["text"] for answer in client.ask(*asked)]


def test_whole_weights_reach_every_replica_or_none(whole: Replicas, client: Client) -> None:
    own = answers(whole, client)
    trained = f"{FOREIGN}/trained"
    client.run("python", "-c", TRAINED, f"/claims/{MODELS}/model", trained)

    def reload(**kwargs: str) -> dict[str, Any]:
        return call(whole, client, "/collective_rpc", method="reload_weights", kwargs=kwargs)

    assert reload(weights_path=trained)["status"] == 200
    other = answers(whole, client)
    assert len({*other}) == 1
    assert other != own
    gone = whole.ready()[0]["metadata"]["name"]
    whole.kube.kubectl("delete", "pod", gone)
    whole.wait_ready(2)
    assert answers(whole, client) == other, "the new one had them before it took requests"
    refused = reload(weights_path=f"{FOREIGN}/v1")
    assert refused["status"] == 400, refused
    assert answers(whole, client) == other
    assert reload()["status"] == 200
    assert answers(whole, client) == own
