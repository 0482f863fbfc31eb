"""Runs submitted from a config: by the real Kubeflow SDK, and by `stoker trainjob` with kubectl."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from cluster import Cluster
from e2e.conftest import ROOT
from e2e.kube import Kube
from e2e.trainjobs import Reader, Run, trainjob
from stoker.commands.main import main

PROGRAM = Path(__file__).parent / "sdk_user.py"
NOTEBOOK = ROOT / "examples/sdk/train_on_a_cluster.ipynb"
# What of the notebook is another here: a tiny model from a claim in place of one from the Hub.
HERE = {
    r'NAMESPACE = "default"': "NAMESPACE = {namespace!r}",
    r"max_length=512": "max_length=64",
    r"use_peft=True": "use_peft=True, model_name_or_path='/inputs/model', dataset_name='/inputs/dataset'",
    r'"max_steps": 20, "logging_steps": 5': "'max_steps': 4, 'logging_steps': 1",
    r"(?s)inputs = \{{.*?\n\}}": "from sdk_user import mounted\ninputs = {{'options': [mounted({claim!r})]}}",
}
# Neither run names the layers of its adapter: the recipe does.
LINEAR_LAYERS = {*("q_proj", "k_proj", "v_proj", "o_proj"), *("gate_proj", "up_proj", "down_proj")}


def adapted(manifest: Mapping[str, Any]) -> set[str]:
    """Return the names of the layers that a finished run's adapter is on."""
    return {name.rpartition(".")[2] for name in manifest["adapter"]["target_modules"]}


@pytest.fixture
def run(kube: Kube, catalogue: Callable[[], None], inputs: str) -> Iterator[Run]:
    """A TrainJob that a user's program submits; it is deleted with its claim when the test ends."""
    run = Run(kube, "sdk")
    run.delete()
    yield run
    run.delete()


def test_a_config_trains_on_two_pods_through_the_sdk(
    cluster: Cluster, kube: Kube, run: Run, inputs: str, reader: Reader
) -> None:
    done = cluster.run(
        [sys.executable, str(PROGRAM), kube.namespace, run.name, inputs],
        check=False,
        capture_output=True,
        env={"PYTHONPATH": str(ROOT / "runner/src")},
    )
    assert done.returncode == 0, f"{done.stderr}\n{kube.state()}"
    said = json.loads(done.stdout)
    # Found by the label alone: the program names no runtime.
    assert (said["runtimes"]["trl-distributed"], said["runtime"], said["on"]) == ("trl", "trl", "trl-distributed")
    assert (said["name"], said["status"], said["nodes"]) == (run.name, "Complete", 2)
    assert said["steps"] == ["node-0", "node-1"]
    assert "\n".join(said["log"]).count("'loss'") == 4
    assert "is labelled trainer.kubeflow.org/framework=trl, but TorchTuneConfig is for torchtune" in said["refused"]
    manifest = run.manifest(reader)
    assert (manifest["status"], manifest["steps"], manifest["world_size"]) == ("finished", 4, 2)
    assert adapted(manifest) == LINEAR_LAYERS


@pytest.fixture
def noted(kube: Kube, catalogue: Callable[[], None]) -> Iterator[Run]:
    """The TrainJob that the notebook submits; it is deleted with its claim when the test ends."""
    run = Run(kube, "from-a-notebook")
    run.delete()
    yield run
    run.delete()


@pytest.mark.full
def test_the_notebook_trains_and_brings_the_result(
    cluster: Cluster, kube: Kube, noted: Run, inputs: str, tmp_path: Path
) -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    for found, put in HERE.items():
        code, count = re.subn(found.format(), put.format(namespace=kube.namespace, claim=inputs), code)
        assert count == 1, found
    done = cluster.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT / 'runner/src'}:{PROGRAM.parent}"},
    )
    assert done.returncode == 0, f"{done.stderr}\n{kube.state()}"
    assert "from-a-notebook Complete" in done.stdout
    assert done.stdout.count("'loss'") == 4
    assert "finished 4 steps, adapter of rank" in done.stdout
    assert (tmp_path / "result" / "adapter_model.safetensors").exists()
    assert kube.get("trainjob", noted.name) is None, "the last cell deletes it"


@pytest.fixture
def printed() -> str:
    """What `stoker trainjob` prints."""
    words = "trainjob sft --name printed --nodes 2 --lora --model /inputs/model --dataset /inputs/dataset"
    settings = {"max_steps": "2", "learning_rate": "2e-4", "max_length": "64"}
    pairs = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    ended = CliRunner().invoke(main, [*words.split(), *pairs])
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_the_api_server_and_trainers_webhook_take_what_trainjob_prints(
    kube: Kube, catalogue: Callable[[], None], printed: str
) -> None:
    taken = kube.kubectl("apply", "--dry-run=server", "-f", "-", stdin=printed)
    assert "trainjob.trainer.kubeflow.org/printed created" in taken.stdout


@pytest.mark.full
def test_what_trainjob_prints_trains(submit: Callable[[Mapping[str, Any]], Run], reader: Reader, printed: str) -> None:
    manifest = yaml.safe_load(printed)
    # The tests' model and data lie on a claim of their own.
    manifest["spec"]["runtimePatches"] = trainjob("printed")["spec"]["runtimePatches"]
    run = submit(manifest)
    run.wait_complete()
    made = run.manifest(reader)
    assert (made["status"], made["steps"], made["world_size"]) == ("finished", 2, 2)
    assert adapted(made) == LINEAR_LAYERS
