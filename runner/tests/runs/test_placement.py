"""`stoker doctor --cluster` says which label or taint keeps pods of a runtime waiting."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from runner.tests.runs.api_server import Cluster

from builders import job_of_pod, renamed
from stoker.commands.main import main
from stoker.runs.placement import homeless

ROLE = "stoker.dev/role"
NO_LABEL = (
    "runtime trl-grpo-async, job sampler: no node has the label stoker.dev/role=sampler: "
    "kubectl label node NODE stoker.dev/role=sampler"
)
TAINTED = (
    "runtime trl-grpo-async, job node: each node with the right labels has a taint that the pods do not tolerate "
    "(stoker.dev/role=other:NoSchedule): add it to tolerations in the values of training-runtimes, or remove the taint"
)


def node(name: str, *taints: dict[str, str], **labels: str) -> dict[str, Any]:
    """Return a node; its label `role` is Stoker's."""
    named = {ROLE if key == "role" else key: value for key, value in labels.items()}
    return {"metadata": {"name": name, "labels": named}, "spec": {"taints": [*taints]}}


def taint(value: str, effect: str = "NoSchedule") -> dict[str, str]:
    """Return the taint of a role."""
    return {"key": ROLE, "value": value, "effect": effect}


def runtime(**more: Any) -> dict[str, Any]:
    """Return a runtime whose two roles have nodes of their own."""
    made = renamed("trl-grpo-async", "trl")
    made["spec"]["template"]["spec"]["replicatedJobs"] = [
        job_of_pod(
            name,
            **{"nodeSelector": {ROLE: role}, "tolerations": [{**taint(role), "operator": "Equal"}], **more},
        )
        for name, role in (("node", "trainer"), ("sampler", "sampler"))
    ]
    return made


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ([node("a", role="trainer"), node("b", role="sampler")], []),
        ([node("a", taint("trainer"), role="trainer"), node("b", taint("sampler"), role="sampler")], []),
        ([node("a", taint("other", "PreferNoSchedule"), role="trainer"), node("b", role="sampler")], []),
        (
            [node("a", role="trainer"), node("b")],
            [NO_LABEL],
        ),
        (
            [node("a", taint("other"), role="trainer"), node("b", role="sampler")],
            [TAINTED],
        ),
    ],
)
def test_what_keeps_pods_waiting_is_named(nodes: list[dict[str, Any]], told: list[str]) -> None:
    assert [*homeless(runtime(), nodes)] == told


def test_the_command_names_the_cluster_that_was_looked_at() -> None:
    (why,) = homeless(runtime(), [node("a", role="trainer")], " --context prod")
    assert why.endswith("kubectl label node NODE stoker.dev/role=sampler --context prod")


def test_labels_that_no_node_has_together_are_named() -> None:
    (first, second) = homeless(runtime(nodeSelector={"a": "1", "b": "1"}), [node("x", a="1"), node("y", b="1")])
    assert "no node has all of the labels a=1, b=1" in first
    assert "job sampler" in second


def test_a_toleration_of_everything_lets_pods_anywhere() -> None:
    nodes = [node(role, taint("x", "NoExecute"), role=role) for role in ("trainer", "sampler")]
    assert [*homeless(runtime(tolerations=[{"operator": "Exists"}]), nodes)] == []
    assert len([*homeless(runtime(tolerations=[{"operator": "Exists", "key": "other"}]), nodes)]) == 2


@pytest.mark.usefixtures("kubeconfig")
def test_doctor_asks_the_cluster(cluster: Cluster) -> None:
    cluster.kinds.add("nodes")
    cluster.add("clustertrainingruntimes", runtime())
    cluster.add("nodes", node("a", role="trainer"))
    told = CliRunner().invoke(main, ["doctor", "--cluster"])
    assert (told.exit_code, "no node has the label stoker.dev/role=sampler" in told.output) == (78, True), told.output
    cluster.add("nodes", node("b", role="sampler"))
    told = CliRunner().invoke(main, ["doctor", "--cluster"])
    assert (told.exit_code, "each has nodes for its pods" in told.output) == (0, True), told.output


def test_doctor_looks_at_one_thing_at_a_time() -> None:
    told = CliRunner().invoke(main, ["doctor", "--cluster", "--image"])
    assert (told.exit_code, "write one of --image and --cluster" in told.output) == (64, True)
