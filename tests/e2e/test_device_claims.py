"""Claims of devices: samplers of sessions share one up to a limit, each trainer has its own, missing ones are named."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import builders
from charts.helm import ROOT
from cluster import Cluster
from e2e.devices import (
    CLASS,
    COUNT,
    claim,
    claims_exist,
    device_class,
    devices,
    devices_of,
    offer,
    own_claim,
    seen_by,
    template,
    users_of,
)
from e2e.kube import Kube, uid_of
from e2e.kueue import kueue, queue, queued
from e2e.placement import LABEL, NODE, POD, bare_namespace, bare_node, end, placed, stays
from e2e.registry import Image
from e2e.rollouts import ENDLESS, Installs, SumsRun, example_trainjob
from e2e.sessions import pods_of
from e2e.sharing import CLAIMS, OWN, SAMPLERS, SHARED
from e2e.trainjobs import Reader, Run

__all__ = ["devices", "kueue"]  # fixtures

pytestmark = pytest.mark.full  # samplers start, and Kueue

RUNTIME = "trl-devices"
NAMES, LACKS = ("one", "two", "three"), "lacks"
Stoker = Callable[..., subprocess.CompletedProcess[str]]


def is_told(stoker: Stoker, run: str, *words: str) -> bool:
    """Return whether `stoker explain` says all this of a run."""
    said = stoker("explain", run).stdout
    return all(one in said for one in words)


@pytest.fixture(scope="module")
def runtime(install_catalogue: Installs, image: Image, serving_images: Mapping[str, Image]) -> None:
    """A runtime whose samplers share a device, and whose trainers have their own."""
    images = {name: one.values for name, one in {**serving_images, "trl": image}.items()}
    own = {"base": "trl-grpo-async", "samplers": SAMPLERS, **CLAIMS}
    install_catalogue("devices", {"runtimes": {"trl-distributed": {"enabled": False}, RUNTIME: own}, "images": images})


@pytest.fixture
def stoker(kube: Kube, runtime: None) -> Iterator[Stoker]:
    """Calls `stoker` in the tests' namespace; the sessions end with the test."""
    call = kube.stoker
    yield call
    for name in NAMES:
        call("rl", "down", name, "--purge", check=False)


@pytest.fixture
def trainjob(sums: None, tmp_path: Path) -> Path:
    """The example's TrainJob for one node."""
    file = tmp_path / "trainjob.yaml"
    file.write_text(yaml.safe_dump(example_trainjob(RUNTIME, ENDLESS)))
    return file


@pytest.fixture
def own_devices(kube: Kube) -> Iterator[None]:
    """The template by which each trainer has a device of its own."""
    kube.apply(template(OWN, CLASS))
    yield
    kube.delete("resourceclaimtemplate", OWN)


@pytest.mark.usefixtures("devices", "own_devices")
def test_samplers_share_a_device_and_each_trainer_has_its_own(
    stoker: Stoker, trainjob: Path, kube: Kube, reader: Reader
) -> None:
    words = (str(trainjob), "--device-claim", f"{SHARED}={CLASS}", "--time-limit", "2h")
    one, two, three = NAMES
    for name in (one, two):
        stoker("rl", "up", name, *words, "--wait", "0")
    for name in (one, two):
        stoker("rl", "up", name, *words, "--wait", "1200")
    for name in (one, two):
        run = SumsRun(kube, name, reader)
        run.wait_steps(2, 900)
        run.hold()  # it is not over before the third has the first's device

    samplers, trainers = ({name: pods_of(kube, name, role)[0] for name in (one, two)} for role in ("sampler", "node"))
    shared = _shared(kube)
    assert users_of(shared) == {uid_of(pod) for pod in samplers.values()}
    ((pool, device),) = devices_of(shared)
    given = {}
    for name, pod in trainers.items():
        own = own_claim(kube, pod)
        assert users_of(own) == {uid_of(pod)}
        (given[name],) = devices_of(own)
    assert len({(pool, device), *given.values()}) == COUNT
    for pod in (*samplers.values(), *trainers.values()):
        assert pod["spec"]["nodeName"] == pool
    # The containers have just those.
    for name in (one, two):
        assert seen_by(kube, samplers[name], "vllm") == {device}
        assert seen_by(kube, trainers[name], "node") == {given[name][1]}

    # The third shares the samplers' device, and waits for a trainer's.
    stoker("rl", "up", three, *words, "--wait", "0")
    kube.until("the third to be told", partial(is_told, stoker, three, "its devices cannot be allocated"), 300)
    kube.until("its sampler to share the device", lambda: len(users_of(_shared(kube))) == len(NAMES), 300)
    (waiting,) = pods_of(kube, three, "node")
    assert not waiting["spec"].get("nodeName")
    stoker("rl", "down", one, "--purge")
    kube.until("the third to have the first's device", lambda: _given(kube, three) == {given[one]}, 300)
    assert _given(kube, two) == {given[two]}, "the second was not to notice"
    left = {uid_of(pods_of(kube, name, "sampler")[0]) for name in (two, three)}
    kube.until("the first's sampler to give it up", partial(_is_used_by, kube, left), 180)

    # The claim goes with the last of them, and the trainers' with their pods.
    for name in (two, three):
        assert kube.get("resourceclaim", SHARED)
        stoker("rl", "down", name, "--purge")
    kube.until("all claims to go", lambda: kube.items("resourceclaims") == [], 180)


