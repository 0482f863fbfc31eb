"""The nodes' network namespaces and the wire between them; there is no way out of either."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ..errors import ClusterError
from .layout import NODE_NETWORK, NODES, SERVICE_NETWORK, Node

_NETNS = Path("/run/netns")


def wire_commands() -> list[list[str]]:
    """Return the commands that make the namespaces, join them, and give them their addresses and routes."""
    first, second = NODES
    prefix = NODE_NETWORK.rpartition("/")[2]
    commands = [["ip", "netns", "add", node.netns] for node in NODES]
    peer_end = ["peer", "name", "eth0", "netns", second.netns]
    commands.append(["ip", "link", "add", "eth0", "netns", first.netns, "type", "veth", *peer_end])
    for node, peer in ((first, second), (second, first)):
        ip = ["ip", "-n", node.netns]
        commands += [
            [*ip, "link", "set", "lo", "up"],
            [*ip, "address", "add", f"{node.address}/{prefix}", "dev", "eth0"],
            [*ip, "link", "set", "eth0", "up"],
            [*ip, "route", "add", peer.pod_network, "via", peer.address],
            # kube-proxy rewrites a service's address, but only of packets that have a route to begin with. A route
            # for the services alone, instead of a default one, leaves everything outside unreachable at once.
            [*ip, "route", "add", SERVICE_NETWORK, "dev", "eth0", "src", node.address],
        ]
    return commands


def create() -> None:
    """Make both namespaces and everything in them.

    Raises:
        ClusterError: A command failed.
    """
    for command in wire_commands():
        _run(command)
    for node in NODES:
        # /proc/sys/net belongs to the namespace of whoever opens it.
        settings = "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables"
        _run(["nsenter", f"--net={path(node)}", "sh", "-c", settings])


def remove() -> None:
    """Remove the namespaces, and with them their links, routes and iptables rules."""
    for namespace in namespaces():
        _run(["ip", "netns", "delete", namespace.name])
    if _NETNS.is_dir() and not any(_NETNS.iterdir()):
        # ip mounted this folder over itself for the first namespace, and nobody has one any more.
        subprocess.run(["umount", str(_NETNS)], stderr=subprocess.DEVNULL, check=False)


def namespaces() -> list[Path]:
    """Return the nodes' network namespaces that exist, as files."""
    return [path(node) for node in NODES if path(node).exists()]


def path(node: Node) -> Path:
    """Return the file that stands for a node's network namespace."""
    return _NETNS / node.netns


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()}")
