"""The catalogue over time: from the release before, with other claims, back, away and moved between two releases."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import Cluster
from e2e.conftest import RELEASE, ROOT
from e2e.kube import Kube, condition, uid_of
from e2e.registry import Image
from e2e.trainjobs import LORA_SFT, Reader, Restarts, Run, trainjob

CHART = str(ROOT / "charts" / "training-runtimes")
CATALOGUE = ROOT / "docs" / "guides" / "catalogue.md"
(PREVIOUS,) = (ROOT / "tests" / "charts" / "fixtures").glob("training-runtimes-*.tgz")
SYSTEM = "stoker-system"
RUNTIME = "trl-distributed"
# Of the tests that need no pods: names that no other release here has.
OTHER = "stoker-upgrades"
# An entry of the catalogue: only these have versioned names.
ENTRY = "trl-qwen3-8b"

UNCHECKED = ("--set", "skipUpgradeCheck=true")

Helm = Callable[..., str]


@pytest.fixture
def releases(cluster: Cluster, helm: Helm) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs helm in a namespace of its own; what it installed under `one` and `two` is gone afterwards."""

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = cluster.run(
            ["helm", *argv, "--namespace", OTHER], check=False, capture_output=True
        )
        return done

    yield run
    for release in ("one", "two"):
        helm("uninstall", release, "--namespace", OTHER, "--ignore-not-found")
    system = Kube(cluster, "default")
    for name in runtimes(system):
        if name.startswith(("moved", ENTRY)):
            system.delete("clustertrainingruntime", name)
    system.delete("namespace", OTHER)


def runtimes(kube: Kube) -> dict[str, dict[str, Any]]:
    """Return the cluster's runtimes by name."""
    return {item["metadata"]["name"]: item for item in kube.items("clustertrainingruntimes")}


def own() -> list[str]:
    """Return the words that make a release of one runtime, `moved`."""
    base = ["--set", "profile=none", "--set", "accelerator=cpu", "--create-namespace"]
    return [*base, "--set", "runtimes.moved.base=trl-distributed"]


def take_away(cluster: Cluster, refusal: str) -> None:
    """Run the commands that a refused upgrade prints."""
    remedy = re.search(r"^  for runtime in .*?^  done$", refusal, re.MULTILINE | re.DOTALL)
    assert remedy, refusal
    cluster.run(["bash", "-ec", remedy[0]], check=True, capture_output=True)


