"""What every way to have a cluster must offer, and how one is chosen."""

from __future__ import annotations

import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .errors import ClusterError, UsageError

#: Names of the providers, in the order help shows them.
NAMES = ("embedded", "kind", "existing")


@dataclass(frozen=True)
class Health:
    """The state of one component: what it is called, whether it is healthy, and a few words more."""

    component: str
    healthy: bool
    detail: str


class Provider(ABC):
    """One way to have a Kubernetes cluster with JobSet and Kubeflow Trainer, and a registry it pulls from."""

    name: str
    #: The node that system pods run on, so that any other can be drained; None leaves it to the scheduler.
    system_node: str | None = None
    #: Whether `optional` may change what is installed.
    takes_add_ons = True

    @abstractmethod
    def up(self) -> None:
        """Make the cluster ready, whatever state it is in now; at once if it is ready already.

        Raises:
            ClusterError: It could not be done; the message says why and where to look.
        """

    @abstractmethod
    def down(self) -> None:
        """Remove everything `up` made; fine if there is nothing.

        Raises:
            ClusterError: Something could not be removed.
        """

    @abstractmethod
    def status(self) -> list[Health]:
        """Return the state of every component; never raises because the cluster is down."""

    def add_devices(self) -> None:
        """Have devices that pods can claim, for the add-on `dra`.

        Raises:
            ClusterError: It could not be done.
        """
        raise self._no_devices

    def remove_devices(self) -> None:
        """Undo `add_devices`; fine if there is nothing.

        Raises:
            ClusterError: It could not be done.
        """
        raise self._no_devices

    @property
    def _no_devices(self) -> ClusterError:
        return ClusterError(
            f"the {self.name} provider has no node with devices: use --provider embedded, or install and remove "
            "dra-example-driver as its own documentation says"
        )

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """Return what a client needs: KUBECONFIG, CLUSTER_REGISTRY, CLUSTER_REGISTRY_PLAIN_HTTP and PATH.

        Raises:
            ClusterError: There is no cluster to reach.
        """

    @abstractmethod
    def wrap(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` where the cluster can be reached.

        Raises:
            ClusterError: There is no cluster to reach.
        """


def client_environment(kubeconfig: str, registry: str, plain_http: bool, path: str) -> dict[str, str]:
    """Return the variables every provider gives its clients."""
    environment = {"KUBECONFIG": kubeconfig, "PATH": path}
    if registry:
        environment["CLUSTER_REGISTRY"] = registry
        environment["CLUSTER_REGISTRY_PLAIN_HTTP"] = str(plain_http).lower()
    return environment


def choose(name: str | None = None, environ: Mapping[str, str] = os.environ) -> Provider:
    """Return the provider called ``name``, or named by ``CLUSTER_PROVIDER``, or else the one that suits this machine.

    Raises:
        UsageError: There is no provider of that name.
    """
    name = name or environ.get("CLUSTER_PROVIDER") or ("kind" if docker_answers() else "embedded")
    if name == "embedded":
        from .embedded import EmbeddedProvider

        return EmbeddedProvider()
    if name == "kind":
        from .kind import KindProvider

        return KindProvider()
    if name == "existing":
        from .existing import ExistingProvider

        return ExistingProvider()
    raise UsageError(f"unknown cluster provider {name!r}: choose one of {', '.join(NAMES)}")


def docker_answers() -> bool:
    """Tell whether a Docker engine answers within a few seconds."""
    if not shutil.which("docker"):
        return False
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=10, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False