def test_what_a_run_lacks_is_named(stoker: Stoker, trainjob: Path, kube: Kube) -> None:
    if not claims_exist(kube):
        pytest.skip("this cluster knows no claims of devices: it needs Kubernetes 1.34")
    refused = stoker("rl", "up", NAMES[0], str(trainjob), check=False)
    told = f"needs ResourceClaim {SHARED}, which is not in namespace {kube.namespace}"
    assert (refused.returncode, told in refused.stderr) == (66, True), refused.stderr

    absent = "absent.example.com"
    run = yaml.safe_load(trainjob.read_text())
    run["metadata"]["name"] = LACKS
    kube.create(run)
    try:
        _expect(
            stoker, kube, f"the ResourceClaim {SHARED}, by which it shares a device, does not exist", "--device-claim"
        )
        _expect(stoker, kube, "its device claim cannot be made", OWN, "create the ResourceClaimTemplate")
        kube.create(claim(SHARED, absent))
        _expect(
            stoker, kube, f"it claims a device of class {absent}, which does not exist", "kubectl get deviceclasses"
        )
        kube.create(device_class(absent))  # without a driver
        _expect(stoker, kube, "its devices cannot be allocated", "no DRA driver runs")
    finally:
        Run(kube, LACKS).delete()
        kube.delete("resourceclaim", SHARED)
        kube.delete("deviceclass", absent)


# The limit. The node is a Node object, and what a driver would say of its devices is written here: only the placement
# of pods counts.

CROWD, CROWD_CLAIM, CROWD_CLASS = "stoker-crowd", "crowd", "crowd.example.com"
LIMIT, SESSIONS = 3, 10
CROWD_VALUES = {
    "profile": "none",
    "accelerator": "cpu",
    "initializers": {"enabled": False},
    "workspace": {"existingClaim": CROWD_CLAIM},
    "namespaces": [],
    "kind": "TrainingRuntime",
    "runtimes": {"trl-grpo-async": {"enabled": True, "samplers": SAMPLERS, **CLAIMS}},
}


@pytest.fixture
def crowd(cluster: Cluster, helm: Callable[..., str], tmp_path: Path) -> Iterator[Kube]:
    """A namespace whose runs claim devices, and a node with more of them than all trainers need."""
    if not claims_exist(Kube(cluster, "default")):
        pytest.skip("this cluster knows no claims of devices: it needs Kubernetes 1.34")
    with bare_namespace(cluster, CROWD, CROWD_CLAIM) as kube:
        values = tmp_path / "values.yaml"
        values.write_text(yaml.safe_dump(CROWD_VALUES))
        helm(
            "upgrade", "--install", CROWD, str(ROOT / "charts/training-runtimes"), "--values", str(values),
            "--namespace", kube.namespace,
        )  # fmt: skip
        made = (device_class(CROWD_CLASS), offer(NODE, CROWD_CLASS, SESSIONS + 1), template(OWN, CROWD_CLASS))
        kube.apply(*made)
        with bare_node(kube, "64Gi"):
            yield kube
        for one in made:
            kube.delete(one["kind"], one["metadata"]["name"])
        helm("uninstall", CROWD, "--namespace", kube.namespace)


def _crowded() -> builders.Manifest:
    """Return the TrainJob of a session whose pods are placed on that node."""
    pods = builders.patches(*(builders.job_of_pod(job, **POD) for job in ("node", "sampler")))
    kind = "TrainingRuntime"
    return builders.trainjob("session", runtime="trl-grpo-async", kind=kind, spec=pods, args=builders.GRPO)


