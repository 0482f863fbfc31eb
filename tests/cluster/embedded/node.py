"""What runs on each node: containerd, kubelet and kube-proxy, with their configuration files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import pki
from .layout import CLUSTER_DOMAIN, CONFIG, DNS_SERVICE, POD_NETWORK, REGISTRY, Node
from .processes import Daemon, pid_of, start, wait_until

REGISTRY_HOSTS = CONFIG / "registry-hosts"

#: Paths that containerd, the CNI library and the kubelet have built in; each node gets its own, empty ones, so that
#: neither two nodes nor a container engine of the machine meet there.
PRIVATE_FOLDERS = tuple(
    map(Path, ("/etc/containerd", "/run/containerd", "/var/lib/cni", "/var/lib/kubelet", "/var/log"))
)


def containerd_config(node: Node, cni_plugins: Path, pause_image: str, keep_oom_scores: bool) -> str:
    """Return containerd's configuration.

    Args:
        node: Whose.
        cni_plugins: The folder with the CNI programs.
        pause_image: Reference of the image that holds a pod's namespaces.
        keep_oom_scores: Never ask for a lower OOM score than containerd's own: without CAP_SYS_RESOURCE the kernel
            refuses, and no sandbox would start.
    """
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""\
version = 2
root = "{node.data / "containerd"}"
state = "{node.run / "containerd"}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{node.data / "opt"}"

[grpc]
  address = "{node.containerd_socket}"

[{cri}]
  sandbox_image = "{pause_image}"
  restrict_oom_score_adj = {str(keep_oom_scores).lower()}
  netns_mounts_under_state_dir = true
  max_concurrent_downloads = 10

[{cri}.registry]
  config_path = "{REGISTRY_HOSTS}"

[{cri}.cni]
  bin_dir = "{cni_plugins}"
  conf_dir = "{node.config / "cni"}"

[{cri}.containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "runc"
  # What is unpacked is not kept packed as well: two nodes' copies of large images fill a disk.
  discard_unpacked_layers = true

[{cri}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[{cri}.containerd.runtimes.runc.options]
  SystemdCgroup = false
"""


def registry_hosts() -> str:
    """Return the hosts.toml that lets containerd speak plain HTTP to the cluster's registry."""
    return f"""\
server = "http://{REGISTRY}"

[host."http://{REGISTRY}"]
  capabilities = ["pull", "resolve"]
"""


def cni_config(node: Node) -> str:
    """Return the pod network's configuration: one bridge a node, addresses out of the node's range."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(node.run / "cni"),
            "ranges": [[{"subnet": node.pod_network}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]}, indent=2)


def kubelet_config(node: Node, taints: Sequence[Mapping[str, str]] = ()) -> str:
    """Return the kubelet's configuration; the node comes with taints."""
    certificate = pki.KUBELETS[node]
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": node.address,
            "healthzBindAddress": node.address,
            "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(pki.CA)}},
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(certificate.certificate),
            "tlsPrivateKeyFile": str(certificate.key),
            "clusterDomain": CLUSTER_DOMAIN,
            "clusterDNS": [DNS_SERVICE],
            "resolvConf": str(node.config / "resolv.conf"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": node.cgroup,
            "containerRuntimeEndpoint": f"unix://{node.containerd_socket}",
            "volumePluginDir": str(node.data / "volume-plugins"),
            "podLogsDir": str(node.data / "pod-logs"),
            "failSwapOn": False,
            "featureGates": {"ImageVolume": True},
            **({"registerWithTaints": list(taints)} if taints else {}),
            "nodeStatusUpdateFrequency": "5s",
            "syncFrequency": "10s",
            # Big images: pull side by side and as often as asked, and keep them, as long as there is any room at all.
            "serializeImagePulls": False,
            "registryPullQPS": 0,
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "nodefs.inodesFree": "1%",
                "imagefs.available": "1%",
            },
        },
        indent=2,
    )


def mounts(node: Node) -> Daemon:
    """Return the process that keeps the node's mount namespace alive.

    Whatever containerd, CNI plugins and the kubelet mount is in there: it goes with the node's processes and never
    shows in the machine's own mount table.
    """
    folders = " ".join(map(str, PRIVATE_FOLDERS))
    script = (
        f"{_disk(node)}\nfor folder in {folders}; do mount -t tmpfs tmpfs $folder || exit; done\nexec sleep infinity"
    )
    return Daemon(f"{node.name}-mounts", ["unshare", "--mount", "sh", "-c", script], node)


