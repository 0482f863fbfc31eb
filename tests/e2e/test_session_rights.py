"""Two users of a namespace with the roles of the guide: each starts and ends their own session, and not the other's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builders import GRPO, trainjob
from charts.helm import ROOT
from cluster import Cluster
from e2e.kube import Kube, restricted_namespace
from e2e.sessions import left
from lint.snippets import adapted, block

CHART = ROOT / "charts" / "training-runtimes"
NAMESPACE = "stoker-rights"
RELEASE, RUNTIME = "rights", "trl-sessions-rights"
GUIDE, HEADING = "docs/guides/sessions.md", "Give users rights by name"
# The guide's has a name of its own, which an administrator may have taken.
CLUSTER_ROLE = "session-runtimes-e2e"
# Each user and their session; the guide's own is the first.
SESSIONS = {"ann": "math", "bob": "sums"}
DEVICE = "gpu-0"


class User:
    """A user with a token of their own.

    Args:
        cluster: the cluster.
        kube: the namespace, as an administrator.
        name: of the service account that stands for them.
        folder: where their kubeconfig goes.
    """

    def __init__(self, cluster: Cluster, kube: Kube, name: str, folder: Path) -> None:
        self._cluster, self._namespace = cluster, kube.namespace
        kube.kubectl("create", "serviceaccount", name)
        token = kube.kubectl("create", "token", name, "--duration=1h").stdout.strip()
        config = json.loads(kube.kubectl("config", "view", "--raw", "--minify", "--output", "json").stdout)
        (context,) = config["contexts"]
        config["users"] = [{"name": context["context"]["user"], "user": {"token": token}}]
        self._kubeconfig = folder / f"{name}.json"
        self._kubeconfig.write_text(json.dumps(config))

    def kubectl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run kubectl as this user."""
        return self._run("kubectl", "--namespace", self._namespace, *words)

    def may(self, verb: str, what: str) -> bool:
        """Return whether the API server lets this user do something, such as `get secret/math-session`."""
        said = self.kubectl("auth", "can-i", verb, what)
        answer = said.stdout.partition(" ")[0].strip()  # a reason may follow
        assert answer in ("yes", "no"), said.stderr
        return answer == "yes"

    def rl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `stoker rl` as this user."""
        python = ["env", f"PYTHONPATH={ROOT / 'runner/src'}", sys.executable]
        return self._run(*python, "-m", "stoker", "rl", *words, "--namespace", self._namespace)

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        told = ["env", f"KUBECONFIG={self._kubeconfig}", *command]
        return self._cluster.run(told, check=False, capture_output=True)


@pytest.fixture(scope="module")
def kube(cluster: Cluster, helm: Callable[..., str]) -> Iterator[Kube]:
    """A namespace with a runtime that has samplers. Its TrainJobs are suspended, so no image is needed."""
    with restricted_namespace(cluster, NAMESPACE) as found:
        helm(
            "upgrade", "--install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--set", "profile=none",
            "--set", "accelerator=cpu", "--set", f"runtimes.{RUNTIME}.base=trl-grpo-async",
            "--set", f"runtimes.{RUNTIME}.initializers=false",
        )  # fmt: skip
        yield found
        helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found")


@pytest.fixture(scope="module")
def users(cluster: Cluster, kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, User]]:
    """Two users, each with the guide's roles for their own session."""
    folder = tmp_path_factory.mktemp("users")
    found = {name: User(cluster, kube, name, folder) for name in SESSIONS}
    roles = adapted(
        block(GUIDE, HEADING, "kind: ClusterRole"),
        {"namespace: team-a": f"namespace: {NAMESPACE}", "name: session-runtimes": f"name: {CLUSTER_ROLE}"},
    )
    everybody = [f"--serviceaccount={NAMESPACE}:{name}" for name in SESSIONS]
    try:
        for name, session in SESSIONS.items():
            kube.kubectl("apply", "-f", "-", stdin=roles.replace("math", session))
            role = f"session-{session}"
            kube.kubectl("create", "rolebinding", role, f"--role={role}", f"--serviceaccount={NAMESPACE}:{name}")
        for role in ("sessions", f"device-{DEVICE}"):
            kube.kubectl("create", "rolebinding", role, f"--role={role}", *everybody)
        kube.delete("clusterrolebinding", CLUSTER_ROLE)  # of a run that was killed
        kube.kubectl("create", "clusterrolebinding", CLUSTER_ROLE, f"--clusterrole={CLUSTER_ROLE}", *everybody)
        yield found
    finally:
        kube.delete("clusterrolebinding", CLUSTER_ROLE)
        kube.delete("clusterrole", CLUSTER_ROLE)


