"""The catalogue as a team has it that may change nothing outside its namespace, where quota and pod security hold."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from builders import job_of_pod, patches, replicated_jobs, trainjob
from charts.helm import OWN_IMAGES, TRAINING_RUNTIMES, accelerators, render, values_files
from charts.runtimes import jobs, runtimes
from cluster import Cluster
from e2e.kube import Kube
from e2e.registry import Image

NAMESPACE = "stoker-team"
USER = "alice"
RELEASE = "team"
# A few with initializers are enough to see both kinds of pods; the generic one is what `helm test` uses.
SETTINGS = (
    *("kind=TrainingRuntime", "profile=all", "workspace.retention=Delete"),
    *("runtimes.trl-distributed.initializers=true", r"runtimes.trl-qwen3-0\.6b.initializers=true"),
)
DEVICES = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/xe", "google.com/tpu")
COUNTED = ("pods", "persistentvolumeclaims", "requests.cpu", "limits.cpu", *(f"requests.{name}" for name in DEVICES))
MEASURED = ("requests.memory", "limits.memory", "requests.storage")
QUOTA = dict.fromkeys(COUNTED, "1000") | dict.fromkeys(MEASURED, "1000Ti")

Release = Callable[..., str]


@pytest.fixture(scope="module")
def team(cluster: Cluster) -> Iterator[Kube]:
    """A namespace with a quota and the restricted pod security standard, and a user who has rights in it alone."""
    system = Kube(cluster, "default")
    found = Kube(cluster, NAMESPACE)
    system.delete("namespace", NAMESPACE)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    system.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    own = {"apiGroups": ["trainer.kubeflow.org"], "resources": ["trainingruntimes", "trainjobs"], "verbs": ["*"]}
    found.create(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": {"hard": QUOTA}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "trainer"},
            "rules": [own],
        },
        *(_binding(kind, name) for kind, name in (("ClusterRole", "admin"), ("Role", "trainer"))),
    )
    yield found
    system.delete("namespace", NAMESPACE, wait=False)


def _binding(kind: str, role: str) -> dict[str, Any]:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"{USER}-{role}"},
        "roleRef": {"apiGroup": group, "kind": kind, "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": USER}],
    }


@pytest.fixture(scope="module")
def release(cluster: Cluster, team: Kube, catalogue_values: list[str]) -> Iterator[Release]:
    """The catalogue in the namespace, installed by its user; runs helm as that user and returns all that it printed."""

    def run(*argv: str) -> str:
        command = ["helm", *argv, "--namespace", NAMESPACE, "--kube-as-user", USER]
        done = cluster.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
        return str(done.stdout)

    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    run("install", RELEASE, str(TRAINING_RUNTIMES), *catalogue_values, *settings)
    yield run
    run("uninstall", RELEASE, "--ignore-not-found")


def test_a_user_without_rights_in_the_cluster_installs_the_whole_catalogue(release: Release, team: Kube) -> None:
    allowed = team.kubectl("auth", "can-i", "create", "clustertrainingruntimes", "--as", USER, check=False)
    assert allowed.stdout.strip() == "no"
    found = {item["metadata"]["name"] for item in team.items("trainingruntimes")}
    rendered = runtimes(render(TRAINING_RUNTIMES, settings=['accelerator="cpu"']))
    assert found == {runtime["metadata"]["name"] for runtime in rendered}


@pytest.mark.full
def test_helm_test_trains_ten_steps_and_leaves_nothing(release: Release, team: Kube) -> None:
    said = release("test", RELEASE)
    assert "TrainJob test-team of runtime trl-distributed: created, ten steps on a CPU" in said
    assert "TrainJob test-team: Complete after" in said
    for kind in ("trainjobs", "jobsets", "pods", "persistentvolumeclaims"):
        team.until(f"no {kind}", lambda kind=kind: team.items(kind) == [], 180)  # type: ignore[misc]


@pytest.mark.full
def test_helm_test_fails_with_what_the_pods_said(release: Release) -> None:
    impossible = "runtimes.trl-distributed.env.STOKER_RESUME=require"
    release("upgrade", RELEASE, str(TRAINING_RUNTIMES), "--reuse-values", "--set", impossible)
    try:
        with pytest.raises(AssertionError, match="TrainJob test-team failed") as failed:
            release("test", RELEASE)
        assert "STOKER_RESUME=require" in str(failed.value)
    finally:
        release("rollback", RELEASE, "1")


def test_helm_test_says_what_it_skips_where_nothing_trains_on_cpus(release: Release, team: Kube, image: Image) -> None:
    fetch = ["--set", f"images.fetch.repository={image.repository}", "--set", f"images.fetch.tag={image.tag}"]
    base = ["--set", "kind=TrainingRuntime", "--set", "profile=none", "--set", "runtimes.mine.base=trl-distributed"]
    release("install", "gpus", str(TRAINING_RUNTIMES), *base, *fetch)
    try:
        assert "skipped: ten steps on a CPU" in release("test", "gpus")
    finally:
        release("uninstall", "gpus")


def test_the_trainjob_in_the_notes_is_taken_as_it_is_printed(release: Release, cluster: Cluster) -> None:
    shown = release("get", "notes", RELEASE).split("kubectl apply -f - ")[1].split("\nEOF\n")[0]
    done = cluster.run(
        ["bash", "-ec", f"kubectl apply --dry-run=server --as {USER} -f - {shown}\nEOF"],
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trainjob.trainer.kubeflow.org/my-run created (server dry run)\n"


@pytest.mark.full
def test_pods_of_every_runtime_on_every_accelerator_are_admitted(team: Kube) -> None:
    """As the jobs' controller would make them, by the admission that a pod of ours has to pass."""
    team.apply(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "training"}, "value": 1}
    )
    platform = [path for path in values_files(TRAINING_RUNTIMES) if path.stem == "platform-values"]
    rendered = [
        *(item for name in accelerators(TRAINING_RUNTIMES) for item in render_for(name)),
        *render(TRAINING_RUNTIMES, platform),
    ]
    pods = {
        json.dumps(job["spec"]["template"], sort_keys=True) for runtime in runtimes(rendered) for job in jobs(runtime)
    }
    assert len(pods) > 50
    accounts = {json.loads(pod)["spec"].get("serviceAccountName", "default") for pod in pods}
    team.apply(*({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}} for name in accounts))
    try:
        done = dry_run(team, *(json.loads(pod) for pod in sorted(pods)))
        assert done == (0, "")
    finally:
        team.delete("priorityclass", "training")


