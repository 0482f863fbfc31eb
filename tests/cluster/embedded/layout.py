"""Where everything of the embedded cluster lies and how it is addressed.

One place for the whole machine, independent of the checkout and of the cache, so that any checkout finds (and can
remove) a cluster that another one left.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: Process ids, sockets, the bin folder and the state of `up`; gone after a reboot where /run is a tmpfs.
RUN = Path("/run/embedded-cluster")
#: Logs, keys, the registry's blobs, the nodes' images and volumes.
DATA = Path("/var/lib/embedded-cluster")

LOGS = DATA / "logs"
PKI = DATA / "pki"
CONFIG = DATA / "config"
VOLUMES = DATA / "volumes"
BIN = RUN / "bin"
STATE = RUN / "state.json"
LOCK = Path("/run/embedded-cluster.lock")

#: Prefix of the nodes' network namespaces, and the name of the cgroup that holds every process of the cluster.
NAME = "embedded-cluster"

NODE_NETWORK = "10.10.0.0/24"
POD_NETWORK = "10.244.0.0/16"
SERVICE_NETWORK = "10.96.0.0/16"
KUBERNETES_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
CLUSTER_DOMAIN = "cluster.local"


@dataclass(frozen=True)
class Node:
    """One node: its own network and mount namespace, containerd, kubelet and kube-proxy.

    Attributes:
        index: its number.
        disk_percent: how much of the room that is left its disk may take.
    """

    index: int
    disk_percent: int = 50

    @property
    def name(self) -> str:
        """The node's name in Kubernetes."""
        return f"node-{self.index}"

    @property
    def netns(self) -> str:
        """The name of its network namespace, as ``ip netns list`` shows it."""
        return f"{NAME}-{self.name}"

    @property
    def address(self) -> str:
        """Its address on the wire between the nodes."""
        return f"10.10.0.{self.index}"

    @property
    def pod_network(self) -> str:
        """The range its pods' addresses come from."""
        return f"10.244.{self.index}.0/24"

    @property
    def run(self) -> Path:
        """Its sockets and the state that does not outlive its processes."""
        return RUN / self.name

    @property
    def data(self) -> Path:
        """Its images, containers and kubelet folder."""
        return DATA / self.name

    @property
    def config(self) -> Path:
        """Its configuration files."""
        return CONFIG / self.name

    @property
    def cgroup(self) -> str:
        """The cgroup its pods live under, as the kubelet's ``cgroupRoot`` takes it."""
        return f"/{NAME}/{self.name}"

    @property
    def containerd_socket(self) -> Path:
        """containerd's socket."""
        return self.run / "containerd.sock"


NODES = (Node(1), Node(2))
#: Is there only while the add-on `dra` is: pods can claim its devices. The others have their images when it comes.
DEVICE_NODE = Node(3, disk_percent=75)
#: The control plane, the registry and the clients live in the first node's network namespace.
FIRST = NODES[0]
API_SERVER = f"https://{FIRST.address}:6443"
REGISTRY = f"{FIRST.address}:5000"
