"""What tests with TorchTune stand on: its image, its runtimes for a tiny model, and that model on the claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from runner.tests.integration.tune_jobs import FULL, SIZE

from cluster import Cluster
from e2e.kube import Kube
from e2e.registry import Image, push_image
from e2e.trainjobs import Reader

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.fixture(scope="package")
def tune_image(cluster: Cluster) -> Image:
    """The CPU image for TorchTune."""
    return push_image(cluster, "torchtune", "--accelerator", "cpu")


@pytest.fixture(scope="module")
def tune_runtimes(
    helm: Callable[..., str], chart: list[str], tune_image: Image, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """TorchTune's runtimes of the catalogue, for a tiny model, in a release of their own."""
    small = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "3Gi"}}
    many = ["full_finetune_distributed", "--config", "llama3_3/70B_full_multinode", *PATHS]
    one = ["full_finetune_distributed", "--config", "llama3_2/1B_full", *PATHS]
    values = {
        "images": {"torchtune": tune_image.values},
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


@pytest.fixture(scope="package")
def tune_inputs(kube: Kube, inputs: str, reader: Reader, tune_image: Image) -> str:
    """The claim with the tiny model and its data too."""
    reader.write(inputs, "tiny_torchtune.py", TINY_MODEL.read_text())
    folder = f"/claims/{inputs}"
    maker = Reader(kube, tune_image.reference, "tune-reader")
    maker.run(["python", f"{folder}/tiny_torchtune.py", f"{folder}/tune"], [inputs], seconds=300)
    return inputs
