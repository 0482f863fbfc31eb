"""The main job: two pods on two nodes train a LoRA adapter that changes what the model answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from cluster import Cluster
from e2e.kube import Kube
from e2e.trainjobs import INPUTS_CLAIM, LORA_SFT, Reader, Run, trainjob

Submit = Callable[[Mapping[str, Any]], Run]

# Enough for the adapter to answer most of what it was shown.
UNTIL_IT_KNOWS = (
    *(word for word in LORA_SFT if not word.startswith(("--max_steps", "--save_steps", "--logging_steps"))),
    "--num_train_epochs=30",
    "--learning_rate=5e-3",
    "--lora_r=16",
    "--lora_alpha=32",
    "--per_device_train_batch_size=16",
    "--gradient_checkpointing=false",
    "--logging_steps=5",
    "--save_steps=100",
)


def test_two_pods_on_two_nodes_train_an_adapter_that_changes_the_answers(
    submit: Submit, reader: Reader, cluster: Cluster, kube: Kube
) -> None:
    run = submit(trainjob("main-job", UNTIL_IT_KNOWS))

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
    answers = json.loads(
        reader.run(
            [
                "python", f"{inputs}/ask.py", "--model", f"{inputs}/model", "--data", f"{inputs}/elements.jsonl",
                "--adapter", f"/claims/{claim}/output", "--json",
            ],
            [INPUTS_CLAIM, claim],
        ).splitlines()[-1]
    )  # fmt: skip
    assert answers["right_after"] > answers["right_before"]
    assert answers["right_after"] >= 0.5 * answers["asked"]
