"""The nodes' networks, made for real: in a mount namespace of the test's own they meet no cluster that is up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.embedded import network

# Each node has an address that a pod of it could have; each asks all others for theirs, and for what is outside.
PROGRAM = """
import subprocess, sys
from cluster.embedded import network
from cluster.embedded.layout import DEVICE_NODE, NODES

ANSWER = '''
import socket
listening = socket.create_server(("", 7))
print("ready", flush=True)
while True:
    listening.accept()[0].close()
'''
ASK = '''
import socket, sys
for way in sys.argv[1:]:
    source, target = way.split(">")
    try:
        socket.create_connection((target, 7), timeout=2, source_address=(source, 0))
        print(way, "reached")
    except OSError as error:
        print(way, error)
'''

def inside(node, *argv, **options):
    return subprocess.Popen(
        ["nsenter", f"--net={network.path(node)}", "--", *argv], stdout=subprocess.PIPE, text=True, **options
    )

def pod(node):
    return node.pod_network.replace(".0/24", ".1")

def live(node):
    subprocess.run(["ip", "-n", node.netns, "address", "add", pod(node) + "/24", "dev", "lo"], check=True)
    answers = inside(node, sys.executable, "-c", ANSWER)
    assert answers.stdout.readline() == "ready\\n"
    return answers

network.create()
running = {node: live(node) for node in NODES}
for _ in range(2):  # it may leave and join again
    network.join(DEVICE_NODE)
    running[DEVICE_NODE] = live(DEVICE_NODE)
    for one in running:
        pairs = [(where(one), where(other)) for other in running for where in (lambda node: node.address, pod)]
        ways = [f"{source}>{target}" for source, target in pairs]
        print(inside(one, sys.executable, "-c", ASK, *ways, f"{pod(one)}>192.0.2.1").communicate()[0])
    running.pop(DEVICE_NODE).kill()
    network.leave(DEVICE_NODE)
    for node in NODES:
        left = subprocess.run(["ip", "-n", node.netns, "route"], capture_output=True, text=True, check=True).stdout
        print("left", DEVICE_NODE.address in left or DEVICE_NODE.pod_network in left)
for one in running.values():
    one.kill()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for namespaces")
@pytest.mark.skipif(not Path("/proc/sys/net/bridge").exists(), reason="needs the kernel's br_netfilter")
def test_a_node_that_joined_reaches_the_others_and_nothing_outside_and_leaves_no_route() -> None:
    alone = ["unshare", "--mount", "--net", "sh", "-c", 'mount -t tmpfs tmpfs /run && exec "$@"', "sh"]
    packages = str(Path(network.__file__).parents[2])
    done = subprocess.run(
        [*alone, sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": packages},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    asked = [line for line in lines if ">" in line]
    inside = [line for line in asked if "192.0.2.1" not in line]
    assert [line for line in inside if not line.endswith(" reached")] == []
    assert len(inside) == 2 * 2 * 9
    assert [line.partition(" ")[2] for line in asked if line not in inside] == [
        "[Errno 101] Network is unreachable"
    ] * 6
    assert [line for line in lines if line.startswith("left")] == ["left False"] * 4
