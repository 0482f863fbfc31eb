"""Runs of asynchronous GRPO on the cluster: the example's TrainJob, on a runtime whose samplers fit beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import pytest
import yaml
from runner.tests.integration.environments import environment, made_once
from runner.tests.rollout_history import Trained

from e2e.kube import Kube, condition, uid_of
from e2e.registry import Image
from e2e.trainjobs import Reader, Run

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/async-grpo"
NAME = "async-grpo"
RELEASE, CLAIM = "async-grpo", "async-grpo-inputs"
VALUES = {
    "runtimes": {
        "trl-distributed": {"enabled": False},
        "trl-grpo-async": {
            "enabled": True,
            # Both samplers and both trainers fit on two cores.
            "samplers": {
                "maxCount": 3,
                "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "4Gi"}},
                "sharedMemory": "256Mi",
                "args": {"enforce-eager": True, "max-num-seqs": "64"},
                "env": {"OMP_NUM_THREADS": "1"},
            },
        },
    }
}
# The flags of a run that can be held, long enough for a sampler to start anew meanwhile.
HOLDING = {"reward_funcs": "held_rewards:right_sum", "reward_seconds": "1200"}
# The example's reward, which rewards nothing once as many steps are done as a file of the workspace says.
HOLD = "hold"
HELD_REWARDS = f"""
import pathlib, time
import rewards

def is_held():
    try:
        steps = int(pathlib.Path("/workspace/{HOLD}").read_text())
        return pathlib.Path("/workspace/output/metrics.jsonl").read_text().count('"reward":') >= steps
    except FileNotFoundError:
        return False

def right_sum(completions, answer, **more):
    while is_held():
        time.sleep(0.05)
    return rewards.right_sum(completions, answer, **more)
"""
# In a folder of PYTHONPATH, it gives each version that is published no effect: samplers write as the base model does.
UNPUBLISHED = """
import os

if "RANK" in os.environ:
    from stoker.serve.adapters import live

    publish = live.publish

    def without_effect(folder, name, number, write, base_model):
        def written(draft):
            from safetensors.torch import load_file, save_file

            write(draft)
            path = draft / "adapter_model.safetensors"
            weights = load_file(path)
            save_file({key: 0 * value if "lora_B" in key else value for key, value in weights.items()}, path)

        return publish(folder, name, number, written, base_model)

    live.publish = without_effect
"""
# Two groups in a step make it possible to see all that was trained. The last of a flag counts.
BOUND = 2
SMALL = {
    "per_device_train_batch_size": "8",
    "max_staleness": str(BOUND),
    "save_steps": "5",
    **HOLDING,
}
# A run that lasts longer than any test.
ENDLESS = {**SMALL, "per_device_train_batch_size": "16", "max_steps": "1000"}
WITHOUT_PUBLISHING = {"PYTHONPATH": "/inputs:/inputs/unpublished"}


def wanted(steps: int) -> Trained:
    """Return what so many small steps are to train."""
    return Trained(steps=steps, groups=2, samples=8, rows=100, staleness=BOUND)


class SubmitsSums(Protocol):
    """Submits the example's TrainJob."""

    def __call__(
        self,
        flags: Mapping[str, str],
        *,
        name: str = NAME,
        env: Mapping[str, str] | None = None,
        runtime: str = "",
        suspend: bool = False,
    ) -> SumsRun:
        """Submit it with more flags and variables, under a name, to another runtime if one is named, or suspended."""