@pytest.fixture(scope="module")
def sessions(users: dict[str, User], kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A session of each user, made by themselves. Nothing of it runs, because its TrainJob is suspended."""
    file = tmp_path_factory.mktemp("session") / "trainjob.yaml"
    file.write_text(json.dumps(trainjob("any", runtime=RUNTIME, spec={"suspend": True}, numNodes=1, args=GRPO)))
    for name, session in SESSIONS.items():
        made = users[name].rl("up", session, str(file), "--wait", "0")
        assert made.returncode == 0, made.stderr


@pytest.mark.usefixtures("sessions")
def test_a_user_has_rights_to_their_own_names_alone(users: dict[str, User]) -> None:
    for name, session in SESSIONS.items():
        (other,) = set(SESSIONS.values()) - {session}
        own = {
            "get": ("secret/{}-session", "lease/" + DEVICE, "resourceclaim/" + DEVICE, "pvc/initializer-{}"),
            "delete": (
                *("secret/{}-session", "trainjob/{}", "pvc/initializer-{}", "service/{}-samplers"),
                *("networkpolicy/{}-session-nodes", "networkpolicy/{}-session-samplers"),
            ),
            "patch": ("trainjob/{}", "job/{}-sampler-0", "lease/" + DEVICE, "resourceclaim/" + DEVICE),
        }
        asked = [(verb, what.format(session)) for verb, named in own.items() for what in named]
        assert [one for one in asked if not users[name].may(*one)] == []
        others = [(verb, what.format(other)) for verb, named in own.items() for what in named if "{}" in what]
        # What is there is no secret.
        others.remove(("get", f"pvc/initializer-{other}"))
        more = [("list", "secrets"), ("get", "secrets"), ("patch", "lease/other"), ("delete", "resourceclaim/other")]
        more += [("create", "pods"), ("update", f"secret/{session}-session")]
        assert [one for one in [*others, *more] if users[name].may(*one)] == []


@pytest.mark.usefixtures("sessions")
def test_a_user_reads_and_ends_their_own_session_alone(users: dict[str, User], kube: Kube) -> None:
    ann, bob = users["ann"], users["bob"]
    assert ann.kubectl("get", "secret", "math-session").returncode == 0
    refused = bob.kubectl("get", "secret", "math-session")
    assert (refused.returncode, "Forbidden" in refused.stderr) == (1, True), refused.stderr
    refused = bob.rl("down", "math", "--purge")
    assert (refused.returncode, "you may not delete trainjobs" in refused.stderr) == (78, True), refused.stderr
    assert kube.get("trainjob", "math")
    assert kube.get("secret", "math-session")
    listed = bob.rl("list", "--output", "json")
    assert [row["name"] for row in json.loads(listed.stdout)] == ["math", "sums"]

    ended = ann.rl("down", "math", "--purge")
    assert ended.returncode == 0, ended.stderr
    assert "is not known" not in ended.stderr, "the roles let a user see all that may be left"
    assert left(kube, "math") == []
    assert kube.get("pvc", "initializer-math") is None
    assert bob.rl("down", "sums", "--purge").returncode == 0
    assert left(kube, "sums") == []
