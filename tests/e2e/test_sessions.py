"""Two sessions at once, made by `stoker rl`: each has its own key, pods and folder, and leaves nothing."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from cluster import Cluster
from e2e.kube import Kube, uid_of
from e2e.rollouts import SumsRun
from e2e.serving import policies
from e2e.sessions import NAMES, Rl, key_of, left, listen, node_answers, pods_of, rl, runtime, status, trainjob
from e2e.trainjobs import Reader

__all__ = ["rl", "runtime", "trainjob"]  # fixtures

pytestmark = pytest.mark.full  # two samplers start

PORT = 8099  # nobody else's


def is_closed(kube: Kube, asking: str, sampler: str, key: str) -> bool:
    """Return whether the sampler of a session is not reached by the node of a session."""
    return status(kube, asking, sampler, key, seconds=5) == 0


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
        assert "node-0 | " in rl("logs", run.name, "--role", "node", "--tail", "5").stdout

    # Keys.
    keys = {name: key_of(kube, name) for name in NAMES}
    assert keys["one"] != keys["two"]
    assert [status(kube, "one", "one", key) for key in ("", "wrong", keys["two"], keys["one"])] == [401, 401, 401, 200]
    assert status(kube, "one", "one", "", "/health") == 200

    # Pods.
    nodes = {name: listen(kube, name, PORT) for name in NAMES}
    if cluster.provider.name == "embedded":
        nothing_else = "nothing but the policies is to keep the other out"
        assert status(kube, "one", "two", keys["two"]) == 200, nothing_else
        assert node_answers(kube, "one", nodes["two"]), nothing_else
    pods = [pod for name in NAMES for role in ("node", "sampler") for pod in pods_of(kube, name, role)]
    addresses = [pod["status"]["podIP"] for pod in pods]
    with policies.enforced(cluster, cluster.nodes()[0], addresses, tmp_path / "agent.log"):
        for asking, other_one in (NAMES, NAMES[::-1]):
            closed = partial(is_closed, kube, asking, other_one, keys[other_one])
            kube.until("the policies to hold", closed, 180)
            assert status(kube, asking, asking, keys[asking]) == 200
            assert not node_answers(kube, asking, nodes[other_one])

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
    assert [uid_of(pod) for pod in pods_of(kube, "two", "node")] == [uid_of(node)]
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
    down = f"`stoker rl down one --namespace {kube.namespace}`"
    assert f"one has ended, and keeps its key, address and policies: {down}" in rl("list").stderr
    assert kube.get("secret", "one-session")
    rl("down", "one", "--purge")
    assert left(kube, "one") == []
