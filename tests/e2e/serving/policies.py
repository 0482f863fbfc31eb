"""Network policies that hold on a node: in the embedded cluster by Kubernetes' own agent, elsewhere by the cluster's.

Only connections from and to the pods under test are decided about: no other test notices.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from charts.policed_network import agent, queue_rules
from cluster import Cluster


@contextmanager
def enforced(cluster: Cluster, node: str, addresses: Sequence[str], log: Path) -> Iterator[None]:
    """Let network policies hold for pods of one node while the block runs.

    Args:
        cluster: the cluster.
        node: the node whose network `cluster.run` is in.
        addresses: of the pods.
        log: gets what the agent says.
    """
    if cluster.provider.name != "embedded":
        yield
        return

    def change(how: str, rule: Sequence[str]) -> None:
        cluster.run(["iptables", "--wait", "--table", "mangle", how, *rule])

    added: list[list[str]] = []
    with log.open("wb") as output:
        running = subprocess.Popen(
            cluster.provider.wrap(agent(cluster.env["KUBECONFIG"], node)), stdout=output, stderr=output
        )
        try:
            for rule in (rule for address in addresses for rule in queue_rules(address)):
                change("--append", rule)
                added.append(rule)
            yield
            assert running.poll() is None, f"the agent has ended: {log.read_text()[-2000:]}"
        finally:
            for rule in added:
                change("--delete", rule)
            running.terminate()
            running.wait(120)
