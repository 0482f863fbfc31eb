"""Sessions as `stoker rl` makes them; a test module that uses the fixtures imports them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import Cluster
from e2e.kube import Kube
from e2e.registry import Image
from e2e.rollouts import ENDLESS, VALUES, Installs, example_trainjob
from stoker.sessions.kinds import ALL

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


Rl = Callable[..., subprocess.CompletedProcess[str]]


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
    made = example_trainjob(RUNTIME, ENDLESS)
    for patch in made["spec"]["runtimePatches"]:
        for job in patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]:
            selector = {"kubernetes.io/hostname": cluster.nodes()[0]}
            job["template"]["spec"]["template"]["spec"]["nodeSelector"] = selector
    file = tmp_path / "trainjob.yaml"
    file.write_text(yaml.safe_dump(made))
    return file


@pytest.fixture
def rl(kube: Kube, runtime: None) -> Iterator[Rl]:
    """Calls `stoker rl`; the sessions end with the test."""
    call = partial(kube.stoker, "rl")
    for name in NAMES:
        call("down", name, "--purge", check=False)
    yield call
    for name in NAMES:
        call("down", name, "--purge", check=False)


def pods_of(kube: Kube, name: str, role: str) -> list[dict[str, Any]]:
    """Return the pods of a session with a role."""
    return kube.items("pods", f"stoker.dev/session={name},stoker.dev/role={role}")


def key_of(kube: Kube, name: str) -> str:
    """Return the key of a session's samplers."""
    secret = kube.get("secret", f"{name}-session")
    assert secret
    words = ["get", "secret", f"{name}-session", "--output", 'go-template={{index .data "api-key" | base64decode}}']
    return kube.kubectl(*words).stdout.strip()


def status(kube: Kube, asking: str, sampler: str, key: str, path: str = "/v1/models", seconds: float = 60) -> int:
    """Return what the sampler of a session answers to the node of a session in so many seconds; 0 for nothing."""
    (pod,) = pods_of(kube, sampler, "sampler")
    return _answer(kube, asking, f"http://{pod['status']['podIP']}:8080{path}", key, seconds)


def listen(kube: Kube, name: str, port: int) -> str:
    """Have the node of a session listen at a port until it ends; return the address."""
    (node,) = pods_of(kube, name, "node")
    serve = f"python -m http.server {port} --directory /workspace/output > /dev/null 2>&1 &"
    kube.kubectl("exec", node["metadata"]["name"], "--container", "node", "--", "sh", "-c", serve)
    address = f"http://{node['status']['podIP']}:{port}/"
    kube.until("the node to listen", lambda: _answer(kube, name, address, "", 5) == 200, 300)
    return address


def node_answers(kube: Kube, asking: str, address: str) -> bool:
    """Return whether an address that :func:`listen` returned answers to the node of a session."""
    return _answer(kube, asking, address, "", 5) == 200


def _answer(kube: Kube, asking: str, address: str, key: str, seconds: float) -> int:
    (node,) = pods_of(kube, asking, "node")
    question = ["python", "-c", ASK, address, key, str(seconds)]
    return int(kube.kubectl("exec", node["metadata"]["name"], "--container", "node", "--", *question).stdout)


def left(kube: Kube, name: str) -> list[str]:
    """Return what carries the label of a session, or has its TrainJob as an owner, as Leases and device claims do."""
    kinds = [kind for kind in ALL if kube.kubectl("get", kind.resource, check=False).returncode == 0]
    found = ((kind, one) for kind in kinds for one in kube.items(kind.resource) if _is_of(one, name))
    return [f"{kind.kind} {one['metadata']['name']}" for kind, one in found]


def _is_of(one: Mapping[str, Any], name: str) -> bool:
    metadata = one["metadata"]
    owners = [(owner["kind"], owner["name"]) for owner in metadata.get("ownerReferences", ())]
    return metadata.get("labels", {}).get("stoker.dev/session") == name or ("TrainJob", name) in owners
