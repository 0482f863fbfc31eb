"""Two sessions at once, made by `stoker rl`: each has its own key, pods and folder, and leaves nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.helm import ROOT
from cluster import Cluster
from e2e.kube import Kube
from e2e.registry import Image
from e2e.rollouts import EXAMPLE, SMALL, VALUES, Installs, SumsRun
from e2e.serving import policies
from e2e.trainjobs import Reader
from stoker.sessions.kinds import ALL

pytestmark = pytest.mark.full  # two samplers start

RUNTIME = "trl-sessions"
NAMES = ("one", "two")
# Status of a request to a sampler; 0 where it is not reached.
ASK = """
import sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]})
try:
    print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=float(sys.argv[3])).status)
except urllib.error.HTTPError as error:
    print(error.code)
except OSError:
    print(0)
"""


class Rl:
    """`stoker rl` as a user calls it."""

    def __init__(self, cluster: Cluster, kube: Kube) -> None:
        self._cluster, self._kube = cluster, kube

    def __call__(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run it in the tests' namespace."""
        command = ["env", f"PYTHONPATH={ROOT / 'runner/src'}", sys.executable, "-m", "stoker", "rl", *words]
        done = self._cluster.run([*command, "--namespace", self._kube.namespace], check=False, capture_output=True)
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done


@pytest.fixture(scope="module")
def runtime(install_catalogue: Installs, image: Image, serving_images: Mapping[str, Image]) -> None:
    """A runtime with one sampler."""
    images = {name: one.values for name, one in {**serving_images, "trl": image}.items()}
    samplers = {**VALUES["runtimes"]["trl-grpo-async"]["samplers"], "count": 1}  # type: ignore[index]
    own = {"base": "trl-grpo-async", "samplers": samplers}
    install_catalogue("sessions", {"runtimes": {"trl-distributed": {"enabled": False}, RUNTIME: own}, "images": images})


@pytest.fixture
def trainjob(cluster: Cluster, sums: None, tmp_path: Path) -> Path:
    """The example's TrainJob for one node, whose network the policies' agent sees."""
    made = yaml.safe_load((EXAMPLE / "trainjob.yaml").read_text())
    made["spec"]["runtimeRef"]["name"] = RUNTIME
    trainer = made["spec"]["trainer"]
    trainer["numNodes"] = 1
    flags = {**SMALL, "per_device_train_batch_size": "16", "max_steps": "1000"}
    trainer["args"] += [f"--{flag}={value}" for flag, value in flags.items()]
    for patch in made["spec"]["runtimePatches"]:
        for job in patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]:
            selector = {"kubernetes.io/hostname": cluster.nodes()[0]}
            job["template"]["spec"]["template"]["spec"]["nodeSelector"] = selector
    file = tmp_path / "trainjob.yaml"
    file.write_text(yaml.safe_dump(made))
    return file


@pytest.fixture
def rl(cluster: Cluster, kube: Kube, runtime: None) -> Iterator[Rl]:
    """Calls `stoker rl`; the sessions end with the test."""
    call = Rl(cluster, kube)
    for name in NAMES:
        call("down", name, "--purge", check=False)
    yield call
    for name in NAMES:
        call("down", name, "--purge", check=False)


def pods_of(kube: Kube, name: str, role: str) -> list[dict[str, Any]]:
    return kube.items("pods", f"stoker.dev/session={name},stoker.dev/role={role}")


def key_of(kube: Kube, name: str) -> str:
    secret = kube.get("secret", f"{name}-session")
    assert secret
    words = ["get", "secret", f"{name}-session", "--output", 'go-template={{index .data "api-key" | base64decode}}']
    return kube.kubectl(*words).stdout.strip()


def status(kube: Kube, asking: str, sampler: str, key: str, path: str = "/v1/models", seconds: float = 60) -> int:
    """Return what the sampler of a session answers to the node of a session in so many seconds; 0 for nothing."""
    (node,) = pods_of(kube, asking, "node")
    (pod,) = pods_of(kube, sampler, "sampler")
    address = f"http://{pod['status']['podIP']}:8080{path}"
    question = ["python", "-c", ASK, address, key, str(seconds)]
    return int(kube.kubectl("exec", node["metadata"]["name"], "--container", "node", "--", *question).stdout)


def is_closed(kube: Kube, asking: str, sampler: str, key: str) -> bool:
    """Return whether the sampler of a session is not reached by the node of a session."""
    return status(kube, asking, sampler, key, seconds=5) == 0