@pytest.mark.usefixtures("kueue")
def test_no_more_sessions_than_the_limit_share_a_device_and_the_others_wait_whole(crowd: Kube, tmp_path: Path) -> None:
    stoker = crowd.stoker
    # Each session has two pods, so the limit is the half of the quota.
    quota = {"pods": str(2 * LIMIT), "cpu": "100", "memory": "1Ti"}
    with queue(crowd, SHARED, quota, {"nodeLabels": LABEL}, preempts=False) as name:
        file = tmp_path / "trainjob.yaml"
        file.write_text(yaml.safe_dump(queued(_crowded(), name)))
        sessions = [f"session-{number}" for number in range(SESSIONS)]
        words = (str(file), "--device-claim", f"{SHARED}={CROWD_CLASS}", "--wait", "0")
        with ThreadPoolExecutor(SESSIONS) as pool:
            list(pool.map(lambda session: stoker("rl", "up", session, *words), sessions))

        left = set(sessions)
        while left:
            full = min(LIMIT, len(left))
            crowd.until("as many as may share it", partial(_whole, crowd, full), 180)
            now = placed(crowd)
            users = {uid_of(pod) for one in now for pod in pods_of(crowd, one, "sampler")}
            crowd.until("the claim to be theirs", partial(_is_used_by, crowd, users), 120)
            if len(left) == SESSIONS:
                stays(crowd, now, 10)
                lacks = (f"it waits in queue {name}", "insufficient unused quota for pods")
                waits = stoker("rl", "up", min(left - set(now)), *words[:-1], "1", check=False)
                assert (waits.returncode, f"queue {name} has not admitted it" in waits.stderr) == (75, True), (
                    waits.stderr
                )
                for session in left - set(now):
                    crowd.until("the others to be told", partial(is_told, stoker, session, *lacks), 180)
            ended = min(now)
            end(crowd, ended)
            left.remove(ended)
            crowd.until("its pods to go", partial(_is_gone, crowd, ended), 180)


def test_a_claim_limits_its_sessions_without_kueue_too(crowd: Kube, tmp_path: Path) -> None:
    stoker = crowd.stoker
    file = tmp_path / "trainjob.yaml"
    file.write_text(yaml.safe_dump(_crowded()))
    words = (str(file), "--device-claim", f"{SHARED}={CROWD_CLASS}", "--device-limit", str(LIMIT), "--wait", "0")
    left = {f"session-{number}" for number in range(SESSIONS)}
    while left:
        with ThreadPoolExecutor(SESSIONS) as pool:
            list(pool.map(lambda session: stoker("rl", "up", session, *words), sorted(left)))
        crowd.until("as many as may share it", partial(_whole, crowd, min(LIMIT, len(left))), 180)
        now = placed(crowd)
        if len(left) == SESSIONS:
            stays(crowd, now, 10)
            waits = min(left - set(now))
            told = stoker("rl", "up", waits, *words).stderr
            assert f"{LIMIT} of {LIMIT} sessions use ResourceClaim {SHARED}: {', '.join(sorted(now))}" in told
            assert is_told(stoker, waits, f"as many sessions as may use ResourceClaim {SHARED} do so")
        ended = min(now)
        end(crowd, ended)
        left.remove(ended)
        crowd.until("its pods to go", partial(_is_gone, crowd, ended), 180)


def _whole(kube: Kube, count: int) -> bool:
    """Return whether so many sessions are placed whole.

    Raises:
        AssertionError: there are more, or some by half that will never be whole.
    """
    now = placed(kube)
    assert len(now) <= LIMIT, now
    return len(now) == count and all(has == (2, 2) for has in now.values())


def _is_gone(kube: Kube, session: str) -> bool:
    """Return whether no pod of a session counts any more; its job may have made another before it went."""
    return session not in placed(kube)


def _expect(stoker: Stoker, kube: Kube, *words: str) -> None:
    """Wait until the run that lacks something is told all this."""
    kube.until(f"{words} to be told", partial(is_told, stoker, LACKS, *words), 180)


def _is_used_by(kube: Kube, pods: set[str]) -> bool:
    """Return whether the pods of these uids, and no others, have the samplers' device."""
    return users_of(_shared(kube)) == pods


def _shared(kube: Kube) -> dict[str, Any]:
    """Return the claim of the samplers."""
    return kube.get("resourceclaim", SHARED) or {}


def _given(kube: Kube, session: str) -> set[tuple[str, str]]:
    """Return the devices of a session's trainer."""
    return {device for pod in pods_of(kube, session, "node") for device in devices_of(own_claim(kube, pod))}
