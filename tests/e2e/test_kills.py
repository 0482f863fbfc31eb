"""The kill matrix on a real cluster: each job is restarted by the rule that fits, and does all its steps.

SIGTERM comes as users meet it: one of two pods is deleted, otherwise the pods are evicted, as a drain does. SIGKILL
comes from the node. The same cases with local processes are in runner/tests/integration/test_kills.py.
`make kill-matrix-cluster` runs every case and writes what it saw into docs/reference/kill-matrix.md.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from runner.tests.integration.tune_jobs import FULL
from runner.tests.kill_matrix import CASES, CLUSTER, Case, recorded, twelfth

from e2e import tune
from e2e.conftest import asked_for
from e2e.kube import Kube
from e2e.strikers import Striker, evict
from e2e.trainjobs import LORA_SFT, RUNTIME, Reader, Restarts, Run, trainjob
from stoker.rank.pulse import SAVING

# Jobs at a time: while one waits for its pods, another computes.
TOGETHER = 5
# On a busy machine a phase may pass unnoticed: `initializing` lasts for a tenth of a second.
TRIES = 8
SCRIPT = Path(__file__).with_name("striker.py")


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
# For `make test`, and for `make test-full`; the rest is for `make kill-matrix-cluster`.
ALWAYS = {Case("trl", SIGKILL, SAVING, "one pod")}
OFTEN = twelfth(1)


class MissedError(Exception):
    """A phase was over before it was noticed."""


def strike(striker: Striker, run: Run, case: Case, started: Callable[[], None], held: Callable[[], None]) -> None:
    """Hold the pods of a job in their phase, and hit them.

    Args:
        striker: sees the node of the pods.
        run: the job.
        case: what is to happen to it.
        started: called when the job may be created.
        held: called when the pods are in the phase.

    Raises:
        MissedError: the phase was over before it was noticed; nothing was done.
    """
    hit = ",".join(map(str, case.killed))
    words = [run.name, str(FRAMEWORKS[case.framework].steps), case.number.name, case.phase, hit]
    lines = striker.run(SCRIPT, *words, told={"watching": started, "held": held})
    if "missed" in lines:
        raise MissedError
    assert "struck" in lines, "\n".join(lines)


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
        # JobSet takes a claim that still goes for that of the new run.
        kube.until(f"what is left of {run.name} to go", run.is_gone, 300)
        try:
            strike(striker, run, case, lambda: kube.create(job), lambda: lose(run, kube, case))
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


def marks(case: Case) -> list[pytest.MarkDecorator]:
    """Say what plays a case, besides `make kill-matrix-cluster`."""
    return [] if case in ALWAYS else [pytest.mark.full] if case in OFTEN else [pytest.mark.matrix]


@pytest.mark.parametrize("case", [pytest.param(c, id=str(c), marks=marks(c)) for c in CASES])
def test_the_job_is_complete_with_all_its_steps(runs: Mapping[Case, Future[Run]], reader: Reader, case: Case) -> None:
    with recorded(case, CLUSTER) as record:
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