def test_a_change_that_kubernetes_refuses_is_refused_with_commands_that_work(
    cluster: Cluster, releases: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    kube = Kube(cluster, OTHER)
    done = releases("install", "one", CHART, *own())
    assert done.returncode == 0, done.stderr
    larger = ("upgrade", "one", CHART, *own(), "--set", "workspace.size=70Gi", "--set", "retries.maxRestarts=5")
    refused = releases(*larger)
    assert refused.returncode != 0
    assert "This upgrade would change failurePolicy and volumeClaimPolicies of a runtime" in refused.stderr
    # What Kubernetes itself would have said, half-way through the release.
    assert "Value is immutable" in releases(*larger, "--set", "skipUpgradeCheck=true").stderr
    take_away(cluster, refused.stderr)
    upgraded = releases(*larger)
    assert upgraded.returncode == 0, upgraded.stderr
    (claims,) = runtimes(kube)["moved"]["spec"]["template"]["spec"]["volumeClaimPolicies"]
    assert claims["templates"][0]["spec"]["resources"]["requests"]["storage"] == "70Gi"
    assert runtimes(kube)["moved"]["spec"]["template"]["spec"]["failurePolicy"]["maxRestarts"] == 5


def test_a_plain_name_moves_to_another_release_without_a_gap(
    cluster: Cluster, releases: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """By the commands of docs/guides/catalogue.md, one after the other."""
    kube = Kube(cluster, OTHER)
    block = re.search(r"^```bash\n([^`]*--take-ownership[^`]*)```$", CATALOGUE.read_text(), re.MULTILINE)
    assert block
    commands = [
        shlex.split(line.replace("NEWCHART", "CHART").replace("CHART", CHART)) for line in block[1].splitlines()
    ]
    settings = ("profile=none", "accelerator=cpu", f"runtimes.{ENTRY}.enabled=true")
    values = tuple(word for setting in settings for word in ("--set", setting))
    documented = [(*words, *(values if words[0] == "install" else ())) for _, *words in commands]
    steps: list[tuple[str, ...]] = [("install", "one", CHART, "--create-namespace", *values), *documented]
    identity = None
    for step in steps:
        done = releases(*step)
        assert done.returncode == 0, f"{step}\n{done.stderr}"
        found = runtimes(kube)[ENTRY]["metadata"]
        identity = identity or found["uid"]
        assert found["uid"] == identity, f"after {step} it is another object: for a moment there was none"
    assert found["annotations"]["meta.helm.sh/release-name"] == "two"
    assert "helm.sh/resource-policy" not in found["annotations"]
    assert releases("uninstall", "one").returncode == 0
    assert ENTRY in runtimes(kube)
    assert releases("uninstall", "two").returncode == 0
    assert ENTRY not in runtimes(kube)


def test_without_asking_no_release_takes_anothers_runtime(
    releases: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    assert releases("install", "one", CHART, *own()).returncode == 0
    refused = releases("install", "two", CHART, *own())
    assert refused.returncode != 0
    assert f"moved: of release one in namespace {OTHER}" in refused.stderr
    # What Helm itself would have said.
    assert "invalid ownership metadata" in releases("install", "two", CHART, *own(), *UNCHECKED).stderr


def test_a_runtime_that_was_made_without_helm_is_adopted_by_the_commands_that_the_refusal_prints(
    cluster: Cluster, releases: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    kube = Kube(cluster, "default")
    rendered = yaml.safe_load_all(releases("template", "one", CHART, *own(), "--set", "skipApiCheck=true").stdout)
    kube.create(*(item for item in rendered if item and item["kind"] == "ClusterTrainingRuntime"))
    uid = uid_of(runtimes(kube)["moved"])
    refused = releases("install", "one", CHART, *own())
    assert refused.returncode != 0
    assert "moved: made without Helm" in refused.stderr
    remedy = re.search(r"^    kubectl label .*release-namespace=\S+$", refused.stderr, re.MULTILINE | re.DOTALL)
    assert remedy, refused.stderr
    cluster.run(["bash", "-ec", remedy[0]], check=True, capture_output=True)
    done = releases("install", "one", CHART, *own())
    assert done.returncode == 0, done.stderr
    assert uid_of(runtimes(kube)["moved"]) == uid
    assert runtimes(kube)["moved"]["metadata"]["labels"]["app.kubernetes.io/instance"] == "one"


@pytest.mark.full
def test_runs_outlive_an_upgrade_a_rollback_and_a_reinstall(
    cluster: Cluster,
    submit: Callable[[Mapping[str, Any]], Run],
    helm: Helm,
    chart: list[str],
    catalogue: Callable[[], None],
    catalogue_values: list[str],
    image: Image,
    kube: Kube,
    reader: Reader,
    tmp_path: Path,
) -> None:
    """From the release before to this one with other retries and claims, which Kubernetes refuses, there and back.

    A run that was suspended with a checkpoint goes on from it.
    """
    previous = ["--values", str(previous_values(image, tmp_path)), "--namespace", SYSTEM]
    changed = ["--set", "workspace.size=2Gi", "--set", "retries.maxRestarts=5", "--namespace", SYSTEM]
    upgrade = ["upgrade", RELEASE, *chart, *catalogue_values, *changed]
    helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait")
    assert kube.items("clustertrainingruntimes", f"app.kubernetes.io/instance={RELEASE}") == []
    try:
        helm("install", RELEASE, str(PREVIOUS), *previous)
        waiting = submit(trainjob("asleep", [*LORA_SFT, "--max_steps=300"], nodes=1))
        waiting.wait_steps(3)
        kube.kubectl("patch", "trainjob", "asleep", "--type=merge", "--patch", '{"spec": {"suspend": true}}')
        kube.until("the job to stop", lambda: condition(waiting.object(), "Suspended") and not waiting.pods(), 300)
        running = submit(trainjob("over-upgrade", [*LORA_SFT, "--max_steps=60"]))
        running.wait_log(r"'loss'")

        refused = cluster.run(["helm", *upgrade], check=False, capture_output=True)
        assert "Remove the old fields, then upgrade right away" in refused.stderr
        take_away(cluster, refused.stderr)
        helm(*upgrade)
        assert claim_size(kube) == "2Gi"
        back = cluster.run(["helm", "rollback", RELEASE, "1", "--namespace", SYSTEM], check=False, capture_output=True)
        assert "Value is immutable" in back.stderr
        take_away(cluster, refused.stderr)
        helm("rollback", RELEASE, "1", "--namespace", SYSTEM)
        assert claim_size(kube) == "1Gi"
        catalogue()  # to this release, with the claims it had

        helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait")
        assert kube.items("clustertrainingruntimes", f"app.kubernetes.io/instance={RELEASE}") == []
        catalogue()
        kube.kubectl("patch", "trainjob", "asleep", "--type=merge", "--patch", '{"spec": {"suspend": false}}')
        running.wait_complete()
        waiting.wait_complete()
        assert (resumed := waiting.manifest(reader))["steps"] == 300
        assert resumed["resumed_from"].startswith("checkpoint-")
        assert running.restarts() == Restarts(0, 0)
        assert running.manifest(reader)["steps"] == 60
    finally:
        catalogue()


def claim_size(kube: Kube) -> str:
    """Return how large the claims of the generic runtime's TrainJobs are."""
    (policy,) = runtimes(kube)[RUNTIME]["spec"]["template"]["spec"]["volumeClaimPolicies"]
    return str(policy["templates"][0]["spec"]["resources"]["requests"]["storage"])


def previous_values(image: Image, folder: Path) -> Path:
    """Return the tests' values as far as the release before knows them."""
    values = yaml.safe_load((Path(__file__).parent / "values.yaml").read_text())
    for new in ("profile", "initializers", "runtimes"):
        values.pop(new, None)
    values["images"] = {"trl": {"repository": image.repository, "tag": image.tag}}
    path = folder / "previous.yaml"
    path.write_text(yaml.safe_dump(values))
    return path
