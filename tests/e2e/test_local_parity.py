"""`stoker local` does with a TrainJob what the cluster does: the same plans, restarts and end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from e2e.conftest import ROOT
from e2e.kube import Kube, condition
from e2e.trainjobs import RUNTIME, Run, trainjob
from lint.snippets import trainjobs

RELEASE = "catalogue-examples"
SubmitTogether = Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Run]]

# The TrainJobs that most people copy first, and one with samplers.
FIRST = ("README.md", "examples/sft-lora/", "examples/async-grpo/trainjob.yaml")
# What is each side's own: names of attempts, what was built, where the last words go, and what is made of these.
OWN = ("hash", "job_id", "run_id", "image_version", "termination_log")
ADDRESSES = ("master_addr", "master_port")
# With what code a container ends, by the attempt; with 0 in all others.
ENDINGS = {
    "crash-once": {0: 70},
    "crash-always": dict.fromkeys(range(9), 70),
    "stop-twice": {0: 75, 1: 75},
    "odd-code": {0: 137},
    "bad-data": {0: 65},
    "wrong-flag": {0: 64},
    "stop-then-configuration": {0: 75, 1: 78},
}
PROGRAM = """
import json, os, sys
sys.exit(json.loads(sys.argv[1]).get(os.environ["STOKER_RESTART_ATTEMPT"], 0))
"""


@dataclass(frozen=True)
class Local:
    """What a local run did.

    Attributes:
        code: how it ended.
        output: what it printed.
    """

    code: int
    output: str

    def log(self, node: int) -> str:
        """Return what one node printed."""
        lines = self.output.splitlines()
        return "\n".join(line.removeprefix(f"[node-{node}] ") for line in lines if line.startswith(f"[node-{node}] "))

    @property
    def attempts(self) -> list[int]:
        """With what code each attempt ended."""
        return [
            int(found[1]) for found in re.finditer(r"^\[stoker\] attempt \d+: .* ended with (\d+)", self.output, re.M)
        ]


@pytest.fixture(scope="module")
def runtimes(
    kube: Kube,
    catalogue: Callable[[], None],
    helm: Callable[..., str],
    chart: list[str],
    catalogue_values: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Path]:
    """The runtimes that the examples name, in the cluster, and as they are there in a folder of files."""
    folder = tmp_path_factory.mktemp("runtimes")
    names = {str(job["spec"]["runtimeRef"]["name"]) for job in trainjobs().values()} | {RUNTIME}
    small = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "3Gi"}}
    more = {name: {"enabled": name != RUNTIME, "resources": small} for name in names}
    (folder / "values.yaml").write_text(yaml.safe_dump({"runtimes": more}))
    words = [*chart, *catalogue_values, "--values", str(folder / "values.yaml"), "--namespace", "stoker-system"]
    helm("upgrade", "--install", RELEASE, *words, "--create-namespace", "--wait")
    for name in names:
        (folder / f"{name}.json").write_text(json.dumps(kube.get("clustertrainingruntime", name)))
    yield folder
    helm("uninstall", RELEASE, "--namespace", "stoker-system", "--ignore-not-found")


@pytest.fixture
def local(runtimes: Path, tmp_path: Path) -> Callable[..., Local]:
    """Runs a TrainJob on this machine."""

    def run(job: Mapping[str, Any], volumes: Mapping[str, Path] = MappingProxyType({})) -> Local:
        path = tmp_path / "trainjob.yaml"
        path.write_text(json.dumps(job))
        runtime = runtimes / f"{job['spec']['runtimeRef']['name']}.json"
        words = [word for name, folder in volumes.items() for word in ("--volume", f"{name}={folder}")]
        # A runtime with samplers wants vLLM, which a job that only plans never starts.
        vllm = tmp_path / "bin/vllm"
        vllm.parent.mkdir(exist_ok=True)
        vllm.write_text("#!/bin/sh\nexit 1\n")
        vllm.chmod(0o755)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "stoker", "local", str(path), "--runtime", str(runtime)),
                *("--workspace", str(tmp_path / "workspace"), *words),
            ],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "runner/src"),
                "PATH": f"{vllm.parent}:{os.environ['PATH']}",
            },
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return Local(done.returncode, done.stdout)

    return run


def planned(number: int, example: Mapping[str, Any]) -> dict[str, Any]:
    """Return an example's TrainJob with its plan in the place of its run; its words are kept.

    Its resources are the runtime's: no node of the tests has GPUs. Here all runtimes are for all namespaces.
    """
    trainer = {key: value for key, value in example["spec"].get("trainer", {}).items() if key != "resourcesPerNode"}
    # By it these tests find the runner; no plan shows it.
    trainer["env"] = [entry for entry in trainer.get("env", ()) if entry["name"] != "PYTHONPATH"]
    command = trainer.get("command", ["stoker", "run"])
    assert command[:2] == ["stoker", "run"], "say here how to ask for the plan of another command"
    spec = {key: value for key, value in example["spec"].items() if key != "initializer"}
    told = {**trainer, "command": ["stoker", "plan", "--output", "json", *command[2:]]}
    spec |= {"runtimeRef": {"name": example["spec"]["runtimeRef"]["name"]}, "trainer": told}
    return {**example, "metadata": {"name": f"plan-{number}"}, "spec": spec}


@pytest.fixture(scope="module")
def examples(
    request: pytest.FixtureRequest, runtimes: Path, submit_together: SubmitTogether, kube: Kube
) -> Mapping[str, tuple[dict[str, Any], Run]]:
    """Every TrainJob to copy that a test of this session asks for, with its run on the cluster."""
    asked = {
        str(item.callspec.params["where"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and "examples" in item.fixturenames
    }
    jobs = {where: planned(number, trainjobs()[where]) for number, where in enumerate(sorted(asked))}
    # A plan needs the claims that a job mounts, not what is in them.
    for name in set(re.findall(r'"claimName": "([^"]+)"', json.dumps(jobs))):
        if kube.get("persistentvolumeclaim", name) is None:
            kube.create_claim(name)
    runs = submit_together(list(jobs.values()))
    return {where: (job, runs[job["metadata"]["name"]]) for where, job in jobs.items()}


@pytest.mark.parametrize(
    "where", [pytest.param(where, marks=() if where.startswith(FIRST) else pytest.mark.full) for where in trainjobs()]
)
def test_an_example_has_the_same_plans_here_and_on_the_cluster(
    examples: Mapping[str, tuple[dict[str, Any], Run]], local: Callable[..., Local], tmp_path: Path, where: str
) -> None:
    job, run = examples[where]
    volumes, mounts = {}, {"/workspace": tmp_path / "workspace"}
    for name, path in patched_mounts(job).items():
        volumes[name] = mounts[path] = tmp_path / name
        volumes[name].mkdir()
    here = local(job, volumes)
    assert here.code == 0, here.output
    run.wait_complete()
    pods = run.pods()
    assert pods
    for rank, pod in enumerate(pods):
        there = run.kube.logs(pod["metadata"]["name"])
        assert comparable(there, {}) == comparable(here.log(rank), mounts)


def patched_mounts(job: Mapping[str, Any]) -> dict[str, str]:
    """Return where a TrainJob mounts volumes of its own into its nodes, by the volumes' names."""
    return {
        mount["name"]: mount["mountPath"]
        for patch in job["spec"].get("runtimePatches", ())
        for patched in patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        for container in patched["template"]["spec"]["template"].get("spec", {}).get("containers", ())
        for mount in container.get("volumeMounts", ())
    }


