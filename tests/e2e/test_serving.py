"""The serving chart on a real cluster: real vLLM on CPU, two replicas, adapters that come and go."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from e2e.serving.fixtures import ADAPTERS, MODELS, NAMESPACE, Install
from e2e.serving.server import Client, Server

pytestmark = pytest.mark.full  # replicas take a minute each to start on a small machine

CONTROL_PATHS = ("/pause", "/collective_rpc", "/invocations", "/v1/load_lora_adapter")
RUN = f"/claims/{MODELS}/output"
FOLDER = f"/claims/{ADAPTERS}/adapters"
QUESTION = [{"role": "user", "content": "What is the symbol of iron?"}]


@pytest.fixture(scope="module")
def server(install: Install, models: str) -> Server:
    """Two replicas of the base model, with one adapter from the start and a folder for more."""
    return install(
        "fleet", "--set", "replicas=2", "--set", f"model.claim.name={models}", "--set", "model.name=base",
        "--set-json", "adapters=" + json.dumps([{"name": "first", "claim": models, "path": "output"}]),
        "--set", f"published.claim={ADAPTERS}", "--set", "lora.maxRank=8", "--set", "published.keep=2",
    )  # fmt: skip


def chat(url: str, model: str, **more: Any) -> dict[str, Any]:
    """Return a request for a chat answer."""
    body = {"model": model, "messages": QUESTION, "max_tokens": 8, "temperature": 0, "logprobs": True}
    return {"url": f"{url}/v1/chat/completions", "body": body, **more}


def test_the_base_model_and_the_adapter_of_the_start_answer(server: Server, client: Client) -> None:
    base, tuned = client.ask(chat(server.url, "base"), chat(server.url, "first"))
    assert (base["status"], tuned["status"]) == (200, 200), (base, tuned)
    said = [answer["body"]["choices"][0]["logprobs"]["content"][0]["logprob"] for answer in (base, tuned)]
    assert said[0] != said[1]


def test_paths_that_control_the_server_are_not_there_for_a_client_with_the_key(server: Server, client: Client) -> None:
    requests = [{"url": server.url + path, "body": {}} for path in CONTROL_PATHS]
    requests += [{"url": f"{server.url}/v1/../pause", "body": {}}, {"url": f"{server.url}//pause", "body": {}}]
    answers = client.ask(*requests)
    assert [answer["status"] for answer in answers] == [404] * len(requests)
    assert all(answer["body"]["error"]["type"] == "not_found_error" for answer in answers)


def test_the_port_of_the_server_itself_is_closed(server: Server, client: Client) -> None:
    answers = client.ask(*({"url": f"{address}/v1/models", "timeout": 5} for address in server.addresses(8000)))
    assert [answer["status"] for answer in answers] == [0, 0]


def test_nobody_is_answered_without_the_key(server: Server, client: Client) -> None:
    answers = client.ask(
        chat(server.url, "base", key=""),
        chat(server.url, "base", key="another"),
        chat(server.url, "base"),
        {"url": f"{server.url}/health", "key": ""},
    )
    assert [answer["status"] for answer in answers] == [401, 401, 200, 200]


def test_a_version_is_served_by_both_replicas_and_no_request_fails(
    server: Server, client: Client, measured: Callable[[str], None]
) -> None:
    with client.busy(server.url, "base", "first", pause=0.2) as load:
        published = [client.publish(RUN, FOLDER, "policy", server.addresses()) for _ in range(5)]
    seconds = [took for version in published for took in version["seconds"]]
    measured(
        f"published to served, two replicas, five versions: median {statistics.median(seconds):.2f} s, "
        f"maximum {max(seconds):.2f} s; {load['requests']} requests meanwhile, {len(load['failures'])} failed"
    )
    assert [version["name"] for version in published] == [f"policy:{number}" for number in range(1, 6)]
    assert load["requests"] > 20
    assert load["failures"] == []
    # One batch holds requests for the base model and for adapters: each is answered as if it were alone.
    assert {model: len(texts) for model, texts in load["said"].items()} == {"base": 1, "first": 1}
    assert load["said"]["base"] != load["said"]["first"]


def converged(server: Server, *names: str) -> Callable[[], bool]:
    """Return a probe: every replica has exactly these adapters."""
    return lambda: all(state["loaded"] == sorted(names) for state in server.adapters())


def test_old_versions_go(server: Server) -> None:
    server.kube.until("the two newest versions alone", converged(server, "first", "policy:4", "policy:5"), 120)


def test_wrong_adapters_are_reported_by_name_and_the_others_go_on(server: Server, client: Client) -> None:
    for name in ("no-effect", "other-base", "too-large"):
        client.run("stoker", "adapters", "publish", f"/claims/{MODELS}/wrong/{name}", FOLDER, name)
    refused = client.run("stoker", "adapters", "publish", f"/claims/{MODELS}/wrong/corrupt", FOLDER, "no", check=False)
    assert "adapter_model.safetensors has changed since the run" in refused
    # Somebody who copies by hand is not stopped by the publisher, only by the server.
    client.run("sh", "-c", f"mkdir {FOLDER}/corrupt && cp -r /claims/{MODELS}/wrong/corrupt {FOLDER}/corrupt/1")
    wanted = {
        "corrupt:1": "has changed since the run: its checksum differs",
        "no-effect:1": "it has no effect",
        "other-base:1": "its matrices do not fit",
        "too-large:1": "its rank is 32, but the server takes at most 8: raise lora.maxRank",
    }

    def reported() -> bool:
        """Whether each has its report: one that is looked at while it is copied is looked at again later."""
        return all(
            problems.keys() == wanted.keys() and all(text in problems[name] for name, text in wanted.items())
            for problems in (state["problems"] for state in server.adapters())
        )

    server.kube.until("every wrong adapter to be reported", reported, 180)
    metrics = client.ask(*({"url": f"{address}/metrics"} for address in server.addresses(8081)))
    assert all(f'name="{name}"}} 1' in answer["body"] for answer in metrics for name in wanted)
    good = client.ask(*(chat(address, model) for address in server.addresses() for model in ("first", "policy:5")))
    assert [answer["status"] for answer in good] == [200] * 4
    bad = client.ask(*(chat(server.url, name) for name in ("corrupt:1", "other-base:1", "too-large:1")))
    assert [answer["status"] for answer in bad] == [404] * 3
    for name in ("corrupt", "no-effect", "other-base", "too-large"):
        client.run("stoker", "adapters", "retract", FOLDER, name, "1")
    server.kube.until("nothing wrong any more", lambda: not any(s["problems"] for s in server.adapters()), 180)


def test_an_upgrade_fails_no_request_and_new_replicas_have_the_right_adapters(
    server: Server, client: Client, serving_chart: list[str], helm: Callable[..., str]
) -> None:
    """A changed argument of the server replaces one replica after the other, as a rolling restart does."""
    old = {pod["metadata"]["name"] for pod in server.pods()}
    with client.busy(server.url, "base", "first", "policy:5") as load:
        helm(
            "upgrade", server.name, *serving_chart, "--namespace", NAMESPACE, "--wait", "--timeout", "15m",
            "--reuse-values", "--set-string", "args.max-num-seqs=8",
        )  # fmt: skip
        server.wait_ready(2)
    assert not old & {pod["metadata"]["name"] for pod in server.pods()}
    assert load["requests"] > 20
    assert load["failures"] == []
    assert converged(server, "first", "policy:4", "policy:5")()


def test_a_bad_upgrade_leaves_the_replicas_before_it_as_they_were(
    server: Server, client: Client, models: str, serving_chart: list[str], helm: Callable[..., str]
) -> None:
    """Also when one of them restarts, or moves: it reads the settings of its own version, not those of the bad one."""
    wrong = [{"name": "other-base", "claim": models, "path": "wrong/other-base"}]
    old = server.ready()
    kept, moved = (pod["metadata"]["name"] for pod in old)
    with client.busy(server.url, "base", "first", "policy:5") as load:
        helm(
            "upgrade", server.name, *serving_chart, "--namespace", NAMESPACE, "--reuse-values",
            "--set-json", f"adapters={json.dumps(wrong)}", "--set-json", 'api.paths=["/v1/models"]',
        )  # fmt: skip
        server.kube.until("the bad version to refuse to start", lambda: refusal(server), 300)
        # The watcher reads its settings when it starts.
        end = "import os, signal; os.kill(1, signal.SIGTERM)"
        # It may end before the program that ends it has.
        server.kube.kubectl("exec", kept, "--container", "adapters", "--", "python", "-c", end, check=False)
        server.kube.until("the watcher to be back", lambda: restarts(server, kept, "adapters") == 1, 300)
        server.kube.until("both", lambda: len(server.ready()) == 2, 300)
        server.kube.kubectl("delete", "pod", moved)
        server.kube.until("another in its place", lambda: len(server.ready()) == 2, 300)
    assert load["requests"] > 20
    assert load["failures"] == []
    hashes = {pod["metadata"]["labels"]["pod-template-hash"] for pod in server.ready()}
    assert hashes == {old[0]["metadata"]["labels"]["pod-template-hash"]}
    assert converged(server, "first", "policy:4", "policy:5")()
    helm("rollback", server.name, "--namespace", NAMESPACE)
    server.wait_ready(2)


def refusal(server: Server) -> str | None:
    """Return what `prepare` said in a pod that it keeps from starting; None if there is no such pod."""
    for pod in server.pods():
        for status in pod["status"].get("initContainerStatuses", ()):
            for state in (status["state"], status.get("lastState", {})):
                if status["name"] == "prepare" and state.get("terminated", {}).get("exitCode"):
                    return str(state["terminated"].get("message", ""))
    return None


def restarts(server: Server, pod: str, container: str) -> int:
    """Return how often a container of a pod was started again."""
    (found,) = (item for item in server.pods() if item["metadata"]["name"] == pod)
    statuses = [*found["status"]["initContainerStatuses"], *found["status"]["containerStatuses"]]
    return int(next(status["restartCount"] for status in statuses if status["name"] == container))


def test_a_test_of_the_release_asks_the_model(server: Server, helm: Callable[..., str]) -> None:
    printed = helm("test", server.name, "--namespace", NAMESPACE, "--timeout", "6m", "--logs")
    assert "base answers: " in printed
    assert "first answers: " in printed


def test_a_drained_node_fails_no_request(server: Server, client: Client) -> None:
    pods = server.ready()
    node = pods[0]["spec"]["nodeName"]
    with client.busy(server.url, "base", "first") as load:
        try:
            server.kube.kubectl(
                "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=900s",
                "--pod-selector", server.selector,
            )  # fmt: skip
            server.wait_ready(2, seconds=480)
        finally:
            server.kube.kubectl("uncordon", node)
    assert all(pod["spec"]["nodeName"] != node for pod in server.ready())
    assert load["requests"] > 20
    assert load["failures"] == []


@pytest.fixture(scope="module")
def refused(install: Install, models: str) -> Callable[[str], str]:
    """Installs a server with a wrong adapter and returns what the pod says of it."""

    def run(name: str) -> str:
        adapters = [{"name": name, "claim": models, "path": f"wrong/{name}"}]
        wrong = install(
            "wrong", "--set", f"model.claim.name={models}", "--set-json", f"adapters={json.dumps(adapters)}",
            "--set", "lora.maxRank=8", wait=False,
        )  # fmt: skip

        return wrong.kube.until(f"the refusal of {name}", lambda: refusal(wrong), 180)

    return run


def test_a_server_does_not_start_with_a_wrong_adapter_and_says_why(refused: Callable[[str], str]) -> None:
    message = refused("other-base")
    assert "adapter other-base (/claims/models/wrong/other-base): its matrices do not fit" in message


def test_uninstall_leaves_nothing_but_what_was_published(
    server: Server, client: Client, helm: Callable[..., str]
) -> None:
    helm("uninstall", server.name, "--namespace", NAMESPACE, "--wait", "--timeout", "6m")
    server.kube.until("its pods to end", lambda: not server.kube.items("pods", server.selector), 300)
    left = [
        thing["kind"]
        for kind in ("deployments", "services", "configmaps", "networkpolicies", "poddisruptionbudgets")
        for thing in server.kube.items(kind, server.selector)
    ]
    assert left == []
    assert client.run("ls", FOLDER).split() == ["corrupt", "no-effect", "other-base", "policy", "too-large"]
