"""The kill matrix on a real cluster: each job is restarted by the rule that fits, and does all its steps.

SIGTERM comes as users meet it: one of two pods is deleted, otherwise the pods are evicted, as a drain does. SIGKILL
comes from the node. The same cases with local processes are in runner/tests/integration/test_kills.py.
`make kill-matrix-cluster` runs every case and writes what it saw into docs/kill-matrix.md.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from runner.tests.integration.tune_jobs import FULL
from runner.tests.kill_matrix import CASES, Case, recorded

from e2e import tune
from e2e.conftest import asked_for
from e2e.kube import Kube
from e2e.registry import Image
from e2e.trainjobs import LORA_SFT, RUNTIME, Reader, Restarts, Run, trainjob
from stoker.rank.pulse import SAVING, TRAINING

WHERE = "as pods of a cluster"
# Jobs at a time: while one waits for its pods, another computes.
TOGETHER = 5
# On a busy machine a phase may pass unnoticed: `initializing` lasts for a tenth of a second.
TRIES = 8
STRIKER = Path(__file__).with_name("striker.py")


@dataclass(frozen=True)
class Training:
    """How a framework's jobs are run for the matrix.

    Attributes:
        runtime: the runtime's name.
        fixtures: what must be there, besides the catalogue and the inputs.
        args: arguments for so many steps, with several checkpoints on the way.
        steps: steps those arguments ask for.
    """

    runtime: str
    fixtures: tuple[str, ...]
    args: tuple[str, ...]
    steps: int


# Many saves, for each is a chance to be hit in one.
FRAMEWORKS = {
    "trl": Training(RUNTIME, (), (*LORA_SFT, "--max_steps=40", "--save_steps=5"), 40),
    "torchtune": Training(
        tune.RUNTIME,
        ("tune_runtimes", "tune_inputs"),
        (
            "full_finetune_distributed",
            "--config",
            "llama3_2/1B",
            f"model={FULL}",
            "epochs=12",
            "max_steps_per_epoch=10",
        ),
        120,
    ),
}
SIGTERM, SIGKILL = signal.SIGTERM, signal.SIGKILL
# For `make test`; the rest is for `make test-full`.
ALWAYS = {
    Case("trl", SIGTERM, TRAINING, "one of two"),
    Case("trl", SIGKILL, SAVING, "one pod"),
    Case("torchtune", SIGKILL, SAVING, "one pod"),
}


class MissedError(Exception):
    """A phase was over before it was noticed."""


class Striker:
    """A pod on a node that sees its processes.

    Args:
        kube: the namespace of the pod.
        node: the node.
        image: an image with the runner.
    """

    def __init__(self, kube: Kube, node: str, image: str) -> None:
        self.node = node
        self._kube = kube
        self._name = f"e2e-striker-{node}"
        self.delete()
        pod = {
            "restartPolicy": "Never",
            "hostPID": True,
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "striker",
                    "image": image,
                    "command": ["sleep", "infinity"],
                    "securityContext": {"privileged": True, "runAsUser": 0},
                }
            ],
        }
        kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": self._name}, "spec": pod})
        kube.kubectl("wait", "--for=condition=Ready", "--timeout=120s", f"pod/{self._name}")

    def strike(self, run: Run, case: Case, started: Callable[[], None], held: Callable[[], None]) -> None:
        """Hold the pods of a job in their phase, and hit them.

        Args:
            run: the job.
            case: what is to happen to it.
            started: called when the job may be created.
            held: called when the pods are in the phase.

        Raises:
            MissedError: the phase was over before it was noticed; nothing was done.
        """
        hit = ",".join(map(str, case.killed))
        words = [run.name, str(FRAMEWORKS[case.framework].steps), case.number.name, case.phase, hit]
        command = ["kubectl", "--namespace", self._kube.namespace, "exec", "--stdin", self._name, "--", "python", "-"]
        reading, writing = os.pipe()

        def execute() -> None:
            with os.fdopen(writing, "w") as said:
                self._kube.cluster.run(
                    [*command, *words], check=False, input=STRIKER.read_text(), stdout=said, stderr=said
                )

        with ThreadPoolExecutor(1) as pool, os.fdopen(reading) as said:
            ended = pool.submit(execute)
            lines = []
            for line in said:
                lines.append(line)
                {"watching": started, "held": held}.get(line.strip(), lambda: None)()
            ended.result()
            if "missed\n" in lines:
                raise MissedError
            assert "struck\n" in lines, "".join(lines)

    def delete(self) -> None:
        """Delete the pod."""
        self._kube.delete("pod", self._name)


@pytest.fixture(scope="module")
def strikers(kube: Kube, image: Image) -> Iterator[list[Striker]]:
    """One for each node that takes pods."""
    system = Kube(kube.cluster, "kube-system")
    nodes = [node for node in kube.items("nodes") if not node["spec"].get("taints")]
    found = [Striker(system, node["metadata"]["name"], image.reference) for node in nodes]
    yield found
    for striker in found:
        striker.delete()


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, kube: Kube, catalogue: Callable[[], None], inputs: str, strikers: list[Striker]
) -> Iterator[Mapping[Case, Future[Run]]]:
    """The job of each case that is asked for, to come: it is Complete or Failed then."""
    asked: list[Case] = asked_for(request, test_the_job_is_complete_with_all_its_steps, "case")
    for framework in {case.framework for case in asked}:
        for fixture in FRAMEWORKS[framework].fixtures:
            request.getfixturevalue(fixture)
    with ThreadPoolExecutor(TOGETHER) as pool:
        futures = {
            case: pool.submit(play, kube, strikers[number % len(strikers)], case) for number, case in enumerate(asked)
        }
        yield futures
        for future in futures.values():
            future.cancel()


def name_of(case: Case) -> str:
    """Return the name of a case's job."""
    return f"{case.framework}-{case.number.name.lower()}-{case.phase}-{case.target.replace(' ', '-')}"


