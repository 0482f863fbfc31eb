"""What happens around a run: a node that comes late, the catalogue uninstalled, odd users and volumes, no way out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from cluster import Cluster
from e2e.kube import Kube
from e2e.trainjobs import LORA_SFT, Reader, Restarts, Run, trainjob

Submit = Callable[[Mapping[str, Any]], Run]


@pytest.mark.full
def test_a_node_that_comes_late_is_waited_for(submit: Submit, cluster: Cluster, kube: Kube, reader: Reader) -> None:
    first, *others = cluster.nodes()
    spread = {"requiredDuringSchedulingIgnoredDuringExecution": [_ONE_POD_PER_NODE]}
    kube.kubectl("cordon", *others)
    try:
        run = submit(trainjob("late-node", pod={"affinity": {"podAntiAffinity": spread}}))
        run.wait_log(r"waiting for node [01]", index=None)
    finally:
        kube.kubectl("uncordon", *others)
    run.wait_complete()
    assert run.restarts() == Restarts(0, 0)
    nodes = {pod["spec"]["nodeName"] for pod in run.pods()}
    assert len(nodes) == 2
    assert first in nodes
    assert run.manifest(reader)["world_size"] == 2


@pytest.mark.full  # test_upgrades.py has a job that outlives more
def test_a_running_job_outlives_the_catalogue(
    submit: Submit, helm: Callable[..., str], catalogue: Callable[[], None], kube: Kube, reader: Reader
) -> None:
    run = submit(trainjob("outlives", [*LORA_SFT, "--max_steps=60"]))
    run.wait_log(r"'loss'")
    helm("uninstall", "catalogue", "--namespace", "stoker-system", "--wait")
    try:
        assert kube.get("clustertrainingruntime", "trl-distributed") is None
        run.wait_complete()
        assert run.restarts() == Restarts(0, 0)
        assert run.manifest(reader)["steps"] == 60
    finally:
        catalogue()


def test_a_workspace_that_cannot_be_written_to_is_refused_with_the_fix(submit: Submit) -> None:
    read_only = [{"name": "initializer", "mountPath": "/workspace", "readOnly": True}]
    run = submit(trainjob("read-only", mounts=read_only))
    run.wait_failed()
    assert run.restarts() == Restarts(0, 0)
    code, message = run.endings()[0]
    assert code == 78
    assert "the workspace /workspace cannot be written to (Read-only file system)" in message
    assert "fsGroup" in message


@pytest.mark.full
def test_an_arbitrary_user_of_group_0_trains(submit: Submit, reader: Reader) -> None:
    user = {"runAsUser": 1000620000, "runAsGroup": 0, "runAsNonRoot": True}
    run = submit(trainjob("any-user", nodes=1, pod={"securityContext": user}))
    run.wait_complete()
    assert run.manifest(reader)["world_size"] == 1


def test_no_pod_has_a_way_out_of_the_cluster(reader: Reader, cluster: Cluster) -> None:
    # All that ran above ran under this condition. TEST-NET-1 (RFC 5737) stands for the internet.
    probe = (
        "import socket\n"
        "for family, address in ((socket.AF_INET, '192.0.2.1'), (socket.AF_INET6, '2001:db8::1')):\n"
        "    try:\n"
        "        socket.create_connection((address, 443), timeout=3)\n"
        "        print('reached', address)\n"
        "    except OSError as error:\n"
        "        print(error)\n"
    )
    # Nothing answers there anywhere: without a way out that is known at once, with one the attempt runs into silence.
    answers = reader.run(["python", "-c", probe], []).splitlines()
    assert len(answers) == 2
    assert all("unreachable" in answer or "No route" in answer for answer in answers), answers


_ONE_POD_PER_NODE = {
    "topologyKey": "kubernetes.io/hostname",
    "labelSelector": {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": "late-node"}},
}
