"""The kill matrix of asynchronous GRPO on a real cluster: each group is trained once, whatever is lost.

SIGTERM to a whole pod comes as users meet it, by an eviction or a deletion; all other signals come from the node. The
same cases with local processes are in runner/tests/integration/test_rollout_kills.py.
`make kill-matrix-cluster` runs every case and writes what it saw into docs/reference/kill-matrix.md.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from runner.tests.kill_matrix import CLUSTER, recorded
from runner.tests.rollout_kill_matrix import (
    DISK,
    EVERYTHING,
    OFTEN,
    PROXY,
    ROLLOUT_CASES,
    SAMPLER,
    VLLM,
    WATCHER,
    RolloutCase,
    in_two_runs,
)

from e2e.kube import Kube, condition, uid_of
from e2e.rollouts import SMALL, SubmitsSums, SumsRun, wanted
from e2e.strikers import Striker, evict, hit
from e2e.trainjobs import Reader, Restarts

pytestmark = pytest.mark.full  # each case waits for samplers to start

SMALL_DISK = Path(__file__).with_name("small_disk.py")
STEPS = 30
FLAGS = {**SMALL, "max_steps": str(STEPS)}
# The step of the first hit, and steps in which a sampler writes again after a hit and is seen to.
FIRST_HIT, STEPS_OF_A_HIT = 7, 40
# Steps that the nodes have left when a sampler is lost, and then between two looks: the run waits after them, however
# fast it is, because it may not be over before every sampler was lost.
STEPS_WITHOUT, STEPS_OF_A_LOOK = 10, 4
OF_SAMPLERS = [case for case in ROLLOUT_CASES if case.samplers and not case.nodes]
# Words in the commands of the parts of a sampler, and their containers.
PARTS = {VLLM: ("serve", "vllm"), WATCHER: ("watch", "adapters"), PROXY: ("caddyfile", "proxy")}


@pytest.mark.parametrize("cases", in_two_runs(OF_SAMPLERS))
def test_samplers_that_are_lost_one_after_another_are_replaced_while_the_nodes_train(
    submit_sums: SubmitsSums, strikers: Sequence[Striker], kube: Kube, reader: Reader, cases: Sequence[RolloutCase]
) -> None:
    steps = FIRST_HIT + STEPS_OF_A_HIT * len(cases)
    with ExitStack() as stack:
        records = [stack.enter_context(recorded(case, CLUSTER)) for case in cases]
        run = submit_sums({**FLAGS, "max_steps": str(steps)}, name=f"rl-samplers-{len(cases)}")
        run.hold(FIRST_HIT)
        run.wait_steps(FIRST_HIT, seconds=600)
        for case in cases:
            replace(run, kube, strikers, case)
        run.release()
        run.wait_complete(seconds=600)
        assert run.restarts() == Restarts(0, 0)
        judge(run, reader, steps)
        for record in records:
            record.append("0, no restart")


def replace(run: SumsRun, kube: Kube, strikers: Sequence[Striker], case: RolloutCase) -> None:
    """Take a sampler away, or one of its parts, and wait until its replacement has written what is trained."""
    before, known = sampler(run), greetings(run)
    run.hold(len(run.metrics()) + STEPS_WITHOUT)
    lose(kube, strikers, before, case)
    kube.until(f"{case}: the sampler to come back", lambda: is_back(run, before, case, known), 600)
    done = len(run.metrics())

    def written() -> bool:
        """Let the run go on for some steps, and look who has written them."""
        steps = len(run.metrics()) + STEPS_OF_A_LOOK
        run.hold(steps)
        run.wait_steps(steps)
        return f"{run.name}-sampler-0-0" in run.replicas(done + 4)

    kube.until(f"{case}: steps of its samples", written, 300)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=() if case in OFTEN else pytest.mark.matrix)
        for case in ROLLOUT_CASES
        if case.nodes
    ],
)
def test_a_node_that_is_lost_costs_the_steps_since_the_checkpoint_alone(
    submit_sums: SubmitsSums, strikers: Sequence[Striker], kube: Kube, reader: Reader, case: RolloutCase
) -> None:
    with recorded(case, CLUSTER) as record:
        run = submit_sums(FLAGS, name=name_of(case))
        run.hold(FIRST_HIT)
        run.wait_steps(FIRST_HIT, seconds=600)
        nodes = run.pods()
        samplers = run.samplers()
        pods = [*(nodes[node] for node in case.nodes), *(samplers if case.hit == EVERYTHING else ())]
        lost = datetime.now(UTC)
        if case.number is signal.SIGKILL:
            lost = hit(strikers, pods, case.number)
        else:
            for pod in pods:
                if case.hit == EVERYTHING:
                    evict(kube, pod["metadata"]["name"])
                else:
                    kube.delete("pod", pod["metadata"]["name"], wait=False)
        # JobSet makes all pods of a run anew.
        before = {uid_of(pod) for pod in (*nodes, *samplers)}
        kube.until(f"{case}: other pods", lambda: are_others([*run.pods(), *run.samplers()], before), 300)
        kube.until(f"{case}: its first node again", run.runs, 300)
        run.release()
        run.wait_complete(seconds=900)
        counted = case.number is signal.SIGKILL
        assert run.restarts() == Restarts(1, int(counted))
        manifest = judge(run, reader, STEPS)
        assert (manifest["attempt"], manifest["resumed_from"] is not None) == (1, True)
        seconds = (run.stepped() - lost).total_seconds()
        restart = f"restart ({'counted' if counted else 'not counted'}) from a checkpoint"
        record.append(f"{restart}, {seconds:.0f} s to the next step")


@pytest.mark.matrix
def test_a_disk_that_takes_no_version_ends_the_run_and_costs_no_checkpoint(
    submit_sums: SubmitsSums, strikers: Sequence[Striker], kube: Kube
) -> None:
    """Beside it, runner/tests/integration/test_rollout_kills.py goes on once there is room."""
    if kube.cluster.provider.name != "embedded":
        pytest.skip("a disk is made small on the nodes of the embedded cluster alone")
    case = RolloutCase(DISK, None)
    with recorded(case, CLUSTER) as record:
        # The last versions may fail: no sample needs them any more.
        run = submit_sums({**FLAGS, "max_steps": str(2 * STEPS)}, name="rl-disk", suspend=True)
        folder = f"{kube.until('the claim to have a volume', lambda: volume_of(run), 300)}/adapters"
        with small_disk(strikers, folder):
            kube.kubectl("patch", "trainjob", run.name, "--type=merge", "--patch", '{"spec": {"suspend": false}}')
            run.hold(FIRST_HIT)
            run.wait_steps(FIRST_HIT, seconds=600)
            run.keep_full("adapters")
            run.release()
            run.wait_failed(seconds=600)
            error = json.loads(run.text("output/last-error.json"))
            assert (error["code"], error["attempt"]) == (case.code, 0), error
            assert "adapters is full (No space left on device): enlarge it" in error["message"]
            assert error["checkpoint_step"] >= FIRST_HIT - FIRST_HIT % int(FLAGS["save_steps"])
            assert run.versions() == []
            kube.until("the samplers to end", lambda: not run.samplers(), 300)
        record.append(f"{case.code}, failed at once")


def volume_of(run: SumsRun) -> str:
    """Return the folder of a node in which the volume of a run's claim lies; empty while it has none."""
    claim = run.kube.get("pvc", f"initializer-{run.name}") or {"spec": {}}
    spec = (run.kube.get("pv", claim["spec"].get("volumeName") or "none") or {"spec": {}})["spec"]
    return str((spec.get("hostPath") or spec.get("local") or {}).get("path") or "")


