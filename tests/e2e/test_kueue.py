"""Runs in queues of Kueue: one waits for quota, one makes way for a more important one, and none starts by half."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import yaml

import builders
from cluster import Cluster
from e2e.conftest import ROOT
from e2e.kube import Kube, condition
from e2e.kueue import kueue, queue, queued, workload_of
from e2e.placement import LABEL, POD, bare_namespace, bare_node, end, placed, stays
from e2e.trainjobs import LORA_SFT, Reader, Run, trainjob
from lint.snippets import snippets

__all__ = ["kueue"]  # a fixture

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("kueue")]

# A pod of the tests' runtime asks for 250m and 512Mi: two pods have room, four have not.
ONE_RUN = {"cpu": "600m", "memory": "1200Mi"}
LONG = [word for word in LORA_SFT if "max_steps" not in word and "save_steps" not in word]

Stoker = Callable[..., str]


@pytest.fixture
def stoker(kube: Kube) -> Stoker:
    """Runs a command of `stoker`, and returns what it printed."""
    return lambda *words: str(kube.stoker(*words).stdout)


@pytest.fixture
def team(kube: Kube) -> Iterator[str]:
    """A queue with room for one run of two pods."""
    with queue(kube, "team", ONE_RUN) as name:
        yield name


def test_a_run_waits_for_quota_says_so_and_then_runs(
    team: str, kube: Kube, submit: Callable[[Mapping[str, Any]], Run], stoker: Stoker
) -> None:
    first = submit(queued(trainjob("first", [*LONG, "--max_steps=300", "--save_steps=300"]), team))
    kube.until("the first run to be admitted", lambda: first.object()["spec"].get("suspend") is False, 180)
    second = submit(queued(trainjob("second"), team))
    kube.until("Kueue's verdict", lambda: "insufficient unused quota" in stoker("explain", "second"), 180)
    assert "it waits in queue team" in stoker("explain", "second")
    (line,) = [line for line in stoker("runs").splitlines() if line.startswith("second ")]
    assert "Queued" in line
    assert line.endswith("queue team")
    assert second.pods() == []

    first.wait_complete()
    second.wait_complete()
    pods = [pod for run in (first, second) for pod in run.pods()]
    assert len(pods) == 4
    ended = max(_finished(pod) for pod in first.pods())
    assert all(pod["metadata"]["creationTimestamp"] >= ended for pod in second.pods()), "they were there at once"


def test_a_run_makes_way_for_a_more_important_one_and_goes_on_from_its_checkpoint(
    team: str, kube: Kube, submit: Callable[[Mapping[str, Any]], Run], reader: Reader, stoker: Stoker
) -> None:
    steps = 400
    low = submit(queued(trainjob("low", [*LONG, f"--max_steps={steps}", "--save_steps=50"]), team, "whenever"))
    low.wait_steps(5)
    high = submit(queued(trainjob("high"), team, "important"))
    kube.until("the run to be stopped", lambda: condition(workload_of(kube, "low"), "Evicted"), 180)
    assert "a more important run has its place" in stoker("explain", "low")

    high.wait_complete()
    done = low.wait_complete()
    assert condition(done, "Complete")
    found = low.manifest(reader)
    assert (found["status"], found["steps"]) == ("finished", steps)
    assert found["resumed_from"], "it did not go on from its checkpoint"
    # It was told to stop, so it saved the step it had reached: each step was done once.
    lines = [json.loads(line) for line in low.read("output/metrics.jsonl", reader).splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [*range(1, steps + 1)]
    assert low.restarts().counted == 0, "making way is no failure"


def test_kueue_takes_the_queues_of_the_guides(kube: Kube) -> None:
    blocks = [one.text for one in snippets("yaml") if "kind: ClusterQueue" in one.text]
    assert len(blocks) == 2
    for block in blocks:
        text = block.replace("team-a", kube.namespace)
        done = kube.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text)
        assert len(done.stdout.splitlines()) == len(list(yaml.safe_load_all(text)))


# Gang admission. The node is a Node object, on which nothing runs: only the placement of pods counts.

CLAIM, RELEASE, FIRST = "gang", "gang", "gang-first"
TRAINER = {"requests": {"cpu": "100m", "memory": "16Gi"}, "limits": {"memory": "16Gi"}}
# Its sidecars ask for a little more.
SAMPLER = {"requests": {"cpu": "100m", "memory": "7Gi"}, "limits": {"memory": "7Gi"}}
GANG = {
    "profile": "none",
    "accelerator": "cpu",
    "initializers": {"enabled": False},
    "workspace": {"existingClaim": CLAIM},
    "namespaces": [],
    "kind": "TrainingRuntime",
    "runtimes": {
        "trl-distributed": {"enabled": True, "resources": TRAINER},
        # Its pods go first wherever there is room.
        FIRST: {"base": "trl-distributed", "resources": TRAINER, "priorityClassName": FIRST},
        "trl-grpo-async": {"enabled": True, "resources": TRAINER, "samplers": {"count": 1, "resources": SAMPLER}},
    },
}


def gang_job(name: str, runtime: str, nodes: int, of: str | None) -> dict[str, Any]:
    """Return a TrainJob whose pods go to the packed node, in a queue or in none."""
    jobs = ["node", *(["sampler"] if "grpo" in runtime else [])]
    spec = builders.patches(*(builders.job_of_pod(job, **POD) for job in jobs))
    return queued(builders.trainjob(name, runtime=runtime, kind="TrainingRuntime", spec=spec, numNodes=nodes), of)


@pytest.fixture(scope="module")
def gang(cluster: Cluster, helm: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """A namespace with runtimes of 16 GiB, and with the claim that their pods name."""
    # It lets pods go first, and removes none.
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": FIRST}}
    with bare_namespace(cluster, "stoker-gang", CLAIM) as kube:
        kube.apply({**priority, "value": 1000, "preemptionPolicy": "Never"})
        values = tmp_path_factory.mktemp("gang") / "values.yaml"
        values.write_text(yaml.safe_dump(GANG))
        helm(
            "upgrade", "--install", RELEASE, str(ROOT / "charts/training-runtimes"), "--values", str(values),
            "--namespace", kube.namespace,
        )  # fmt: skip
        yield kube
        helm("uninstall", RELEASE, "--namespace", kube.namespace)
        kube.delete("priorityclass", FIRST)


@pytest.fixture
def packed(gang: Kube, request: pytest.FixtureRequest) -> Iterator[None]:
    """A node of so much memory that no kubelet looks after, and an empty namespace at the end."""
    with bare_node(gang, str(request.param)):
        yield


@pytest.mark.parametrize("packed", ["48Gi"], indirect=True)
def test_two_runs_with_their_samplers_fit_and_the_third_waits_whole(packed: None, gang: Kube) -> None:
    with queue(gang, "gang", {"cpu": "8", "memory": "48Gi"}, {"nodeLabels": LABEL}) as name:
        for run in ("one", "two", "three"):
            gang.create(gang_job(run, "trl-grpo-async", 1, name))
            gang.until("Kueue to see it", partial(workload_of, gang, run), 120)
        gang.until("two whole runs", lambda: placed(gang) == {"one": (2, 2), "two": (2, 2)}, 180)
        stays(gang, {"one": (2, 2), "two": (2, 2)}, 10)
        assert "insufficient unused quota for memory" in _message(workload_of(gang, "three"))

        end(gang, "one")
        gang.until("the third, whole", lambda: placed(gang) == {"two": (2, 2), "three": (2, 2)}, 180)


def crowd(kube: Kube, of: str | None) -> None:
    """Have two runs of two pods wait for a node that a third run half fills, and then end the third."""
    kube.create(gang_job("before", "trl-distributed", 1, of))
    kube.until("the run before them", lambda: placed(kube) == {"before": (1, 1)}, 180)
    kube.create(gang_job("one", "trl-distributed", 2, of))
    kube.until("the first to wait", lambda: (of and workload_of(kube, "one")) or len(placed(kube)) == 2, 180)
    if not of:
        kube.until("half of it", lambda: placed(kube)["one"] == (1, 2), 180)
    kube.create(gang_job("two", FIRST, 2, of))
    kube.until("the second to wait", lambda: (of and workload_of(kube, "two")) or len(placed(kube)) == 3, 180)
    if not of:
        kube.until("the scheduler to have tried it", lambda: _refused(kube, "two") == 2, 180)
        # A pod that was just refused is not tried again for a second, however important it is.
        stays(kube, {"before": (1, 1), "one": (1, 2), "two": (0, 2)}, 3)
    end(kube, "before")


@pytest.mark.parametrize("packed", ["32Gi"], indirect=True)
def test_without_kueue_two_runs_hold_half_of_a_node_each(packed: None, gang: Kube) -> None:
    crowd(gang, None)
    gang.until("half of each", lambda: placed(gang) == {"one": (1, 2), "two": (1, 2)}, 180)
    stays(gang, {"one": (1, 2), "two": (1, 2)}, 20)


@pytest.mark.parametrize("packed", ["32Gi"], indirect=True)
def test_with_kueue_one_run_has_the_whole_node_and_then_the_other(packed: None, gang: Kube) -> None:
    with queue(gang, "gang", {"cpu": "8", "memory": "32Gi"}, {"nodeLabels": LABEL}, preempts=False) as name:
        crowd(gang, name)
        (run,) = gang.until("a whole run", lambda: [one for one, has in placed(gang).items() if has == (2, 2)], 180)
        stays(gang, {run: (2, 2)}, 10)
        end(gang, run)
        (other,) = {"one", "two"} - {run}
        gang.until("the other, whole", lambda: placed(gang) == {other: (2, 2)}, 180)


def _refused(kube: Kube, run: str) -> int:
    """Return how many pods of a run the scheduler has found no node for."""
    pods = kube.items("pods", f"jobset.sigs.k8s.io/jobset-name={run}")
    told = [found for pod in pods for found in pod["status"].get("conditions", ())]
    return sum(found["type"] == "PodScheduled" and found["status"] == "False" for found in told)


def _finished(pod: Mapping[str, Any]) -> str:
    """Return when the container of a pod ended."""
    return str(pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"])


def _message(workload: Mapping[str, Any]) -> str:
    """Return why Kueue keeps a workload waiting."""
    for found in workload.get("status", {}).get("conditions", ()):
        if found["type"] == "QuotaReserved" and found["status"] == "False":
            return str(found["message"])
    return ""