def _disk(node: Node) -> str:
    """Return the commands that give the node a disk of its own, as large as a part of the room that is left.

    The files of a few unpacked images are hundreds of thousands. Where the machine's disk passes each removal on to the
    hardware, removing them one by one takes minutes; a disk in a file goes at once. It needs no journal, as it does not
    outlive a crash. Without loop devices the files stay on the machine's disk.
    """
    image, data = node.data.with_suffix(".disk"), node.data
    return f"""\
mkdir -p {data}
size=$(df --output=avail --block-size=1 {data} | tail -n 1)
truncate --size=$((size * {node.disk_percent} / 100)) {image} &&
  mkfs.ext4 -q -m 0 -O ^has_journal -E nodiscard,lazy_itable_init=1 {image} &&
  mount -o loop,noatime,noinit_itable,nobarrier {image} {data} ||
  rm {image}"""


def mounts_ready(node: Node) -> bool:
    """Tell whether the node's mount namespace is complete."""
    try:
        mountinfo = Path(f"/proc/{pid_of(mounts(node))}/mountinfo").read_text()
    except OSError:
        return False
    return f" {PRIVATE_FOLDERS[-1]} " in mountinfo


def containerd(node: Node) -> Daemon:
    """Return the node's containerd."""
    argv = ["containerd", "--config", str(node.config / "containerd.toml")]
    return Daemon(f"{node.name}-containerd", argv, node, mounts_of=mounts(node))


def containerd_serves(containerd: Daemon) -> bool:
    """Tell whether a node's containerd answers as a container runtime.

    Its socket answers earlier, and a kubelet that is told "server is not initialized yet" ends; the log line is the one
    sign that comes last.
    """
    try:
        return "Start streaming server" in containerd.log.read_text(errors="replace")
    except OSError:
        return False


def kubelet(node: Node, programs: Path) -> Daemon:
    """Return the node's kubelet."""
    argv = [
        str(programs / "kubelet"),
        f"--config={node.config / 'kubelet.json'}",
        f"--kubeconfig={pki.KUBELETS[node].kubeconfig}",
        f"--root-dir={node.data / 'kubelet'}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
    ]
    return Daemon(f"{node.name}-kubelet", argv, node, mounts_of=mounts(node))


def kube_proxy(node: Node, programs: Path) -> Daemon:
    """Return the node's kube-proxy; the limits on connection tracking stay as they are, they belong to the machine."""
    argv = [
        str(programs / "kube-proxy"),
        f"--kubeconfig={pki.PROXY.kubeconfig}",
        f"--hostname-override={node.name}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={POD_NETWORK}",
        f"--bind-address={node.address}",
        f"--healthz-bind-address={node.address}:10256",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
        "--profiling=false",
    ]
    return Daemon(f"{node.name}-kube-proxy", argv, node, mounts_of=mounts(node))


def bring_up(node: Node, containerd: Daemon, kubernetes: Path) -> None:
    """Start all that runs on a node.

    Args:
        node: Its network, cgroups, keys and configuration must be there.
        containerd: Its container runtime.
        kubernetes: The folder with the kubelet and kube-proxy.

    Raises:
        ClusterError: Something ended, or was not ready in time.
    """
    start(mounts(node))
    wait_until(mounts(node), lambda: mounts_ready(node))
    start(containerd)
    # A kubelet that finds the CRI service not yet there ends at once.
    wait_until(containerd, lambda: containerd_serves(containerd))
    start(kubelet(node, kubernetes))
    start(kube_proxy(node, kubernetes))


def write_config(node: Node, containerd_toml: str, taints: Sequence[Mapping[str, str]] = ()) -> None:
    """Write all configuration files of a node, with that of its containerd; the node comes with taints."""
    files = {
        node.config / "containerd.toml": containerd_toml,
        node.config / "kubelet.json": kubelet_config(node, taints),
        node.config / "cni" / "10-pods.conflist": cni_config(node),
        node.config / "resolv.conf": "# Nothing outside the cluster can be reached.\n",
        REGISTRY_HOSTS / REGISTRY / "hosts.toml": registry_hosts(),
    }
    for file, content in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    node.run.mkdir(parents=True, exist_ok=True)
