"""How the catalogue comes to a cluster and goes again: by either Helm, below a parent chart, and without Trainer."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from charts.helm import TRAINING_RUNTIMES
from charts.runtimes import pods
from cluster import Cluster
from e2e.conftest import ROOT
from e2e.kube import Kube
from stoker.cluster.processes import free_ports

CHART = str(TRAINING_RUNTIMES)
NAMESPACE = "stoker-installing"
RELEASE = "installed"
# Everything the chart can render, under names that no other release has.
EVERYTHING = (
    *("profile=trl", "names.style=versioned", "names.version=installed", "policies.enabled=true"),
    *("accelerator=nvidia-dra", f"namespaces={{{NAMESPACE}}}", "runtimes.trl-distributed.accelerator=cpu"),
    *("serviceAccount.create=true", "runtimes.trl-grpo-async.samplers.slice.lease=gpu-0"),
)
ONE_RUNTIME = ("profile=none", "accelerator=cpu", "runtimes.installed.base=trl-distributed")

Helm = Callable[..., subprocess.CompletedProcess[str]]


def words(*settings: str) -> list[str]:
    """Return values as words of a command line."""
    return [word for setting in settings for word in ("--set", setting)]


@pytest.fixture(params=["4", pytest.param("3", marks=pytest.mark.full)], ids=lambda version: f"helm{version}")
def helm_of(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Helm]:
    """Runs one of the two Helms that are in use; Helm 3 is full because it takes minutes to build."""
    program = Path("helm")
    if request.param == "3":
        built = subprocess.run([ROOT / "tools/build", "helm3"], check=True, stdout=subprocess.PIPE, text=True)
        program = Path(built.stdout.strip()) / "helm"

    def run(*argv: str | Path) -> subprocess.CompletedProcess[str]:
        command = [str(program), *map(str, argv), "--namespace", NAMESPACE]
        done: subprocess.CompletedProcess[str] = cluster.run(command, check=False, capture_output=True)
        return done

    assert run("version", "--short").stdout.startswith(f"v{request.param}.")
    yield run
    run("uninstall", RELEASE, "--ignore-not-found")
    Kube(cluster, "default").delete("namespace", NAMESPACE)


def everything(cluster: Cluster, selector: str) -> list[str]:
    """Return all objects of any kind in any namespace that have labels."""
    kube = Kube(cluster, "default")
    kinds = kube.kubectl("api-resources", "--verbs=list", "--output=name").stdout.split()
    found = kube.kubectl("get", ",".join(kinds), "--all-namespaces", "--selector", selector, "--output=name")
    return sorted(set(found.stdout.split()))


@pytest.mark.full
def test_uninstalling_leaves_what_runs_name_alone_and_installing_again_works(helm_of: Helm, cluster: Cluster) -> None:
    install = ("install", RELEASE, CHART, *words(*EVERYTHING), "--create-namespace")
    for _ in range(2):
        done = helm_of(*install)
        assert done.returncode == 0, done.stderr
        assert "kubectl get trainjobs --all-namespaces" in done.stdout  # what to look at before it is uninstalled
        kinds = {name.split("/")[0] for name in everything(cluster, f"app.kubernetes.io/instance={RELEASE}")}
        assert kinds == {
            "clustertrainingruntime.trainer.kubeflow.org",
            "networkpolicy.networking.k8s.io",
            "resourceclaimtemplate.resource.k8s.io",
            "role.rbac.authorization.k8s.io",
            "rolebinding.rbac.authorization.k8s.io",
            "serviceaccount",
            "validatingadmissionpolicy.admissionregistration.k8s.io",
            "validatingadmissionpolicybinding.admissionregistration.k8s.io",
        }
        assert helm_of("uninstall", RELEASE, "--wait").returncode == 0
        # Runs name them, act by them, or are protected by them. docs/guides/cluster.md: how to delete them.
        left = {name.split("/")[0] for name in everything(cluster, f"app.kubernetes.io/instance={RELEASE}")}
        assert left == {
            "networkpolicy.networking.k8s.io",
            "resourceclaimtemplate.resource.k8s.io",
            "role.rbac.authorization.k8s.io",
            "rolebinding.rbac.authorization.k8s.io",
            "serviceaccount",
        }
        assert everything(cluster, f"owner=helm,name={RELEASE}") == []


def test_it_is_upgraded_and_rolled_back(helm_of: Helm, cluster: Cluster) -> None:
    runtimes = Kube(cluster, NAMESPACE)

    def nodes() -> int:
        runtime = runtimes.get("clustertrainingruntime", "installed")
        assert runtime is not None
        return int(runtime["spec"]["mlPolicy"]["numNodes"])

    steps = [
        (("install", RELEASE, CHART, *words(*ONE_RUNTIME), "--create-namespace"), 1),
        (("upgrade", RELEASE, CHART, *words(*ONE_RUNTIME, "runtimes.installed.numNodes=2")), 2),
        (("rollback", RELEASE, "1"), 1),
    ]
    for step, expected in steps:
        done = helm_of(*step)
        assert done.returncode == 0, f"{step}\n{done.stderr}"
        assert nodes() == expected
    refused = helm_of("upgrade", RELEASE, CHART, *words(*ONE_RUNTIME, "workspace.size=70Gi"))
    assert refused.returncode != 0
    assert "This upgrade would change volumeClaimPolicies of a runtime" in refused.stderr


def test_other_devices_leave_the_template_that_runs_name(helm_of: Helm, cluster: Cluster) -> None:
    kube = Kube(cluster, NAMESPACE)

    def templates() -> dict[str, int]:
        found = kube.items("resourceclaimtemplates", f"app.kubernetes.io/instance={RELEASE}")
        return {
            item["metadata"]["name"]: item["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"]
            for item in found
        }

    def named() -> str:
        runtime = kube.get("clustertrainingruntime", "installed")
        assert runtime is not None
        (pod,) = pods([runtime])
        return str(pod["resourceClaims"][0]["resourceClaimTemplateName"])

    own = (
        *("profile=none", "accelerator=nvidia-dra", "runtimes.installed.base=trl-distributed"),
        "runtimes.installed.initializers=false",
    )
    assert helm_of("install", RELEASE, CHART, *words(*own), "--create-namespace").returncode == 0
    one = named()
    upgraded = helm_of("upgrade", RELEASE, CHART, *words(*own, "runtimes.installed.resources.devices=2"))
    assert upgraded.returncode == 0, upgraded.stderr
    assert templates() == {one: 1, named(): 2}
    back = helm_of("rollback", RELEASE, "1")
    if helm_of("version", "--short").stdout.startswith("v3."):
        assert f'no ResourceClaimTemplate with the name "{one}" found' in back.stderr
        back = helm_of("upgrade", RELEASE, CHART, *words(*own))
    assert back.returncode == 0, back.stderr
    assert named() == one
    assert len(templates()) == 2


def test_a_parent_chart_installs_and_switches_it_off(helm_of: Helm, cluster: Cluster, tmp_path: Path) -> None:
    parent, name = tmp_path / "platform", TRAINING_RUNTIMES.name
    shutil.copytree(TRAINING_RUNTIMES, parent / "charts" / name)  # links in it become the files they lead to
    (parent / "Chart.yaml").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v2",
                "name": "platform",
                "version": "0.1.0",
                "dependencies": [{"name": name, "version": "*", "condition": f"{name}.enabled"}],
            }
        )
    )
    own = {"profile": "none", "accelerator": "cpu", "runtimes": {"installed": {"base": "trl-distributed"}}}
    (parent / "values.yaml").write_text(yaml.safe_dump({"global": {"storageClass": "fast"}, name: own}))
    kube = Kube(cluster, NAMESPACE)
    assert helm_of("install", RELEASE, parent, "--create-namespace").returncode == 0
    runtime = kube.get("clustertrainingruntime", "installed")
    assert runtime is not None
    assert runtime["metadata"]["annotations"]["meta.helm.sh/release-name"] == RELEASE
    done = helm_of("upgrade", RELEASE, parent, *words(f"{name}.enabled=false"))
    assert done.returncode == 0, done.stderr
    assert kube.get("clustertrainingruntime", "installed") is None


@contextmanager
def api_server(programs: Path, folder: Path) -> Iterator[list[str]]:
    """An API server that has nothing but Kubernetes itself: the words by which helm finds it."""
    client, peer, port = free_ports(3)
    key, tokens = folder / "key.pem", folder / "tokens.csv"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    tokens.write_text("token,admin,admin,system:masters\n")
    etcd = [
        *(programs / "etcd", f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync", "--name=etcd"),
        *(f"--listen-client-urls=http://127.0.0.1:{client}", f"--advertise-client-urls=http://127.0.0.1:{client}"),
        *(f"--listen-peer-urls=http://127.0.0.1:{peer}", f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}"),
        f"--initial-cluster=etcd=http://127.0.0.1:{peer}",
    ]
    server = [
        *(programs / "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{client}", f"--secure-port={port}"),
        *(f"--cert-dir={folder}", "--bind-address=127.0.0.1", "--service-cluster-ip-range=10.0.0.0/24"),
        *(f"--token-auth-file={tokens}", "--authorization-mode=AlwaysAllow"),
        *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
        "--service-account-issuer=https://kubernetes.default.svc",
    ]
    with ExitStack() as stack:
        for name, argv in (("etcd", etcd), ("kube-apiserver", server)):
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            stack.enter_context(_running([str(word) for word in argv], log.fileno()))
        yield [
            *("--kube-apiserver", f"https://127.0.0.1:{port}", "--kube-token", "token"),
            "--kube-insecure-skip-tls-verify",
        ]


@contextmanager
def _running(argv: list[str], log: int) -> Iterator[None]:
    process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_a_cluster_without_trainer_is_refused_before_anything_is_made(cluster: Cluster, tmp_path: Path) -> None:
    """On an API server of its own, for the other has Trainer."""
    helm, kubectl = (shutil.which(name, path=cluster.env["PATH"]) for name in ("helm", "kubectl"))
    assert helm is not None
    assert kubectl is not None
    programs = Path(kubectl).resolve().parent
    if not (programs / "kube-apiserver").exists():
        pytest.skip("needs the API server that the embedded cluster comes with")

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([helm, *argv, *server], check=False, capture_output=True, text=True)

    with api_server(programs, tmp_path) as server:
        Kube(cluster, "default").until("the API server", lambda: run("list").returncode == 0 or None, 300)
        refused = run("install", RELEASE, CHART)
        assert refused.returncode != 0
        assert "The cluster does not serve jobset.x-k8s.io/v1alpha2 and trainer.kubeflow.org/v1alpha1" in refused.stderr
        assert refused.stderr.count("  helm upgrade --install ") == 2
        assert json.loads(run("list", "--output", "json").stdout) == []
        unchecked = run("install", RELEASE, CHART, *words("skipApiCheck=true", *ONE_RUNTIME))
        assert (
            'no matches for kind "ClusterTrainingRuntime"' in unchecked.stderr
        )  # what Kubernetes itself would have said
