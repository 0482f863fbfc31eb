"""The whole way: two pods on two nodes train an adapter that changes what the model answers, and the chart serves it.

It says what PEFT says, token for token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import Cluster
from e2e.conftest import EXAMPLE
from e2e.kube import Kube
from e2e.registry import Image
from e2e.serving import reference
from e2e.serving.server import Client, Server, client_objects
from e2e.trainjobs import INPUTS_CLAIM, Reader, Run

ROWS = [json.loads(line) for line in (EXAMPLE / "data/elements.jsonl").read_text().splitlines()]
QUESTIONS = [row["prompt"][0]["content"] for row in ROWS[::6]]
SERVER = "elements"


@pytest.fixture(scope="module")
def tuning(submit_together: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Run]]) -> Run:
    """The example's TrainJob, under way."""
    trainjob = yaml.safe_load((EXAMPLE / "trainjob.yaml").read_text())
    trainjob["metadata"]["name"] = "to-be-served"
    (run,) = submit_together([trainjob]).values()
    return run


@pytest.fixture(scope="module")
def server(
    tuning: Run,
    kube: Kube,
    helm: Callable[..., str],
    serving_chart: list[str],
    fetch_image: Image,
) -> Iterator[Server]:
    """A release that serves the base model and that adapter, out of the TrainJob's own claim."""
    kube.create(*client_objects(fetch_image.reference, []))
    tuning.wait_complete(seconds=600)
    adapters = [{"name": "tuned", "claim": f"initializer-{tuning.name}", "path": "output"}]
    helm(
        "install", SERVER, *serving_chart, "--namespace", kube.namespace, "--wait", "--timeout", "15m",
        "--set", f"model.claim.name={INPUTS_CLAIM}", "--set", "model.name=base",
        "--set-json", f"adapters={json.dumps(adapters)}",
    )  # fmt: skip
    kube.kubectl("wait", "pod/client", "--for=condition=Ready", "--timeout=300s")
    yield Server(kube, SERVER, Client(kube))
    helm("uninstall", SERVER, "--namespace", kube.namespace, "--wait")
    for thing in client_objects("", []):
        kube.delete(thing["kind"], thing["metadata"]["name"])


def test_two_pods_on_two_nodes_train_an_adapter_that_changes_the_answers(
    tuning: Run, reader: Reader, cluster: Cluster, kube: Kube
) -> None:
    def progress() -> dict[str, Any] | None:
        status: dict[str, Any] | None = tuning.object().get("status", {}).get("trainerStatus")
        names = {metric["name"] for metric in (status or {}).get("metrics", ())}
        return status if {"loss", "world_size"} <= names else None

    seen = kube.until("progress with loss in .status.trainerStatus", progress, 240)
    assert {m["name"]: m["value"] for m in seen["metrics"]}["world_size"] == "2"
    assert sorted(pod["spec"]["nodeName"] for pod in tuning.pods()) == cluster.nodes()[:2]

    done = tuning.wait_complete()
    assert done["status"]["trainerStatus"]["progressPercentage"] == 100
    manifest = tuning.manifest(reader)
    assert (manifest["status"], manifest["world_size"], manifest["nodes"]) == ("finished", 2, 2)
    assert manifest["steps"] == manifest["max_steps"] > 0

    claim = f"initializer-{tuning.name}"
    inputs = f"/claims/{INPUTS_CLAIM}"
    adapter = f"/claims/{claim}/output"
    command = ["python", f"{inputs}/ask.py", "--model", f"{inputs}/model", "--data", f"{inputs}/elements.jsonl"]
    scores = json.loads(reader.run([*command, "--adapter", adapter, "--json"], [INPUTS_CLAIM, claim]))
    assert scores["right_before"] <= 0.1 * scores["questions"]
    assert scores["right_after"] >= 0.8 * scores["questions"]


def test_the_served_adapter_says_what_peft_says_and_the_base_model_something_else(
    tuning: Run, server: Server, reader: Reader
) -> None:
    claim = f"initializer-{tuning.name}"
    program = Path(reference.__file__).read_text()
    folders = [f"/claims/{INPUTS_CLAIM}/model", f"/claims/{claim}/output"]
    printed = reader.run(["python", "-c", program, *folders, json.dumps(QUESTIONS)], [INPUTS_CLAIM, claim])
    peft: dict[str, dict[str, list[int]]] = json.loads(printed.splitlines()[-1])

    served = {name: answers(server, name) for name in ("base", "tuned")}
    assert served == peft
    assert sum(served["base"][question] != served["tuned"][question] for question in QUESTIONS) > 0.8 * len(QUESTIONS)


def test_what_the_notes_print_works_as_it_is_printed(
    server: Server, cluster: Cluster, helm: Callable[..., str]
) -> None:
    notes = helm("get", "notes", server.name, "--namespace", server.kube.namespace)
    commands = re.search(r"^  kubectl port-forward .*?^  done$", notes, re.MULTILINE | re.DOTALL)
    assert commands, notes
    spoken = commands[0].replace("See which adapters each replica has:", "")
    # What a user does by hand in the end. No proxy stands between a machine and itself.
    script = f"export NO_PROXY=127.0.0.1\ntrap 'kill %1' EXIT\n{spoken}"
    done = cluster.run(["bash", "-euc", script], check=False, capture_output=True)
    assert done.returncode == 0, f"{script}\n{done.stderr}"
    assert '"object":"text_completion"' in done.stdout
    assert '"loaded"' in done.stdout
    assert "tuned" in done.stdout


def answers(server: Server, model: str) -> dict[str, list[int]]:
    """Return the token ids that a model says to each question, greedily."""
    requests = [
        {
            "url": f"{server.url}/v1/chat/completions",
            "body": {
                "model": model,
                "messages": [{"role": "user", "content": question}],
                "max_tokens": reference.TOKENS,
                "temperature": 0,
                "return_token_ids": True,
            },
        }
        for question in QUESTIONS
    ]
    found = server.client.ask(*requests)
    assert {answer["status"] for answer in found} == {200}, found
    return {
        question: answer["body"]["choices"][0]["token_ids"] for question, answer in zip(QUESTIONS, found, strict=True)
    }