@contextmanager
def small_disk(strikers: Sequence[Striker], folder: str) -> Iterator[None]:
    """Make a folder that nodes share a disk of its own while no pod has it yet."""
    try:
        for striker in strikers:
            said = striker.run(SMALL_DISK, "mount", folder, striker.node)
            assert said == ["done"], said
        yield
    finally:
        for striker in strikers:
            striker.run(SMALL_DISK, "umount", folder, striker.node)


def name_of(case: RolloutCase) -> str:
    """Return the name of a case's job: as short as the host names of its pods must be."""
    hit = "all" if case.hit == EVERYTHING else f"rank-{case.nodes[0]}"
    return f"rl-{hit}-{'kill' if case.number is signal.SIGKILL else 'term'}"


def are_others(pods: Sequence[dict[str, Any]], before: Collection[str]) -> bool:
    """Return whether there are as many pods as before, and none of those."""
    uids = {uid_of(pod) for pod in pods}
    return len(uids) == len(before) and uids.isdisjoint(before)


def sampler(run: SumsRun) -> dict[str, Any]:
    """Return the pod of the first sampler."""
    return next(pod for pod in run.samplers() if index_of(pod) == "0")


def index_of(pod: dict[str, Any]) -> str:
    """Return a pod's index in its Job."""
    return str(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"])


def lose(kube: Kube, strikers: Sequence[Striker], pod: dict[str, Any], case: RolloutCase) -> None:
    """Take a sampler away, or one of its parts."""
    if case.hit == SAMPLER and case.number is signal.SIGTERM:
        evict(kube, pod["metadata"]["name"])
    else:
        assert case.number is not None
        hit(strikers, [pod], case.number, PARTS[case.hit][0] if case.hit in PARTS else "")


def greetings(run: SumsRun) -> int:
    """Return how often the nodes have found the first sampler ready."""
    return run.log().count(f"sampler {run.name}-sampler-0-0.{run.name}:8080 is ready")


def is_back(run: SumsRun, before: dict[str, Any], case: RolloutCase, known: int) -> bool:
    """Return whether what was lost serves again: another process of the pod, or another pod that the nodes know.

    Args:
        run: the run.
        before: the pod as it was.
        case: what was lost.
        known: the greetings until then.
    """
    for pod in run.samplers():
        if index_of(pod) != "0" or not condition(pod, "Ready"):
            continue
        if uid_of(pod) != uid_of(before):
            # Its new address comes with the next look at the name.
            return greetings(run) > known
        if case.hit in (WATCHER, PROXY):
            return restarts_of(pod, case) > restarts_of(before, case)
    return False


def restarts_of(pod: dict[str, Any], case: RolloutCase) -> int:
    """Return how often the part of a sampler that is hit was restarted in its pod."""
    status = pod["status"]
    statuses = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    return int(next(one["restartCount"] for one in statuses if one["name"] == PARTS[case.hit][1]))


def judge(run: SumsRun, reader: Reader, steps: int) -> dict[str, Any]:
    """Check what the run has trained in all its attempts and what it left, and return its manifest."""

    def ended() -> bool:
        return all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in run.samplers(ended=True))

    run.kube.until("the samplers to end with the trainers", ended, 300)
    manifest = run.manifest(reader)
    assert (manifest["steps"], manifest["world_size"]) == (steps, 2)
    assert run.flaws(wanted(steps)) == []
    return manifest
