"""TrainJobs with TorchTune run by `stoker local`, on the model of tiny_torchtune.py."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import yaml
from runner.tests.integration.jobs import LocalJob

from builders import replicated_jobs

ROOT = Path(__file__).parents[3]
# The catalogue on CPU nodes, as the chart renders it.
CATALOGUE = ROOT / "tests/charts/golden/training-runtimes/cpu.yaml"
TINY_LLAMA = Path(__file__).with_name("tiny_torchtune.py")
FULL = "torchtune.models.llama3_2.llama3_2"
LORA = "torchtune.models.llama3_2.lora_llama3_2"
# The model of tiny_torchtune.py.
SIZE = {
    "VOCAB_SIZE": "272",
    "NUM_LAYERS": "2",
    "NUM_HEADS": "4",
    "NUM_KV_HEADS": "2",
    "EMBED_DIM": "64",
    "MAX_SEQ_LEN": "256",
    "INTERMEDIATE_DIM": "128",
}


def make_tiny_llama(python: Path, folder: Path, *embed_dim: str) -> Path:
    """Fill the folder by tiny_torchtune.py, with TorchTune's Python, and return it."""
    subprocess.run([python, TINY_LLAMA, folder, *embed_dim], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return folder


class TuneJob(LocalJob):
    """A TrainJob on the CPU runtime for TorchTune."""

    runtime_name = "torchtune-distributed"

    def __init__(self, python: Path, inputs: Path, folder: Path) -> None:
        super().__init__(python, inputs, folder)
        rendered = yaml.safe_load_all(CATALOGUE.read_text())
        (manifest,) = (found for found in rendered if found and found["metadata"]["name"] == self.runtime_name)
        jobs = replicated_jobs(manifest)
        # What the initializers would fetch lies there already.
        (node,) = (job for job in jobs if job["name"] == "node")
        node.pop("dependsOn", None)
        jobs[:] = [node]
        self.runtime = folder / "runtime.yaml"
        self.runtime.write_text(yaml.safe_dump(manifest))

    @property
    def usual_args(self) -> list[str]:
        """Return nothing: each test names its recipe."""
        return []

    @property
    def usual_env(self) -> dict[str, str]:
        """The tiny model and its data, and a short epoch."""
        model, data = f"{self.inputs}/model", f"{self.inputs}/dataset"
        keys = {
            "CONFIG": "llama3_2/1B",
            **{f"MODEL__{name}": value for name, value in SIZE.items()},
            "CHECKPOINTER__CHECKPOINT_DIR": model,
            "TOKENIZER__PATH": f"{model}/original/tokenizer.model",
            "TOKENIZER__SPECIAL_TOKENS_PATH": f"{model}/tokenizer.json",
            "DATASET__SOURCE": data,
            "BATCH_SIZE": "2",
            "GRADIENT_ACCUMULATION_STEPS": "1",
            "MAX_STEPS_PER_EPOCH": "4",
        }
        return {f"STOKER_ARG_{name}": value for name, value in keys.items()}

    def losses(self, output: str) -> dict[int, float]:
        """Return the loss of every step that a run's output tells of."""
        return {int(step): float(loss) for step, loss in re.findall(r"step (\d+) of \d+: loss=(\S+)", output)}
