"""The main job: two pods on two nodes train a LoRA adapter that changes what the model answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from cluster import Cluster
from e2e.conftest import EXAMPLE
from e2e.kube import Kube
from e2e.trainjobs import INPUTS_CLAIM, Reader, Run

Submit = Callable[[Mapping[str, Any]], Run]


def test_two_pods_on_two_nodes_train_an_adapter_that_changes_the_answers(
    submit: Submit, reader: Reader, cluster: Cluster, kube: Kube
) -> None:
    run = submit(yaml.safe_load((EXAMPLE / "trainjob.yaml").read_text()))

    def progress() -> dict[str, Any] | None:
        status: dict[str, Any] | None = run.object().get("status", {}).get("trainerStatus")
        names = {metric["name"] for metric in (status or {}).get("metrics", ())}
        return status if {"loss", "world_size"} <= names else None

    seen = kube.until("progress with loss in .status.trainerStatus", progress, 240)
    assert {m["name"]: m["value"] for m in seen["metrics"]}["world_size"] == "2"
    assert sorted(pod["spec"]["nodeName"] for pod in run.pods()) == cluster.nodes()[:2]

    done = run.wait_complete()
    assert done["status"]["trainerStatus"]["progressPercentage"] == 100
    manifest = run.manifest(reader)
    assert (manifest["status"], manifest["world_size"], manifest["nodes"]) == ("finished", 2, 2)
    assert manifest["steps"] == manifest["max_steps"] > 0

    claim = f"initializer-{run.name}"
    inputs = f"/claims/{INPUTS_CLAIM}"
    adapter = f"/claims/{claim}/output"
    command = ["python", f"{inputs}/ask.py", "--model", f"{inputs}/model", "--data", f"{inputs}/elements.jsonl"]
    scores = json.loads(reader.run([*command, "--adapter", adapter, "--json"], [INPUTS_CLAIM, claim]))
    assert scores["right_before"] <= 0.1 * scores["questions"]
    assert scores["right_after"] >= 0.8 * scores["questions"]
