"""What the notes of a release print works as printed: a TrainJob that fetches model and data, and how to watch it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from charts.helm import TRAINING_RUNTIMES
from cluster import Cluster
from e2e.kube import Kube, condition
from e2e.registry import Image
from e2e.trainjobs import INPUTS_CLAIM, Reader, Run, reader_pod
from fetch import hub

RELEASE = "noted"
HUB, PORT = "hub", 8080
# What the notes name on the Hub, and what of the inputs stands in for it.
REPOSITORIES = {"models/Qwen/Qwen3-0.6B": "model", "datasets/trl-lib/Capybara": "dataset"}
SERVE = f"""
import signal
from pathlib import Path

with serving("0.0.0.0", {PORT}) as found:
    for name, folder in {REPOSITORIES!r}.items():
        root = Path("/claims/{INPUTS_CLAIM}") / folder
        files = [path for path in root.rglob("*") if path.is_file()]
        content = {{path.relative_to(root).as_posix(): path.read_bytes() for path in files}}
        found.repositories[name] = Repository(content)
    signal.pause()
"""


@pytest.fixture
def mirror(kube: Kube, image: Image, inputs: str) -> Iterator[str]:
    """The address of a mirror of the Hub in the cluster, which has the two repositories that the notes name."""
    pod = reader_pod(HUB, image.reference, ["python", "-c", Path(hub.__file__).read_text() + SERVE], [inputs])
    pod["metadata"]["labels"] = {"app": HUB}
    pod["spec"]["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": PORT}, "periodSeconds": 1}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": HUB},
        "spec": {"selector": {"app": HUB}, "ports": [{"port": PORT}]},
    }
    kube.create(pod, service)
    kube.until("the mirror to answer", lambda: condition(kube.get("pod", HUB) or {}, "Ready"), 180)
    yield f"http://{HUB}:{PORT}"
    kube.delete("pod", HUB, wait=False)
    kube.delete("service", HUB, wait=False)


@pytest.fixture
def notes(kube: Kube, helm: Callable[..., str], catalogue_values: list[str], mirror: str) -> Iterator[str]:
    """The notes of a release whose runtime has initializers; without `--watch` and `--follow`, which do not end."""
    settings = [
        *("names.style=versioned", "names.version=noted", "initializers.enabled=true"),
        *(f"initializers.env.HF_ENDPOINT={mirror}", f"namespaces={{{kube.namespace}}}"),
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    helm("install", RELEASE, str(TRAINING_RUNTIMES), *catalogue_values, *words, "--namespace", kube.namespace)
    yield re.sub(r" --(watch|follow)", "", helm("get", "notes", RELEASE, "--namespace", kube.namespace))
    helm("uninstall", RELEASE, "--namespace", kube.namespace)


@pytest.mark.full
def test_everything_the_notes_print_works_as_it_is_printed(
    notes: str, cluster: Cluster, kube: Kube, reader: Reader
) -> None:
    """Full, because the notes train a hundred steps."""

    def printed(pattern: str) -> str:
        command = re.search(pattern, notes, re.MULTILINE | re.DOTALL)
        assert command, notes
        done: subprocess.CompletedProcess[str] = cluster.run(
            ["bash", "-euc", command[0]], check=False, capture_output=True
        )
        assert done.returncode == 0, f"{command[0]}\n{done.stderr}"
        return str(done.stdout)

    run = Run(kube, "my-run")
    run.delete()
    try:
        assert printed(r"^kubectl apply .*?^EOF$") == "trainjob.trainer.kubeflow.org/my-run created\n"
        run.wait_complete(600)
        assert run.manifest(reader)["steps"] == 100
        assert "my-run" in printed(r"^  kubectl get trainjob my-run --namespace \S+$")
        assert "exit 0: finished" in printed(r"^  kubectl logs [^\n]*$")
        assert "my-run-node-0-0" in printed(r"^  kubectl get pods .*?\n[^\n]*$")
        assert "100" in printed(r"^  kubectl get trainjob my-run [^\n]* --output jsonpath=[^\n]*$")
        assert "my-run" in printed(r"^  kubectl get trainjobs --all-namespaces [^\n]*$")
        kube.delete("trainjob", run.name)
        printed(r"^  kubectl delete persistentvolumeclaim [^\n]*$")
        kube.until("no claim", lambda: kube.get("pvc", f"initializer-{run.name}") is None, 180)
    finally:
        run.delete()