def play(kube: Kube, striker: Striker, case: Case) -> Run:
    """Submit a case's job, have its pods hit, and wait for its end."""
    training = FRAMEWORKS[case.framework]
    run = Run(kube, name_of(case))
    # The striker sees the processes of one node.
    pod = {"nodeSelector": {"kubernetes.io/hostname": striker.node}}
    job = trainjob(run.name, training.args, nodes=case.nodes, runtime=training.runtime, pod=pod)
    for attempt in range(TRIES):
        run.delete()
        try:
            striker.strike(run, case, lambda: kube.create(job), lambda: lose(run, kube, case))
            break
        except MissedError:
            if attempt == TRIES - 1:
                raise
    run.wait_complete(seconds=900, every=3)
    return run


def lose(run: Run, kube: Kube, case: Case) -> None:
    """Take the pods away that are held in their phase, where the striker does not kill them."""
    if case.number is SIGKILL:
        return
    for pod in [run.pods()[index]["metadata"]["name"] for index in case.killed]:
        if case.target == "one of two":
            kube.delete("pod", pod, wait=False)
        else:
            evict(kube, pod)


def evict(kube: Kube, pod: str) -> None:
    """Evict a pod as a drain does."""
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": kube.namespace},
    }
    path = f"/api/v1/namespaces/{kube.namespace}/pods/{pod}/eviction"
    kube.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=str(c), marks=[] if c in ALWAYS else pytest.mark.full) for c in CASES]
)
def test_the_job_is_complete_with_all_its_steps(runs: Mapping[Case, Future[Run]], reader: Reader, case: Case) -> None:
    with recorded(case, WHERE) as record:
        run = runs[case].result()
        steps = FRAMEWORKS[case.framework].steps
        manifest = run.manifest(reader)
        assert (manifest["steps"], manifest["max_steps"], manifest["world_size"]) == (steps, steps, case.nodes)
        again = case.first_code != 0
        # Only a crash counts against maxRestarts.
        assert run.restarts() == Restarts(int(again), int(again and case.number is SIGKILL))
        assert manifest["attempt"] == int(again)
        assert (manifest["resumed_from"] is not None) == (again and case.begins_to_train)
        record.append(cell(run.restarts(), manifest["resumed_from"]))
        run.delete()


def cell(restarts: Restarts, resumed_from: str | None) -> str:
    """Return what the table says of a job that is Complete."""
    if restarts.total == 0:
        return "no restart"
    cost = "counted" if restarts.counted else "not counted"
    return f"restart ({cost}) {'from a checkpoint' if resumed_from else 'from step 0'}"