class SumsRun(Run):
    """A run of the example.

    Args:
        kube: its namespace.
        name: its name.
        reader: reads its claim.
    """

    def __init__(self, kube: Kube, name: str, reader: Reader) -> None:
        super().__init__(kube, name)
        self._reader = reader

    def samplers(self, ended: bool = False) -> list[dict[str, Any]]:
        """Return the pods of its samplers by index: those that serve or will, and those that ended if asked for."""
        selector = f"jobset.sigs.k8s.io/jobset-name={self.name},stoker.dev/role=sampler"
        pods = [pod for pod in self.kube.items("pods", selector) if ended or _is_there(pod)]
        return sorted(pods, key=lambda pod: int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]))

    def ready_since(self, count: int, seconds: float = 600) -> datetime:
        """Wait until so many nodes and samplers are Ready; return when the last of them was, by the cluster's clock.

        Raises:
            AssertionError: they were not in time.
        """

        def ready() -> list[datetime] | None:
            found = [condition(pod, "Ready") for pod in (*self.pods(), *self.samplers())]
            times = [datetime.fromisoformat(one["lastTransitionTime"]) for one in found if one]
            return times if len(times) == len(found) == count else None

        return max(self.kube.until(f"{count} pods of {self.name} to be Ready", ready, seconds))

    def stepped(self) -> datetime:
        """Return when its first node has logged a step for the first time since it started: by the node's clock."""
        node = self.pods()[0]["metadata"]["name"]
        said = self.kube.kubectl("logs", node, "--container", "node", "--timestamps").stdout
        return datetime.fromisoformat(next(line for line in said.splitlines() if "'loss'" in line).partition(" ")[0])

    def shown(self) -> dict[str, float]:
        """Return the numbers in the TrainJob's status; none while it has none."""
        status = self.object().get("status", {}).get("trainerStatus") or {}
        return {metric["name"]: float(metric["value"]) for metric in status.get("metrics", ())}

    def text(self, path: str) -> str:
        """Return a file of its workspace."""
        return self.read(path, self._reader)

    def metrics(self) -> list[dict[str, Any]]:
        """Return what it wrote of each step."""
        return [line for line in lines_of(self.text("output/metrics.jsonl")) if "reward" in line]

    def hold(self, steps: int = 0) -> None:
        """Let no answer be rewarded once so many steps are done, so that the run waits, if its flags are `HOLDING`.

        Its first node runs. That is so long before its first step, because samplers must be ready for that.
        """
        self.kube.until(f"{self.name}: a node", self.runs, 900)
        self._execute("sh", "-c", f"cd /workspace && echo {steps} > {HOLD}-new && mv {HOLD}-new {HOLD}")

    def runs(self, but: str = "") -> bool:
        """Return whether its first node runs, in another pod than that with a uid, if one is named."""
        pods = self.pods()
        return bool(pods) and pods[0]["status"].get("phase") == "Running" and uid_of(pods[0]) != but

    def release(self) -> None:
        """Let answers be rewarded again."""
        self._execute("rm", "-f", f"/workspace/{HOLD}")

    def keep_full(self, folder: str) -> None:
        """Leave no room on the disk of a folder of its workspace until its first node ends.

        Whatever is removed from the disk meanwhile leaves none either.
        """
        fill = f"dd if=/dev/zero of=/workspace/{folder}/filler bs=4k oflag=append conv=notrunc"
        self._execute("sh", "-c", f"{fill}; while sleep 0.05; do {fill}; done > /dev/null 2>&1 &")

    def _execute(self, *command: str) -> None:
        """Run a command in its first node: at once, where a pod of our own would take some steps to start."""
        self.kube.kubectl("exec", self.pods()[0]["metadata"]["name"], "--container", "node", "--", *command)

    def flaws(self, wanted: Trained) -> list[str]:
        """Return what is wrong with what it has trained in all its attempts, and with what it left."""
        metrics, samples = (
            "\n".join(json.dumps(line) for line in lines_of(self.text(f"output/{name}.jsonl")))
            for name in ("metrics", "samples")
        )
        state = json.loads(self.text(f"output/checkpoint-{wanted.steps}/rollouts.json"))
        return [*wanted.flaws(metrics, samples, state), *(f"{version} is left" for version in self.versions())]

    def replicas(self, since: int) -> set[str]:
        """Return the host names of the samplers that wrote what was trained from a step on."""
        shown = [line for line in lines_of(self.text("output/samples.jsonl")) if line["step"] >= since]
        return {host_of(sample) for line in shown for sample in line["samples"]}

    def first_version(self, host: str) -> int:
        """Return the oldest version with which a sampler, by its host name, wrote what was trained.

        Raises:
            AssertionError: it wrote nothing of it.
        """
        shown = [sample for line in lines_of(self.text("output/samples.jsonl")) for sample in line["samples"]]
        versions = [sample["version"] for sample in shown if host_of(sample) == host]
        assert versions, f"{host} wrote nothing that was trained"
        return int(min(versions))

    def versions(self) -> list[str]:
        """Return the versions of its adapter that lie in the samplers' folder, whole or half written."""
        claim = f"initializer-{self.name}"
        words = ["find", f"/claims/{claim}/adapters", "-mindepth", "2", "-maxdepth", "2", "-name"]
        found = [self._reader.run([*words, pattern], [claim]) for pattern in ("[0-9]*", ".draft-*")]
        return [line for text in found for line in text.splitlines()]


def best(rewards: Sequence[float]) -> float:
    """Return the highest mean reward of ten steps in a row."""
    return max(fmean(rewards[start : start + 10]) for start in range(len(rewards) - 9))


def _is_there(pod: Mapping[str, Any]) -> bool:
    going = pod["metadata"].get("deletionTimestamp") is not None
    return not going and pod["status"].get("phase") in ("Pending", "Running")


def host_of(sample: Mapping[str, Any]) -> str:
    """Return the host name of the sampler that wrote a sample."""
    return str(sample["replica"]).partition(".")[0]


