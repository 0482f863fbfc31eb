"""The nodes' network namespaces and the wire between them; there is no way out of either."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ..errors import ClusterError
from .layout import DEVICE_NODE, NODE_NETWORK, NODES, POD_NETWORK, SERVICE_NETWORK, Node

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


def join_commands(node: Node) -> list[list[str]]:
    """Return the commands that make one more node's namespace and join it to the first node, by a wire of its own.

    The first node passes on what the other one sends there, and the reverse.
    """
    first, second = NODES
    at_first, at_second, own = (["ip", "-n", one.netns] for one in (first, second, node))
    via_first, via_node = ["via", first.address], ["via", node.address]
    peer_end = ["peer", "name", "eth0", "netns", node.netns]
    return [
        ["ip", "netns", "add", node.netns],
        ["ip", "link", "add", _wire(node), "netns", first.netns, "type", "veth", *peer_end],
        [*own, "link", "set", "lo", "up"],
        [*own, "address", "add", f"{node.address}/32", "dev", "eth0"],
        [*own, "link", "set", "eth0", "up"],
        [*own, "route", "add", first.address, "dev", "eth0"],
        [*own, "route", "add", NODE_NETWORK, *via_first],
        [*own, "route", "add", POD_NETWORK, *via_first],
        [*own, "route", "add", SERVICE_NETWORK, "dev", "eth0", "src", node.address],
        [*at_first, "link", "set", _wire(node), "up"],
        [*at_first, "route", "add", node.address, "dev", _wire(node), "src", first.address],
        [*at_first, "route", "add", node.pod_network, *via_node],
        [*at_second, "route", "replace", node.address, *via_first],
        [*at_second, "route", "replace", node.pod_network, *via_first],
    ]


def leave_commands(node: Node) -> list[list[str]]:
    """Return the commands that undo `join_commands`, as far as they were run."""
    first, second = NODES
    return [
        *(["ip", "-n", second.netns, "route", "flush", to] for to in (node.address, node.pod_network)),
        # Deleted by name, it is gone at once; with its namespace, a while later.
        ["ip", "-n", first.netns, "link", "delete", _wire(node)],
        ["ip", "netns", "delete", node.netns],
    ]


def create() -> None:
    """Make both namespaces and everything in them.

    Raises:
        ClusterError: A command failed.
    """
    for command in wire_commands():
        _run(command)
    for node in NODES:
        _let_through(node)


def join(node: Node) -> None:
    """Make one more node's namespace and everything in it.

    Raises:
        ClusterError: A command failed.
    """
    for command in join_commands(node):
        _run(command)
    _let_through(node)


def leave(node: Node) -> None:
    """Remove what `join` made, or the half of it."""
    for command in leave_commands(node):
        subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def remove() -> None:
    """Remove the namespaces, and with them their links, routes and iptables rules."""
    for namespace in namespaces():
        _run(["ip", "netns", "delete", namespace.name])
    if _NETNS.is_dir() and not any(_NETNS.iterdir()):
        # ip mounted this folder over itself for the first namespace, and nobody has one any more.
        subprocess.run(["umount", str(_NETNS)], stderr=subprocess.DEVNULL, check=False)


def namespaces() -> list[Path]:
    """Return the nodes' network namespaces that exist, as files."""
    return [path(node) for node in (*NODES, DEVICE_NODE) if path(node).exists()]


def path(node: Node) -> Path:
    """Return the file that stands for a node's network namespace."""
    return _NETNS / node.netns


def _wire(node: Node) -> str:
    """Return what the first node calls its end of the wire to a node that joined."""
    return f"to-{node.name}"


def _let_through(node: Node) -> None:
    # /proc/sys/net belongs to the namespace of whoever opens it.
    settings = "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables"
    _run(["nsenter", f"--net={path(node)}", "sh", "-c", settings])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()}")
