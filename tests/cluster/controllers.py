"""JobSet and Kubeflow Trainer, from upstream's own charts, with images of upstream's own programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .artifacts import JOBSET, TRAINER, GoModule
from .commands import Run
from .errors import ClusterError
from .images import JOBSET_IMAGE, TRAINER_IMAGE
from .progress import say, wait_for

_MANIFESTS = Path(__file__).parent / "manifests"
_NAMESPACES = ("kube-system", "local-path-storage", "jobset-system", "kubeflow-system")
#: What `existing` clusters must answer for.
NEEDED_APIS = (
    "jobsets.jobset.x-k8s.io",
    "trainjobs.trainer.kubeflow.org",
    "clustertrainingruntimes.trainer.kubeflow.org",
)


@dataclass(frozen=True)
class Release:
    """One Helm release.

    Attributes:
        name: Of the release, and its chart's.
        namespace: Made if it is missing.
        module: Whose chart.
        values: For the chart, nested as in a values file.
    """

    name: str
    namespace: str
    module: GoModule
    values: Mapping[str, Any]

    def install_command(self, chart: Path) -> list[str]:
        """Return helm's command line; values come as JSON on its standard input."""
        target = [self.name, str(chart), "--namespace", self.namespace, "--create-namespace"]
        return ["helm", "upgrade", "--install", *target, "--values", "-"]


def releases(registry: str, node: str | None) -> list[Release]:
    """Return both releases, in the order they must be installed: Trainer's manager needs JobSet's CRDs.

    Of each manager there is one. It elects no leader, as one that cannot renew its lease in time ends, and the webhooks
    with it.

    Args:
        registry: host:port of the registry that has the images.
        node: The node to run on, so that any other can be drained; None leaves it to the scheduler.
    """
    selector = {"kubernetes.io/hostname": node} if node else {}
    requests = {"requests": {"cpu": "100m", "memory": "64Mi"}}
    return [
        Release(
            "jobset",
            "jobset-system",
            JOBSET,
            {
                "image": {
                    "repository": f"{registry}/{JOBSET_IMAGE.repository}",
                    "tag": JOBSET.version,
                    "pullPolicy": "IfNotPresent",
                },
                "controller": {
                    "nodeSelector": selector,
                    "resources": requests,
                    "leaderElection": {"enable": False},
                },
            },
        ),
        Release(
            "kubeflow-trainer",
            "kubeflow-system",
            TRAINER,
            {
                "image": {"registry": registry, "repository": TRAINER_IMAGE.repository, "tag": TRAINER.version},
                "jobset": {"install": False},  # it is a release of its own
                "manager": {
                    "nodeSelector": selector,
                    "resources": requests,
                    "config": {
                        "featureGates": {"TrainJobStatus": True},
                        "leaderElection": {"leaderElect": False},
                    },
                },
            },
        ),
    ]


def install(run: Run, folders: Mapping[GoModule, Path], registry: str, node: str | None) -> None:
    """Install JobSet and Trainer; `wait` tells when they serve.

    Raises:
        ClusterError: helm failed.
    """
    for release in releases(registry, node):
        say(f"installing {release.name} {release.module.version}")
        run(release.install_command(folders[release.module] / "chart"), json.dumps(release.values))


def wait(run: Run, seconds: float) -> None:
    """Wait until the cluster's own Deployments are Available and the webhooks of both controllers answer.

    A Deployment may be Available a moment before its webhook can be reached through its Service, so a JobSet and a
    runtime are created as dry runs, which go through the webhooks and leave nothing.

    Raises:
        ClusterError: It took longer than ``seconds``; the message names what was missing.
    """
    missing: Sequence[str] = ()

    def all_available() -> bool:
        nonlocal missing
        try:
            missing = [name for name, available in deployments(run).items() if not available]
        except ClusterError:
            missing = ["the API server"]
        return not missing

    try:
        wait_for("the Deployments", all_available, seconds, "", interval=0.5)
    except ClusterError:
        raise ClusterError(
            f"not Available after {seconds:.0f}s: {', '.join(missing)}; see "
            "`python3 -m cluster exec -- kubectl get pods,events --all-namespaces`"
        ) from None

    probe = (_MANIFESTS / "webhook-probe.yaml").read_text()
    error = ""

    def webhooks_answer() -> bool:
        nonlocal error
        try:
            run(["kubectl", "create", "--dry-run=server", "-f", "-"], probe)
        except ClusterError as refusal:
            error = str(refusal)
            return False
        return True

    try:
        wait_for("the webhooks", webhooks_answer, 300, "", interval=0.5)
    except ClusterError:
        raise ClusterError(f"the webhooks of JobSet and Trainer do not answer: {error}") from None


def deployments(run: Run) -> dict[str, bool]:
    """Return the cluster's own Deployments as ``namespace/name``, with whether each is Available in its newest version.

    What users deploy is their own affair: a broken one does not make the cluster unhealthy.

    Raises:
        ClusterError: The API server does not answer.
    """
    listed = json.loads(run(["kubectl", "get", "deployments", "--all-namespaces", "-o", "json"]))
    own = [item for item in listed["items"] if item["metadata"]["namespace"] in _NAMESPACES]
    return {f"{d['metadata']['namespace']}/{d['metadata']['name']}": is_available(d) for d in own}


def is_available(deployment: Mapping[str, Any]) -> bool:
    """Tell whether a Deployment object has all its replicas updated and available."""
    status = deployment.get("status", {})
    wanted: int = deployment["spec"].get("replicas", 1)
    generation: int = deployment["metadata"].get("generation", 0)
    seen = bool(status.get("observedGeneration", 0) >= generation)
    return seen and all(status.get(count, 0) >= wanted for count in ("updatedReplicas", "availableReplicas"))


def is_ready(node: Mapping[str, Any]) -> bool:
    """Tell whether a Node object is Ready."""
    conditions = node.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
