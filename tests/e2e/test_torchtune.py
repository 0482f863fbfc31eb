"""TorchTune on the cluster: full fine-tuning, submitted by Kubeflow's SDK alone, and LoRA, on two pods each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from runner.tests.integration.tune_jobs import FULL, LORA, SIZE

from cluster import Cluster
from e2e.conftest import NAMESPACE, ROOT, Image
from e2e.kube import Kube
from e2e.trainjobs import INPUTS_CLAIM, Reader, Run, trainjob

RELEASE = "catalogue-torchtune"
RUNTIME = "torchtune-distributed"
# Of the models that Trainer knows by a runtime's name, it lets this one alone train on several nodes.
MANY_NODES = "torchtune-llama3.3-70b"
ONE_NODE = "torchtune-llama3.2-1b"
MODEL, DATA = "/inputs/tune/model", "/inputs/tune/dataset"
TINY_MODEL = ROOT / "runner/tests/integration/tiny_torchtune.py"
# The tiny model in the place of the one that the configuration names, as a runtime's defaults.
TINY = {
    **{f"model.{name.lower()}": value for name, value in SIZE.items()},
    "tokenizer.path": f"{MODEL}/original/tokenizer.model",
    "tokenizer.special_tokens_path": f"{MODEL}/tokenizer.json",
    "checkpointer.checkpoint_dir": MODEL,
    "dataset.source": DATA,
    "batch_size": "2",
    "gradient_accumulation_steps": "1",
    "max_steps_per_epoch": "3",
}
# Trainer takes these paths from the runtime's own command when it writes one for the SDK.
PATHS = [
    "output_dir=/workspace/output",
    f"tokenizer.path={MODEL}/original/tokenizer.model",
    f"checkpointer.checkpoint_dir={MODEL}",
]
# What the configuration of the 70B model has for its size.
SMALL = {
    "model._component_": FULL,
    "tokenizer.max_seq_len": "128",
    "checkpointer.checkpoint_files": "[model.safetensors]",
    "checkpointer.model_type": "LLAMA3_2",
    "dataset.packed": "False",
    # An output layer that is tied to the embeddings cannot be a shard of its own.
    "custom_sharded_layers": "[]",
}


@pytest.fixture(scope="module")
def tune_image(cluster: Cluster) -> Image:
    """The CPU image for TorchTune, built from this checkout and pushed."""
    command = [str(ROOT / "images/build"), "torchtune", "--accelerator", "cpu"]
    facts = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    cluster.push(Path(facts["oci"]), f"stoker-dev/torchtune:{facts['tag']}")
    return Image(f"{cluster.registry}/stoker-dev/torchtune", facts["tag"])


@pytest.fixture(scope="module")
def runtimes(
    helm: Callable[..., str], chart: list[str], tune_image: Image, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """TorchTune's runtimes of the catalogue, for a tiny model, in a release of their own."""
    small = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "3Gi"}}
    many = ["full_finetune_distributed", "--config", "llama3_3/70B_full_multinode", *PATHS]
    one = ["full_finetune_distributed", "--config", "llama3_2/1B_full", *PATHS]
    values = {
        "images": {"torchtune": {"repository": tune_image.repository, "tag": tune_image.tag}},
        "runtimes": {
            "trl-distributed": {"enabled": False},
            RUNTIME: {"enabled": True, "args": TINY},
            MANY_NODES: {"base": RUNTIME, "command": many, "args": {**TINY, **SMALL}},
            ONE_NODE: {
                "enabled": True,
                "command": one,
                "args": {**TINY, "model._component_": FULL},
                "resources": small,
            },
        },
    }
    path = tmp_path_factory.mktemp("tune") / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    common = str(Path(__file__).parent / "values.yaml")
    helm("upgrade", "--install", RELEASE, *chart, "--values", common, "--values", str(path),
         "--namespace", "stoker-system", "--create-namespace", "--wait")  # fmt: skip
    yield
    helm("uninstall", RELEASE, "--namespace", "stoker-system", "--ignore-not-found")


