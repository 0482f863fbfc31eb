"""Add-ons that few tests need: no part of the cluster until they are added, and nothing of them stays once removed."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from . import artifacts, images
from .addons import DEVICE_CLASS
from .artifacts import KUEUE
from .commands import Run
from .connection import Cluster
from .controllers import Release, is_available
from .errors import ClusterError, UsageError
from .images import KUEUE_IMAGE, Image
from .progress import say, step, wait_for

_SECONDS = 180.0
#: Kueue's own configuration, as short as it can be: it decides about TrainJobs and about nothing else. It would refuse
#: those whose pods share a claimed device; so claims are left to the scheduler.
_KUEUE_CONFIG = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "health": {"healthProbeBindAddress": ":8081"},
    "metrics": {"bindAddress": ":8443"},
    "webhook": {"port": 9443},
    "leaderElection": {"leaderElect": False},
    "integrations": {"frameworks": ["trainer.kubeflow.org/trainjob"]},
    "featureGates": {"KueueDRAIntegration": False, "KueueDRARejectWorkloadsWhenDRADisabled": False},
}
#: Goes through Kueue's webhooks, and is never made.
_KUEUE_PROBE = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "ResourceFlavor",
    "metadata": {"name": "webhook-probe"},
}


class AddOn(ABC):
    """What a cluster may have beside its own parts.

    Attributes:
        sign: What a cluster has if the add-on is in it, as kubectl names it.
    """

    sign: Sequence[str]

    @abstractmethod
    def add(self, cluster: Cluster) -> None:
        """Build and install it, and wait until it serves.

        Raises:
            ClusterError: It could not be done.
        """

    @abstractmethod
    def remove(self, cluster: Cluster) -> None:
        """Remove it, with all that it alone looks after.

        Raises:
            ClusterError: It could not be done.
        """


@dataclass(frozen=True)
class ReleaseAddOn(AddOn):
    """A Helm release beside the cluster's own.

    Attributes:
        sign: What a cluster has if the add-on is in it, as kubectl names it.
        image: What it runs.
        release: Makes the release, from the registry and the node to run on (None leaves it to the scheduler).
        probe: An object whose creation, as a dry run, shows that it serves.
        owned: Kinds of objects that only its controller can let go of, in the order they are deleted.
    """

    sign: Sequence[str]
    image: Image
    release: Callable[[str, str | None], Release]
    probe: Mapping[str, object]
    owned: Sequence[str]

    def add(self, cluster: Cluster) -> None:
        """Push its image, install its chart, and wait for both its Deployment and its webhooks."""
        folders = artifacts.build([self.image.module])
        images.publish([self.image], folders, cluster.registry, cluster.output)
        release = self.release(cluster.registry, cluster.provider.system_node)
        say(f"installing {release.name} {release.module.version}")
        cluster.output(release.install_command(folders[release.module] / "chart"), json.dumps(release.values))
        with step(f"waiting for {release.name}"):
            _wait(cluster.output, release.namespace, self.probe)

    def remove(self, cluster: Cluster) -> None:
        """Delete the objects of its kinds, then the release."""
        # Their finalizers end only while the controller runs.
        for kind in self.owned:
            cluster.output(["kubectl", "delete", kind, "--all", "--all-namespaces", "--timeout=60s"])
        release = self.release(cluster.registry, None)
        cluster.output(
            ["helm", "uninstall", release.name, "--namespace", release.namespace, "--ignore-not-found", "--wait"]
        )
        cluster.output(["kubectl", "delete", "namespace", release.namespace, "--ignore-not-found"])


class DevicesAddOn(AddOn):
    """A node whose devices pods can claim."""

    sign = ("deviceclass", DEVICE_CLASS)

    def add(self, cluster: Cluster) -> None:
        """Join the node and wait for its devices."""
        cluster.provider.add_devices()

    def remove(self, cluster: Cluster) -> None:
        """Remove the node with its pods."""
        cluster.provider.remove_devices()


def kueue_release(registry: str, node: str | None) -> Release:
    """Return Kueue's release.

    Args:
        registry: host:port of the registry that has the image.
        node: The node to run on; None leaves it to the scheduler.
    """
    image = {"repository": f"{registry}/{KUEUE_IMAGE.repository}", "tag": KUEUE.version, "pullPolicy": "IfNotPresent"}
    return Release(
        "kueue",
        "kueue-system",
        KUEUE,
        {
            "controllerManager": {
                "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
                "manager": {"image": image, "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}}},
            },
            "managerConfig": {"controllerManagerConfigYaml": json.dumps(_KUEUE_CONFIG)},
        },
    )


ADD_ONS: Mapping[str, AddOn] = {
    "dra": DevicesAddOn(),
    "kueue": ReleaseAddOn(
        ("crd", "clusterqueues.kueue.x-k8s.io"),
        KUEUE_IMAGE,
        kueue_release,
        _KUEUE_PROBE,
        (
            "workloads.kueue.x-k8s.io",
            "localqueues.kueue.x-k8s.io",
            "clusterqueues.kueue.x-k8s.io",
            "resourceflavors.kueue.x-k8s.io",
        ),
    ),
}


def has(cluster: Cluster, name: str) -> bool:
    """Tell whether an add-on is in the cluster, whoever put it there."""
    found = cluster.run(["kubectl", "get", *_known(name).sign], capture_output=True, check=False)
    return found.returncode == 0


def add(cluster: Cluster, name: str) -> None:
    """Build an add-on where that was not done yet, install it, and wait until it serves.

    Raises:
        UsageError: There is none of that name.
        ClusterError: It could not be done.
    """
    add_on = _known(name)
    _allowed(cluster, name)
    add_on.add(cluster)


def remove(cluster: Cluster, name: str) -> None:
    """Remove an add-on with all objects of its kinds; fine if it is not there.

    Raises:
        UsageError: There is none of that name.
        ClusterError: It could not be done.
    """
    add_on = _known(name)
    if has(cluster, name):
        _allowed(cluster, name)
        add_on.remove(cluster)


def _known(name: str) -> AddOn:
    if name not in ADD_ONS:
        raise UsageError(f"unknown add-on {name!r}: choose one of {', '.join(ADD_ONS)}")
    return ADD_ONS[name]


def _allowed(cluster: Cluster, name: str) -> None:
    if not cluster.provider.takes_add_ons:
        raise ClusterError(f"the cluster is yours: install or remove {name} as its own documentation says")


def _wait(run: Run, namespace: str, probe: Mapping[str, object]) -> None:
    said = ""

    def serves() -> bool:
        nonlocal said
        try:
            listed = json.loads(run(["kubectl", "get", "deployments", "--namespace", namespace, "-o", "json"]))
            if not all(is_available(one) for one in listed["items"]):
                said = "its Deployment is not available"
                return False
            run(["kubectl", "create", "--dry-run=server", "-f", "-"], json.dumps(probe))
        except ClusterError as error:
            said = str(error)
            return False
        return True

    try:
        wait_for("the add-on", serves, _SECONDS, "", interval=0.5)
    except ClusterError:
        raise ClusterError(f"{namespace} does not serve after {_SECONDS:.0f}s: {said}") from None