def left(kube: Kube, name: str) -> list[str]:
    """Return what carries the label of a session, or has its TrainJob as an owner, as Leases and device claims do."""
    kinds = [kind for kind in ALL if kube.kubectl("get", kind.resource, check=False).returncode == 0]
    found = ((kind, one) for kind in kinds for one in kube.items(kind.resource) if _is_of(one, name))
    return [f"{kind.kind} {one['metadata']['name']}" for kind, one in found]


def _is_of(one: Mapping[str, Any], name: str) -> bool:
    metadata = one["metadata"]
    owners = [(owner["kind"], owner["name"]) for owner in metadata.get("ownerReferences", ())]
    return metadata.get("labels", {}).get("stoker.dev/session") == name or ("TrainJob", name) in owners


def test_two_sessions_reach_nothing_of_each_other_and_leave_nothing(
    rl: Rl, trainjob: Path, kube: Kube, cluster: Cluster, reader: Reader, tmp_path: Path
) -> None:
    for name in NAMES:
        told = rl("up", name, str(trainjob), "--time-limit", "1h", "--wait", "900").stdout
        assert f"http://{name}-samplers.{kube.namespace}:8080 (1 samplers)" in told
    assert "already exists with these values" in rl("up", "one", str(trainjob), "--time-limit", "1h").stderr
    other = rl("up", "one", str(trainjob), "--time-limit", "2h", check=False)
    assert (other.returncode, "time-limit is 3600, and you ask for 7200" in other.stderr) == (64, True)
    listed = json.loads(rl("list", "--output", "json").stdout)
    assert [(row["name"], row["state"]) for row in listed] == [("one", "up"), ("two", "up")]
    runs = {name: SumsRun(kube, name, reader) for name in NAMES}
    for run in runs.values():
        run.wait_steps(2, 600)
        run.hold()

    # Keys.
    keys = {name: key_of(kube, name) for name in NAMES}
    assert keys["one"] != keys["two"]
    assert [status(kube, "one", "one", key) for key in ("", "wrong", keys["two"], keys["one"])] == [401, 401, 401, 200]
    assert status(kube, "one", "one", "", "/health") == 200

    # Pods.
    if cluster.provider.name == "embedded":
        assert status(kube, "one", "two", keys["two"]) == 200, "nothing but the policies is to keep the other out"
    pods = [pod for name in NAMES for role in ("node", "sampler") for pod in pods_of(kube, name, role)]
    addresses = [pod["status"]["podIP"] for pod in pods]
    with policies.enforced(cluster, cluster.nodes()[0], addresses, tmp_path / "agent.log"):
        for asking, other_one in (NAMES, NAMES[::-1]):
            closed = partial(is_closed, kube, asking, other_one, keys[other_one])
            kube.until("the policies to hold", closed, 60)
            assert status(kube, asking, asking, keys[asking]) == 200

    # Folders and adapters.
    for name in NAMES:
        runs_there = reader.run(["ls", f"/claims/initializer-{name}/adapters"], [f"initializer-{name}"]).split()
        assert {one.rpartition("-a")[0] for one in runs_there} == {name}

    # One ends, the other does not notice.
    (node,) = pods_of(kube, "two", "node")
    for run in runs.values():
        run.release()
    steps = len(runs["two"].metrics())
    rl("down", "one", "--purge")
    assert left(kube, "one") == []
    assert kube.get("pvc", "initializer-one") is None
    kube.until("two to go on", lambda: len(runs["two"].metrics()) > steps + 2, 300)
    assert [pod["metadata"]["uid"] for pod in pods_of(kube, "two", "node")] == [node["metadata"]["uid"]]
    assert "claim initializer-two keeps the run folder" in rl("down", "two").stderr
    assert left(kube, "two") == []


def test_a_session_ends_at_its_limits(rl: Rl, trainjob: Path, kube: Kube, reader: Reader) -> None:
    rl("up", "one", str(trainjob), "--idle-limit", "30s", "--wait", "900")
    run = SumsRun(kube, "one", reader)
    run.wait_steps(2, 600)
    run.hold()  # answers are written, but not rewarded, so that soon nobody asks for more
    run.wait_complete(seconds=300)
    ((code, message),) = run.endings()
    assert (code, "no request has reached the samplers for 30 s" in message) == (0, True)
    rl("down", "one", "--purge")
    rl("up", "one", str(trainjob), "--time-limit", "90s", "--wait", "0")
    run.wait_failed(seconds=300)
    assert "one has ended, and keeps its key, address and policies: `stoker rl down one`" in rl("list").stderr
    assert kube.get("secret", "one-session")
    rl("down", "one", "--purge")
    assert left(kube, "one") == []