@pytest.fixture(scope="module")
def tune_inputs(kube: Kube, inputs: str, reader: Reader, tune_image: Image) -> str:
    """The claim with the tiny model and its data too."""
    reader.write(inputs, "tiny_torchtune.py", TINY_MODEL.read_text())
    folder = f"/claims/{inputs}"
    maker = Reader(kube, tune_image.reference, "tune-reader")
    maker.run(["python", f"{folder}/tiny_torchtune.py", f"{folder}/tune"], [inputs], seconds=300)
    return inputs


@pytest.fixture(scope="module")
def sdk_runs(
    cluster: Cluster, kube: Kube, catalogue: Callable[[], None], runtimes: None, tune_inputs: str
) -> Iterator[Callable[[str, str, int], Run]]:
    """Submits full fine-tuning with the SDK's BuiltinTrainer: name, runtime, nodes; deleted when the module ends."""
    runs = []

    def create(name: str, runtime: str, nodes: int) -> Run:
        run = Run(kube, name)
        run.delete()
        runs.append(run)
        script = Path(__file__).with_name("builtin_trainer.py")
        words = [sys.executable, str(script), name, runtime, str(nodes), NAMESPACE, INPUTS_CLAIM]
        done = cluster.run(words, check=False, capture_output=True)
        assert done.returncode == 0, done.stderr
        return run

    yield create
    for run in runs:
        run.delete()


@pytest.fixture(scope="module")
def runs(
    submit_together: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Run]],
    sdk_runs: Callable[[str, str, int], Run],
) -> Mapping[str, Run]:
    """A full and a LoRA run on two pods each, at once."""
    lora = ["lora_finetune_distributed", "--config", "llama3_2/1B", f"model={LORA}", "model.lora_rank=4", "epochs=2"]
    full = sdk_runs("tune-full", MANY_NODES, 2)
    return {"full": full, "lora": submit_together([trainjob("tune-lora", lora, runtime=RUNTIME)])["tune-lora"]}


@pytest.mark.parametrize("method", ["full", "lora"])
def test_torchtune_trains_on_two_pods_to_complete(runs: Mapping[str, Run], reader: Reader, method: str) -> None:
    run = runs[method]
    run.wait_complete(seconds=600)
    manifest = run.manifest(reader)
    found = (manifest["framework"], manifest["method"], manifest["world_size"], manifest["nodes"], manifest["steps"])
    assert found == ("torchtune", method, 2, 2, {"full": 3, "lora": 6}[method])
    files = {file["path"] for file in manifest["files"]}
    weights = {"full": "model-00001-of-00001.safetensors", "lora": "adapter_model.safetensors"}
    assert files & {*weights.values()} == {weights[method]}
    assert run.restarts().total == 0


def command_of(run: Run) -> list[str]:
    """Return the command of a run's pods, as Trainer wrote it."""
    containers = run.pods()[0]["spec"]["containers"]
    (node,) = (container for container in containers if container["name"] == "node")
    found: list[str] = node["command"]
    return found


def test_the_command_of_the_sdks_run_is_trainers(runs: Mapping[str, Run]) -> None:
    command = command_of(runs["full"])
    address = "--rdzv_endpoint=tune-full-node-0-0.tune-full:29500"
    assert command[:5] == ["tune", "run", address, "full_finetune_distributed", "--config"]
    assert set(PATHS) <= set(command)


@pytest.mark.full
def test_the_sdks_builtin_trainer_runs_on_one_pod(sdk_runs: Callable[[str, str, int], Run], reader: Reader) -> None:
    run = sdk_runs("tune-one", ONE_NODE, 1)
    run.wait_complete(seconds=600)
    assert command_of(run)[:3] == ["tune", "run", "full_finetune_single_device"]
    manifest = run.manifest(reader)
    assert (manifest["method"], manifest["world_size"], manifest["steps"]) == ("full", 1, 3)


@pytest.mark.full
def test_a_wrong_key_fails_the_run_at_once(
    submit: Callable[[Mapping[str, Any]], Run], runtimes: None, tune_inputs: str
) -> None:
    # `tune run` as Trainer leaves it alone: a recipe follows in the command itself.
    command = ["tune", "run", "lora_finetune_distributed", "--config", "llama3_2/1B"]
    run = submit(trainjob("tune-wrong", ["model.lora_rnak=4"], command=command, runtime=RUNTIME))
    run.wait_failed()
    assert {code for code, _ in run.endings()} == {64}
    assert run.restarts().total == 0
