"""`stoker local` runs whole TrainJobs of asynchronous GRPO: trainers, samplers with real vLLM, tools and rewards."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from runner.tests.integration.environments import made_once
from runner.tests.integration.jobs import Ended, leftovers

from builders import replicated_jobs, trainjob
from stoker.cluster.processes import free_ports
from stoker.rollouts.classify import RewardModel
from stoker.rollouts.rewards import Judges

pytestmark = pytest.mark.full  # needs vLLM's and the trainer's environments on this machine

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/async-grpo"
HERE = Path(__file__).parent
# On a busy machine.
PATIENCE_SECONDS = 3600.0


@pytest.fixture(scope="module")
def vllm() -> Path:
    """The Python of an environment with vLLM."""
    made = subprocess.run([ROOT / "images/vllm/venv"], check=True, stdout=subprocess.PIPE, text=True)
    return Path(made.stdout.strip()) / "bin" / "python"


class Local:
    """Runs TrainJobs with samplers.

    Args:
        folder: gets everything.
        trl: the Python with the trainers.
        vllm: the Python with vLLM.
    """

    def __init__(self, folder: Path, trl: Path, vllm: Path) -> None:
        self.folder, self.workspace = folder, folder / "workspace"
        self.output = self.workspace / "output"
        self.trl, self._vllm = trl, vllm
        runtime = yaml.safe_load((ROOT / "examples/runtimes/trl-grpo-async-cpu.yaml").read_text())
        (samplers,) = (job for job in replicated_jobs(runtime) if job["name"] == "sampler")
        (container,) = samplers["template"]["spec"]["template"]["spec"]["containers"]
        # To compile the model takes longer than these runs.
        container["args"] += ["--enforce-eager", "--max-num-seqs=32"]
        self._job, self._made = samplers["template"]["spec"], runtime
        self._runtime = folder / "runtime.yaml"

    def run(self, manifest: Path, *options: str, samplers: int = 2) -> Ended:
        """Run a TrainJob to its end."""
        self._job |= {"parallelism": samplers, "completions": samplers}
        # Not as YAML: in that, PyYAML and Kubernetes read a bare 1e-5 differently.
        self._runtime.write_text(json.dumps(self._made))
        told: list[str | Path] = ["-m", "stoker", "local", manifest, "--runtime", self._runtime]
        told += ["--workspace", self.workspace, "--python", f"vllm={self._vllm}", *options]
        environ = {
            **os.environ, "HOME": str(self.folder), "TMPDIR": str(self.folder), "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        log = self.folder / "log"
        with log.open("wb") as stream:
            process = subprocess.Popen([self.trl, *told], env=environ, stdout=stream, stderr=subprocess.STDOUT)
            try:
                code = process.wait(PATIENCE_SECONDS)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait(120)
        return Ended(code, log.read_text(errors="replace"))

    def metrics(self) -> list[dict[str, Any]]:
        """Return the numbers of every step."""
        return [json.loads(line) for line in (self.output / "metrics.jsonl").read_text().splitlines()]

    def written(self, name: str) -> dict[str, Any]:
        """Return what a file of the output holds."""
        found: dict[str, Any] = json.loads((self.output / name).read_text())
        return found

    def samples(self) -> list[dict[str, Any]]:
        """Return the samples that the run shows."""
        groups = [json.loads(line) for line in (self.output / "samples.jsonl").read_text().splitlines()]
        return [sample for group in groups for sample in group["samples"]]


@pytest.fixture
def local(tmp_path: Path, trainer_python: Path, vllm: Path) -> Iterator[Local]:
    """Runs TrainJobs. Fails the test if a process outlives them."""
    yield Local(tmp_path, trainer_python, vllm)
    assert leftovers(tmp_path) == []


def test_the_values_of_kubetorchs_example_run_to_their_end(local: Local) -> None:
    inputs = made_once("trl", local.trl, EXAMPLE / "adding_model.py", "--words", "--output")
    ended = local.run(EXAMPLE / "trainjob-kubetorch.yaml", "--volume", f"inputs={inputs}")
    assert ended.code == 0, ended.output[-5000:]
    manifest = local.written("stoker.json")
    # Two epochs of 100 rows, two of them in a step.
    assert (manifest["status"], manifest["world_size"], manifest["steps"]) == ("finished", 2, 100)
    steps = local.metrics()
    assert [line["step"] for line in steps] == list(range(1, 101))
    assert max(line["staleness/max"] for line in steps) <= 5
    assert 0.8 < steps[-1]["rollout/length_bias"] < 1.25, "long answers are trained as short ones are"
    assert {line["publish/version"] % 5 for line in steps if "publish/version" in line} == {0}
    assert {reward for sample in local.samples() for reward in sample["rewards"]} == {1.0, -0.2}
    assert not any(name.startswith("sampling/importance") for name in steps[-1]), "nothing is corrected"
    state = local.written("checkpoint-100/rollouts.json")
    assert (state["frontier"], state["above"]) == (200, []), "each row once per epoch"
    adapter = local.written("adapter_config.json")
    assert (adapter["r"], adapter["lora_alpha"], adapter["lora_dropout"]) == (16, 32, 0.1)
    attention, network = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
    assert {*adapter["target_modules"]} == {*attention, *network}


def test_a_policy_calls_the_tools_of_its_environment(local: Local) -> None:
    shutil.copytree(made_once("trl", local.trl, HERE / "tool_inputs.py"), local.workspace)
    flags = {
        "environment_factory": "mine:Counter",
        "tools": "mine:twice",
        "max_steps": "4",
        "num_generations": "4",
        "per_device_train_batch_size": "8",
        "max_completion_length": "160",
        "max_staleness": "2",
        "guard_every": "1",
        "learning_rate": "1e-3",
    }
    manifest = local.folder / "trainjob.yaml"
    env = [{"name": "PYTHONPATH", "value": "/workspace"}]
    args = [f"--{name}={value}" for name, value in flags.items()]
    manifest.write_text(json.dumps(trainjob(runtime="trl-grpo-async", args=args, env=env)))
    ended = local.run(manifest, samplers=1)
    assert ended.code == 0, ended.output[-5000:]
    steps = local.metrics()
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert min(line["rollout/turns"] for line in steps) > 2, "it calls, hears and calls again"
    assert max(line["rollout/tools/failures"] for line in steps) < 0.5
    assert min(line["rollout/branches"] for line in steps) == 0
    assert min(line["rewards/Counter/mean"] for line in steps) > 4
    # What tools say is not the policy's: the guard compares the rest token by token, between vLLM and the trainer.
    assert max(line["guard/error"] for line in steps) < 0.05
    texts = [sample["text"] for sample in local.samples()]
    assert any("Now " in text and "\n10\n" in text for text in texts), texts[:3]


@pytest.fixture
def reward_model(vllm: Path, trainer_python: Path, inputs: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a vLLM with a reward model; it may still be starting."""
    script, folder = HERE / "reward_model.py", tmp_path / "model"
    subprocess.run([trainer_python, script, "write", inputs / "model", folder], check=True)
    (port,) = free_ports(1)
    own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    flags = ["--host=127.0.0.1", f"--port={port}", "--dtype=float32", "--enforce-eager", "--served-model-name=judge"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [vllm.with_name("vllm"), "serve", folder, *flags],
            env={**os.environ, **own, "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    yield f"http://127.0.0.1:{port}?model=judge"
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(120)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def scored(python: Path, folder: Path, texts: Sequence[str]) -> list[float]:
    """Return what transformers says of texts."""
    script = HERE / "reward_model.py"
    done = subprocess.run([python, script, "score", folder, *texts], check=True, stdout=subprocess.PIPE)
    found: list[float] = json.loads(done.stdout)
    return found


def test_a_reward_model_of_vllm_judges_as_transformers_does(
    reward_model: str, trainer_python: Path, tmp_path: Path
) -> None:
    judges, told = Judges([reward_model], None, (), 900.0), list[str]()
    began = time.monotonic()
    judges.check("1+2=", told.append)
    assert told, f"it was waited for, {time.monotonic() - began:.0f} s"
    assert judges.names == ["judge"]
    answers = ["3", "4", "1234567"]
    model = RewardModel(reward_model, 60.0)
    texts = asyncio.run(model.score(["1+2="] * 3, answers))
    expected = scored(trainer_python, tmp_path / "model", [f"1+2={answer}" for answer in answers])
    assert texts == pytest.approx(expected, abs=1e-2)
    assert len({*texts}) == 3
    # The tiny model's chat template is the text of the messages, one after the other.
    prompt = [{"role": "user", "content": "1+2="}]
    messages = [[{"role": "assistant", "content": answer}] for answer in answers]
    assert asyncio.run(RewardModel(reward_model, 60.0).score([prompt] * 3, messages)) == pytest.approx(texts, abs=1e-2)
