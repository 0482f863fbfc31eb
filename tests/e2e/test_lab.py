"""The image `lab` on a real cluster: scripts and notebooks as any user, and a policy that is served elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from runner.tests.integration.environments import TINY_INPUTS

from builders import variables
from e2e.kube import Kube, condition
from e2e.pods import CONTAINER_SECURITY, POD_SECURITY, claim_mounts, claim_volumes
from e2e.registry import Image
from e2e.serving.fixtures import MODELS, Install

pytestmark = pytest.mark.full  # trainer and server in one image: gigabytes to build and to load

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples/lab/unified_training.py"
# A user that no image knows.
USER = 1234567
OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
# What a policy says, as JSON in a line of its own. Its arguments: model or address, and more of Policy's arguments.
ASK = """
import json, sys
from stoker.lab import Policy

where, more = sys.argv[1], json.loads(sys.argv[2])
questions = [f"What is the symbol of {element}?" for element in ("iron", "gold", "tin")]
with Policy(where, **more) as policy:
    answers = policy.generate(questions, max_tokens=8, temperature=0.0)
print(json.dumps({"said": [answer.token_ids for answer in answers]}))
"""
# What JupyterLab answers without its token: its version, and nothing else.
LOOK = """
import json, urllib.error, urllib.request
print(json.load(urllib.request.urlopen("http://127.0.0.1:8888/api"))["version"])
try:
    urllib.request.urlopen("http://127.0.0.1:8888/api/kernels")
except urllib.error.HTTPError as error:
    print(error.code)
"""


def pod(image: Image, claims: Sequence[str] = (), env: Sequence[Mapping[str, Any]] = (), **container: Any) -> Any:
    """Return the spec of a pod of the image: any user, a root file system that is read-only, and no network needed.

    Args:
        image: the image.
        claims: at /claims/<name>.
        env: more variables.
        container: more of its container.
    """
    writable = {"cache": "/cache", "tmp": "/tmp", "workspace": "/workspace", "shm": "/dev/shm"}
    own = {
        "name": "lab",
        "image": image.reference,
        "env": [*variables(OFFLINE), *env],
        "resources": {"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "6Gi"}},
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            *claim_mounts(claims),
            *({"name": name, "mountPath": path} for name, path in writable.items()),
            {"name": "scripts", "mountPath": "/scripts"},
        ],
    }
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {**POD_SECURITY, "runAsUser": USER},
        "containers": [{**own, **container}],
        "volumes": [
            *claim_volumes(claims),
            *({"name": name, "emptyDir": {"medium": "Memory"} if name == "shm" else {}} for name in writable),
            {"name": "scripts", "configMap": {"name": "lab-scripts"}},
        ],
    }


Runs = Callable[..., str]
"""Runs a command in a Job of the image, in a namespace, with more of `pod`; returns what it printed."""


@pytest.fixture
def run(lab_image: Image) -> Iterator[Runs]:
    """Runs Jobs, which are deleted when the test ends."""
    made: list[tuple[Kube, str, str]] = []

    def job(kube: Kube, name: str, command: str, **more: Any) -> str:
        made.extend([(kube, "job", name), (kube, "configmap", "lab-scripts")])
        kube.delete("job", name)
        kube.apply(scripts())
        spec = pod(lab_image, command=["sh", "-euc", command], workingDir="/workspace", **more)
        kube.create(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name},
                "spec": {"backoffLimit": 0, "template": {"spec": spec}},
            }
        )

        def ended() -> dict[str, Any] | None:
            found = kube.get("job", name) or {}
            return found if condition(found, "Complete") or condition(found, "Failed") else None

        found = kube.until(f"the Job {name} to end", ended, 1800, every=2)
        printed = kube.kubectl("logs", f"job/{name}").stdout
        assert condition(found, "Complete"), printed[-5000:]
        return printed

    yield job
    for kube, kind, name in made:
        kube.delete(kind, name)


def scripts() -> dict[str, Any]:
    """Return what pods find at /scripts."""
    texts = {path.name: path.read_text() for path in (SCRIPT, TINY_INPUTS)}
    data = {**texts, "ask.py": ASK}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "lab-scripts"}, "data": data}


def test_a_script_trains_and_asks_in_a_job(run: Runs, kube: Kube) -> None:
    printed = run(
        kube, "lab-script", f"python /scripts/{TINY_INPUTS.name} inputs; python /scripts/{SCRIPT.name} inputs/model"
    )
    said = [line.partition(":")[0] for line in printed.splitlines() if line.startswith("after ")]
    assert said == ["after nothing", "after training", "after preferences", "after rewards"], printed[-5000:]
    assert "reward: 5 steps; " in printed
    assert "published as sums:1" in printed


def test_jupyterlab_starts_as_any_user(lab_image: Image, kube: Kube) -> None:
    kube.delete("pod", "lab-notebook")
    kube.apply(scripts())
    probe = {"httpGet": {"path": "/api", "port": 8888}, "periodSeconds": 1}
    spec = pod(lab_image, readinessProbe=probe)
    kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "lab-notebook"}, "spec": spec})
    try:
        kube.until("JupyterLab to answer", lambda: condition(kube.get("pod", "lab-notebook") or {}, "Ready"), 300)
        version, refused = kube.kubectl("exec", "lab-notebook", "--", "python", "-c", LOOK).stdout.split()
        assert version
        assert refused == "403"
        assert kube.kubectl("exec", "lab-notebook", "--", "id", "-u").stdout.strip() == str(USER)
    finally:
        kube.delete("pod", "lab-notebook")
        kube.delete("configmap", "lab-scripts")


def test_the_same_script_asks_a_release_by_its_url(
    run: Runs, install: Install, models: str, helm: Callable[..., str]
) -> None:
    server = install(
        "by-url", "--set", "replicas=1", "--set", f"model.claim.name={models}", "--set", "model.name=base",
        "--set-json", "adapters=" + json.dumps([{"name": "first", "claim": models, "path": "output"}]),
    )  # fmt: skip
    folder = f"/claims/{MODELS}"
    asked = [
        (server.url, {"name": "first"}),
        (server.url, {}),
        (f"{folder}/model", {"adapter": f"{folder}/output"}),
    ]
    command = "\n".join(f"python /scripts/ask.py {where} '{json.dumps(more)}'" for where, more in asked)
    key = {"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "model-key", "key": "api-key"}}}
    printed = run(server.kube, "lab-by-url", command, claims=[models], env=[key])
    helm("uninstall", "by-url", "--namespace", server.kube.namespace, "--wait")  # it would stay as long as the models
    lines = [json.loads(line)["said"] for line in printed.splitlines() if line.startswith('{"said"')]
    served, base, here = lines
    # The adapter says the same wherever it is asked, and not what the base model says.
    assert served == here
    assert served != base
    assert all(served)