def lines_of(text: str) -> list[dict[str, Any]]:
    """Return the objects in a text with one in each line; a pod's log may have other lines."""
    return [json.loads(line) for line in text.split("\n") if line.startswith("{")]


Installs = Callable[..., None]
"""Installs a release of the catalogue for runs of the tests' namespace: its name, values, and files of more values."""


@pytest.fixture(scope="module")
def install_catalogue(
    helm: Callable[..., str], chart: list[str], kube: Kube, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installs]:
    """Installs releases of the catalogue, which go when the module ends."""
    names: list[str] = []

    def install(name: str, values: Mapping[str, Any], *files: Path) -> None:
        names.append(name)
        own = tmp_path_factory.mktemp("values") / f"{name}.yaml"
        own.write_text(yaml.safe_dump({**values, "namespaces": [kube.namespace]}))
        told = (Path(__file__).with_name("values.yaml"), *files, own)
        helm(
            "upgrade", "--install", name, *chart, *(word for file in told for word in ("--values", str(file))),
            "--namespace", kube.namespace, "--wait",
        )  # fmt: skip

    yield install
    for name in names:
        helm("uninstall", name, "--namespace", kube.namespace, "--ignore-not-found")


@pytest.fixture(scope="module")
def sampler_runtime(install_catalogue: Installs, image: Image, serving_images: Mapping[str, Image]) -> None:
    """The runtime with samplers, in a release of its own."""
    images = {name: one.values for name, one in {**serving_images, "trl": image}.items()}
    install_catalogue(RELEASE, {**VALUES, "images": images})


@pytest.fixture(scope="package")
def sums(kube: Kube, reader: Reader) -> None:
    """The claim with a base model that hesitates, the sums and their reward."""
    if kube.get("persistentvolumeclaim", CLAIM) is None:  # the plans of the examples may have been asked for before
        kube.create_claim(CLAIM)
    reader.write(CLAIM, "rewards.py", (EXAMPLE / "rewards.py").read_text())
    reader.write(CLAIM, "held_rewards.py", HELD_REWARDS)
    reader.write(CLAIM, "unpublished/sitecustomize.py", UNPUBLISHED)
    reader.copy(made_once("trl", environment("trl"), EXAMPLE / "adding_model.py", "--output"), CLAIM)


@pytest.fixture(scope="package")
def thorough(kube: Kube, reader: Reader, sums: None) -> dict[str, str]:
    """The flags of a base model on the same claim that has learnt for longer: LoRA has more to bring out of it."""
    options = ("--steps", "3000", "--right", "0.5", "--output")
    made = made_once("trl", environment("trl"), EXAMPLE / "adding_model.py", *options)
    reader.write(CLAIM, "thorough/README", "A base model.")  # makes the folder
    reader.copy(made / "model", CLAIM, "thorough")
    return {"model_name_or_path": "/inputs/thorough"}


def example_trainjob(runtime: str, flags: Mapping[str, str]) -> dict[str, Any]:
    """Return the example's TrainJob for one node and a runtime, with more flags; the last of a flag counts."""
    made: dict[str, Any] = yaml.safe_load((EXAMPLE / "trainjob.yaml").read_text())
    made["spec"]["runtimeRef"]["name"] = runtime
    trainer = made["spec"]["trainer"]
    trainer["numNodes"] = 1
    trainer["args"] += [f"--{flag}={value}" for flag, value in flags.items()]
    return made


@pytest.fixture
def submit_sums(kube: Kube, sampler_runtime: None, sums: None, reader: Reader) -> Iterator[SubmitsSums]:
    """Submits the example's TrainJob with other flags; it is deleted when the test ends."""
    runs: list[Run] = []

    def create(
        flags: Mapping[str, str],
        *,
        name: str = NAME,
        env: Mapping[str, str] | None = None,
        runtime: str = "",
        suspend: bool = False,
    ) -> SumsRun:
        trainjob = yaml.safe_load((EXAMPLE / "trainjob.yaml").read_text())
        trainjob["metadata"]["name"] = name
        trainjob["spec"]["runtimeRef"]["name"] = runtime or trainjob["spec"]["runtimeRef"]["name"]
        trainjob["spec"]["suspend"] = suspend
        trainer = trainjob["spec"]["trainer"]
        told = {entry["name"]: entry["value"] for entry in trainer["env"]} | dict(env or {})
        trainer["env"] = [{"name": key, "value": value} for key, value in told.items()]
        trainer["args"] += [f"--{flag}={value}" for flag, value in flags.items()]
        run = SumsRun(kube, name, reader)
        run.delete()
        runs.append(run)
        kube.create(trainjob)
        return run

    yield create
    for run in runs:
        run.delete()