def comparable(printed: str, mounts: Mapping[str, Path]) -> dict[str, Any]:
    """Return a plan without what may differ: paths, addresses and this machine's facts, and each side's own names."""
    for path, folder in mounts.items():
        printed = printed.replace(str(folder), path)
    plan: dict[str, Any] = json.loads(re.sub(r"runs as UID \d+, GID \d+", "runs as UID 0, GID 0", printed))
    for name in OWN:
        assert plan.pop(name) is not None
    world = plan["world"]
    for name in ADDRESSES:
        assert world.pop(name)
    world["settings"] = [setting for setting in world["settings"] if setting["name"] not in ADDRESSES]
    plan["torchrun_argv"] = [word for word in plan["torchrun_argv"] if not word.startswith("--master-")]
    return plan


@pytest.fixture(scope="module")
def endings(submit_together: SubmitTogether) -> Mapping[str, tuple[dict[str, Any], Run]]:
    """Jobs that end in each way, on the cluster."""
    jobs = {name: ending(name) for name in ENDINGS}
    runs = submit_together(list(jobs.values()))
    return {name: (job, runs[name]) for name, job in jobs.items()}


def ending(name: str) -> dict[str, Any]:
    """Return a TrainJob of one node that ends as its name says."""
    codes = json.dumps({str(attempt): code for attempt, code in ENDINGS[name].items()})
    return trainjob(name, [codes], nodes=1, command=["python", "-c", PROGRAM])


@pytest.mark.full
@pytest.mark.parametrize("name", ENDINGS)
def test_a_job_is_restarted_and_ends_here_as_on_the_cluster(
    endings: Mapping[str, tuple[dict[str, Any], Run]], local: Callable[..., Local], name: str
) -> None:
    job, run = endings[name]
    here = local(job)
    there = run.wait_ended()
    assert (here.code == 0) == (condition(there, "Complete") is not None), here.output
    restarts = run.restarts()
    assert len(here.attempts) - 1 == restarts.total, here.output
    counted = [code for code in here.attempts[: restarts.total] if code != 75]
    assert len(counted) == restarts.counted
    if here.code:
        ((code, _),) = run.endings()
        assert here.code == code