def render_for(accelerator: str) -> list[dict[str, Any]]:
    """Return the whole catalogue for an accelerator."""
    return render(TRAINING_RUNTIMES, settings=[f'accelerator="{accelerator}"', *OWN_IMAGES])


def dry_run(kube: Kube, *templates: dict[str, Any]) -> tuple[int, str]:
    """Return how the API server answers to pods made of templates: exit code and what it refused."""
    return create_dry(kube, [as_jobset_makes_it(f"pod-{number}", item) for number, item in enumerate(templates)])


def create_dry(kube: Kube, objects: list[dict[str, Any]]) -> tuple[int, str]:
    """Return how the API server would answer to new objects: kubectl's exit code, and what was refused."""
    stdin = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    done = kube.kubectl("create", "--dry-run=server", "-f", "-", check=False, stdin=stdin)
    return done.returncode, done.stderr


def as_jobset_makes_it(name: str, template: dict[str, Any]) -> dict[str, Any]:
    """Return the pod of a template; JobSet adds the volume of a claim that it makes itself."""
    spec = template["spec"]
    if all(volume["name"] != "initializer" for volume in spec["volumes"]):
        claim = {"name": "initializer", "persistentVolumeClaim": {"claimName": "initializer-run"}}
        spec = {**spec, "volumes": [*spec["volumes"], claim]}
    metadata = {**template.get("metadata", {}), "name": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.mark.full
def test_runtimes_for_every_accelerator_pass_trainers_webhooks(team: Kube) -> None:
    every = [runtime for name in accelerators(TRAINING_RUNTIMES) for runtime in runtimes(render_for(name))]
    for number, runtime in enumerate(every):
        runtime["metadata"]["name"] = f"runtime-{number}"
    code, said = create_dry(team, every)
    assert (code, [line for line in said.splitlines() if "is deprecated" not in line]) == (0, [])
    every[0]["spec"]["template"]["spec"]["replicatedJobs"][0]["replicas"] = 2
    assert "always must be 1" in create_dry(team, every[:1])[1]


def test_the_quota_and_the_standard_refuse_what_does_not_keep_them(team: Kube) -> None:
    """Guards the tests above and below."""
    (runtime, *_) = runtimes(render_for("cpu"))
    (pod,) = (job["spec"]["template"] for job in jobs(runtime) if job["metadata"]["name"] == "node")
    unlimited, privileged = (json.loads(json.dumps(pod)) for _ in range(2))
    del unlimited["spec"]["containers"][0]["resources"]["limits"]
    privileged["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    assert "must specify limits.cpu for: node; limits.memory for: node" in dry_run(team, unlimited)[1]
    assert 'violates PodSecurity "restricted:latest"' in dry_run(team, privileged)[1]


@pytest.mark.usefixtures("release")
def test_a_trainjob_of_every_runtime_gets_its_pods(team: Kube) -> None:
    """Its pods are for a node that does not exist: what is asked here is whether they come to be."""
    names = {item["metadata"]["name"]: item for item in team.items("trainingruntimes")}
    trainjobs = [_nowhere(runtime) for runtime in names.values()]
    team.create(*trainjobs)
    try:
        for name in (item["metadata"]["name"] for item in trainjobs):
            selector = f"jobset.sigs.k8s.io/jobset-name={name}"
            found = team.until(f"a pod of {name}", lambda s=selector: team.items("pods", s), 300)  # type: ignore[misc]
            kinds = {pod["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"] for pod in found}
            assert kinds <= {"node", "sampler", "dataset-initializer", "model-initializer"}
    finally:
        team.kubectl("delete", "trainjobs", "--all")


def _nowhere(runtime: dict[str, Any]) -> dict[str, Any]:
    nowhere = {"nodeSelector": {"example.com/none": "such"}}
    spec = patches(*(job_of_pod(job["name"], **nowhere) for job in replicated_jobs(runtime)))
    name = runtime["metadata"]["name"]
    return trainjob(name.replace(".", "-"), runtime=name, kind="TrainingRuntime", with_trainer=False, spec=spec)
