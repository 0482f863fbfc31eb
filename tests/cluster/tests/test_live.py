"""What a cluster promises, proved on one that runs."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cluster import Cluster, addons, artifacts, images, optional
from cluster.commands import capture
from cluster.embedded import cgroups, devices, network, node
from cluster.embedded.layout import DEVICE_NODE, NODES, Node
from cluster.embedded.processes import pid_of
from cluster.progress import wait_for

PROBE = images.Image(artifacts.GoModule("probe"), "/probe")
RESTRICTED = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def kubectl(cluster: Cluster, *arguments: str, stdin: str = "", check: bool = True) -> str:
    done = cluster.run(["kubectl", *arguments], input=stdin, capture_output=True, check=False)
    assert not check or done.returncode == 0, done.stderr
    output: str = done.stdout + done.stderr
    return output


def items(cluster: Cluster, kind: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(kubectl(cluster, "get", kind, "-A", "-o", "json"))["items"]
    return listed


def pod(name: str, image: str, node: str, uid: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "probe"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsUser": uid, "runAsGroup": 0},
            "containers": [
                {
                    "name": "probe",
                    "image": image,
                    "args": ["serve", ":8080"],
                    "securityContext": RESTRICTED,
                    "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
                    "readinessProbe": {"httpGet": {"port": 8080}, "periodSeconds": 1},
                }
            ],
            "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}],
        },
    }


CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "shared"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "probe"},
    "spec": {"selector": {"app": "probe"}, "ports": [{"port": 80, "targetPort": 8080}]},
}


class Probes:
    """Two pods on two nodes, of different users, that share a volume and stand behind one Service."""

    def __init__(self, cluster: Cluster, image: str) -> None:
        self.cluster = cluster
        self.image = image
        self.namespace = f"probe-{uuid.uuid4().hex[:8]}"
        schedulable = [n["metadata"]["name"] for n in items(cluster, "nodes") if not n["spec"].get("taints")]
        self.users = dict(zip(("first", "second"), (1001, 54321), strict=True))
        self.nodes = dict(zip(self.users, schedulable, strict=False))

    def create(self) -> None:
        kubectl(self.cluster, "create", "namespace", self.namespace)
        label = "pod-security.kubernetes.io/enforce=restricted"
        kubectl(self.cluster, "label", "namespace", self.namespace, label)
        self.apply(CLAIM, SERVICE, *(pod(n, self.image, self.nodes[n], uid) for n, uid in self.users.items()))
        wait = ["wait", "--for=condition=Ready", "pod", "--all", "--timeout=180s"]
        assert "condition met" in kubectl(self.cluster, "-n", self.namespace, *wait)

    def apply(self, *objects: dict[str, Any], check: bool = True) -> str:
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        return kubectl(self.cluster, "-n", self.namespace, "apply", "-f", "-", stdin=document, check=check)

    def run(self, name: str, *arguments: str, check: bool = True) -> str:
        command = ["-n", self.namespace, "exec", name, "--", PROBE.program, *arguments]
        return kubectl(self.cluster, *command, check=check).strip()

    def reaches(self, name: str, url: str) -> bool:
        return self.run(name, "get", url, check=False) in self.users

    def address(self, name: str) -> str:
        return kubectl(self.cluster, "-n", self.namespace, "get", "pod", name, "-o", "jsonpath={.status.podIP}")

    def delete(self) -> None:
        kubectl(self.cluster, "delete", "namespace", self.namespace, "--wait=false", check=False)


@pytest.fixture(scope="module")
def probes(live: Cluster) -> Iterator[Probes]:
    if not live.registry:
        pytest.skip("this cluster has no registry to push the probe's image to (set CLUSTER_REGISTRY)")
    folders = artifacts.build([PROBE.module])
    images.publish(
        [PROBE], folders, live.registry, lambda argv, stdin="": live.run(argv, input=stdin, capture_output=True).stdout
    )
    made = Probes(live, f"{live.registry}/{PROBE.name}")
    try:
        made.create()
        yield made
    finally:
        made.delete()


def test_a_trainjob_of_two_pods_runs_to_its_end(probes: Probes) -> None:
    node = {
        "name": "node",
        "image": probes.image,
        # The pods find each other by the names JobSet gives them. One that ended alone would take its name with it.
        "command": [PROBE.program, "meet", ":8080", "train-node-0-0.train", "train-node-0-1.train"],
        "securityContext": RESTRICTED,
    }
    template = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {
            "backoffLimit": 3,
            "template": {
                "spec": {"securityContext": {"runAsUser": 1001}, "restartPolicy": "OnFailure", "containers": [node]}
            },
        },
    }
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": "probe", "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {
            "mlPolicy": {"numNodes": 2, "torch": {}},
            "template": {"spec": {"replicatedJobs": [{"name": "node", "template": template}]}},
        },
    }
    trainjob = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "train"},
        "spec": {"runtimeRef": {"kind": "TrainingRuntime", "name": "probe"}, "trainer": {"numNodes": 2}},
    }
    probes.apply(runtime)
    probes.apply(trainjob)
    wait = ["-n", probes.namespace, "wait", "--timeout=180s"]
    kubectl(probes.cluster, *wait, "--for=condition=Complete", "trainjob/train")
    jobset = json.loads(kubectl(probes.cluster, "-n", probes.namespace, "get", "jobset", "train", "-o", "json"))
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    env = {variable["name"] for variable in job["template"]["spec"]["containers"][0]["env"]}
    assert "PET_NNODES" in env
    assert "KUBEFLOW_TRAINER_SERVER_URL" in env, "the feature gate TrainJobStatus is off"


@pytest.fixture
def embedded(live: Cluster) -> Cluster:
    if live.provider.name != "embedded":
        pytest.skip(f"a promise of the embedded provider, not of {live.provider.name}")
    return live


def test_status_says_healthy(live: Cluster) -> None:
    assert all(health.healthy for health in live.provider.status())


def test_a_second_up_finds_nothing_to_do(embedded: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    embedded.provider.up()
    assert "the cluster is already up, healthy and current" in capfd.readouterr().err


def test_two_nodes(live: Cluster) -> None:
    assert len(live.nodes()) >= 2


def test_pods_reach_each_other_across_nodes(probes: Probes) -> None:
    for here, there in (("first", "second"), ("second", "first")):
        assert probes.run(here, "get", f"http://{probes.address(there)}:8080") == there


def test_services_and_dns(probes: Probes) -> None:
    for name in probes.users:
        # kube-proxy learns of a Service's pods a moment after they are Ready.
        wait_for("the Service", partial(probes.reaches, name, "http://probe"), 120, "")
        assert probes.run(name, "lookup", f"probe.{probes.namespace}.svc.cluster.local").startswith("[10.")


def test_a_volume_is_shared_by_two_users_on_two_nodes(probes: Probes) -> None:
    for writer, reader in (("first", "second"), ("second", "first")):
        probes.run(writer, "write", f"/shared/{writer}", f"from {writer}")
        assert probes.run(reader, "read", f"/shared/{writer}") == f"from {writer}"


def test_logs_reach_the_client(probes: Probes) -> None:
    kubectl(probes.cluster, "-n", probes.namespace, "logs", "first")


def test_restricted_namespaces_refuse_privileged_pods(probes: Probes) -> None:
    privileged = pod("privileged", probes.image, probes.nodes["first"], 0)
    privileged["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    answer = probes.apply(privileged, check=False)
    assert "violates PodSecurity" in answer
    assert "privileged" in answer


def test_a_cordoned_node_takes_no_pods(live: Cluster, probes: Probes) -> None:
    node = probes.nodes["second"]
    kubectl(live, "cordon", node)
    try:
        listed = {n["metadata"]["name"]: n["spec"].get("unschedulable", False) for n in items(live, "nodes")}
        assert listed[node]
    finally:
        kubectl(live, "uncordon", node)


def test_nothing_outside_can_be_reached(embedded: Cluster, probes: Probes) -> None:
    # Documentation addresses (RFC 5737): there is nothing there even where there is a way out.
    for name in probes.users:
        answer = probes.run(name, "dial", "192.0.2.1:443", check=False)
        assert "connected" not in answer
        assert "unreachable" in answer or "no route" in answer, answer
    routes = embedded.run(["ip", "route"], capture_output=True).stdout
    assert "default" not in routes


def test_names_outside_do_not_resolve(embedded: Cluster, probes: Probes) -> None:
    assert "no such host" in probes.run("first", "lookup", "example.com.", check=False)


def test_every_image_comes_from_the_registry(embedded: Cluster, probes: Probes) -> None:
    for each in NODES:
        listed = capture(["ctr", "-a", str(each.containerd_socket), "-n", "k8s.io", "images", "ls", "-q"]).split()
        named = [image for image in listed if not image.startswith("sha256:")]
        assert probes.image in named
        assert [image for image in named if not image.startswith(f"{embedded.registry}/")] == []


def test_the_cluster_does_not_show_in_the_mount_table(embedded: Cluster) -> None:
    mounts = [line for line in capture(["mount"]).splitlines() if "embedded-cluster" in line]
    assert [line for line in mounts if not line.startswith("nsfs on ")] == []


@pytest.mark.usefixtures("embedded")
@pytest.mark.skipif(not Path("/dev/loop-control").exists(), reason="needs loop devices")
def test_the_files_of_a_node_are_on_a_disk_of_its_own() -> None:
    for one in NODES:
        mounted = Path(f"/proc/{pid_of(node.mounts(one))}/mounts").read_text().splitlines()
        (disk,) = (line.split()[0] for line in mounted if line.split()[1] == str(one.data))
        assert disk.startswith("/dev/loop")


@pytest.fixture
def third(embedded: Cluster, probes: Probes) -> Iterator[str]:
    """A pod that claims a device, on a node that joins for it and leaves again."""
    optional.add(embedded, "dra")
    try:
        requests = [{"name": "gpu", "exactly": {"deviceClassName": addons.DEVICE_CLASS}}]
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "device"},
            "spec": {"devices": {"requests": requests}},
        }
        claiming = pod("third", probes.image, DEVICE_NODE.name, 1003)
        claiming["spec"] |= {
            "tolerations": [{"key": devices.TAINT["key"], "operator": "Exists"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "device"}],
        }
        claiming["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        probes.apply(claim, claiming)
        wait = ["wait", "--for=condition=Ready", "pod/third", "--timeout=300s"]
        assert "condition met" in kubectl(embedded, "-n", probes.namespace, *wait)
        yield "third"
    finally:
        optional.remove(embedded, "dra")


@pytest.mark.full  # builds containerd
@pytest.mark.timeout(5400)  # with an empty cache it waits for the cluster's programs too
def test_a_node_with_devices_joins_the_others_and_leaves_nothing(
    embedded: Cluster, probes: Probes, request: pytest.FixtureRequest
) -> None:
    optional.remove(embedded, "dra")  # a run that was killed may have left it
    before, routes = embedded.nodes(), capture([*_in(NODES[1]), "ip", "route"])
    name = request.getfixturevalue("third")
    assert embedded.nodes() == [*before, DEVICE_NODE.name]
    wait_for("the cluster", partial(is_healthy, embedded), 120, "")
    optional.add(embedded, "dra")  # at once: it is there
    for other in probes.users:
        assert probes.run(name, "get", f"http://{probes.address(other)}:8080") == other
        assert probes.run(other, "get", f"http://{probes.address(name)}:8080") == name
    wait_for("the Service", partial(probes.reaches, name, "http://probe"), 120, "")
    assert probes.run(name, "lookup", f"probe.{probes.namespace}.svc.cluster.local").startswith("[10.")
    probes.run("first", "write", "/shared/third", "from first")
    assert probes.run(name, "read", "/shared/third") == "from first"

    optional.remove(embedded, "dra")
    assert not optional.has(embedded, "dra")
    assert embedded.nodes() == before
    assert not network.path(DEVICE_NODE).exists()
    assert cgroups.processes(DEVICE_NODE) == []
    assert [folder for folder in (DEVICE_NODE.run, DEVICE_NODE.data, DEVICE_NODE.config) if folder.exists()] == []
    assert capture([*_in(NODES[1]), "ip", "route"]) == routes
    assert not json.loads(kubectl(embedded, "get", "resourceslices", "-o", "json"))["items"]
    wait_for("the cluster", partial(is_healthy, embedded), 120, "")


def is_healthy(embedded: Cluster) -> bool:
    """Return whether all its parts are: on a machine that is busy, not at each moment."""
    return all(health.healthy for health in embedded.provider.status())


def _in(node: Node) -> list[str]:
    """Return what runs a command in a node's network."""
    return ["nsenter", f"--net={network.path(node)}", "--"]
