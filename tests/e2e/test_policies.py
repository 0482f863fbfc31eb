"""The chart's rules for TrainJobs, on the API server that applies them: what is let through, and what a user reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from builders import job_of_pod, patches, trainjob
from cluster import Cluster
from e2e.conftest import ROOT
from e2e.kube import Kube

CHART = ROOT / "charts" / "training-runtimes"
NAMESPACE = "stoker-policies"
RELEASE = "policed"
# Names that no other release of these tests has.
RUNTIME = "trl-distributed-policed"
DEPRECATED = "trl-llama3.2-1b-policed"
WIDE, SAMPLED = "wide", "sampled"  # of the values alone: those keep the names they are given
UNDER_RULES = f"{NAMESPACE}-on"
WITHOUT_RULES = f"{NAMESPACE}-off"
SETTINGS = (
    *("profile=none", "accelerator=cpu", "names.style=versioned", "names.version=policed", "policies.enabled=true"),
    *("runtimes.trl-distributed.enabled=true", r"runtimes.trl-llama3\.2-1b.enabled=true"),
    r"runtimes.trl-llama3\.2-1b.initializers=false",
    *("runtimes.wide.base=trl-distributed", "runtimes.wide.numNodes=16"),
    *("runtimes.sampled.base=trl-grpo-async", "runtimes.sampled.initializers=false"),
    r"runtimes.trl-llama3\.2-1b.deprecated.replacement=trl-distributed-policed",
    *("policies.maxNodes.enabled=true", "policies.nodes=4", "policies.imageRegistries.enabled=true"),
    "policies.otherRuntimes={theirs,TrainingRuntime/own}",
    *("policies.registries={registry.example.com/team,ghcr.io/stoker-dev}", "policies.queue.enabled=true"),
)


def job(
    name: str = "allowed",
    *,
    runtime: str = RUNTIME,
    kind: str | None = None,
    queue: str | None = "research",
    **trainer: Any,
) -> dict[str, Any]:
    """Return a TrainJob that keeps all rules but for what is said."""
    suspended = {"suspend": True}
    made = trainjob(name, runtime=runtime, kind=kind, with_trainer=bool(trainer), spec=suspended, **trainer)
    made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": queue} if queue is not None else {}
    return made


class Breach(NamedTuple):
    """A TrainJob that breaks one rule, and what its user reads."""

    rule: str
    trainjob: dict[str, Any]
    message: str


LONG = "a-name-with-more-than-33-characters"
BREACHES = [
    Breach(
        "name-length",
        job(LONG),
        f"the name has 35 characters and may have 33 with runtime {RUNTIME}, for Kubernetes adds to it",
    ),
    Breach(
        "name-length",
        job("n" * 46, runtime=SAMPLED),
        f"the name has 46 characters and may have 45 with runtime {SAMPLED}, for Kubernetes adds to it",
    ),
    Breach(
        "catalogue-runtimes",
        job(runtime="homemade", numNodes=1),
        f"ClusterTrainingRuntime homemade is not in the catalogue: set spec.runtimeRef to kind ClusterTrainingRuntime "
        f"and one of {SAMPLED}, {RUNTIME}, {DEPRECATED}, {WIDE}",
    ),
    Breach(
        "catalogue-runtimes",
        job(kind="TrainingRuntime", numNodes=1),
        f"TrainingRuntime {RUNTIME} is not in the catalogue: set spec.runtimeRef to kind ClusterTrainingRuntime",
    ),
    Breach(
        "catalogue-runtimes",
        job(runtime="theirs", kind="TrainingRuntime", numNodes=1),
        "TrainingRuntime theirs is not in the catalogue",
    ),
    Breach("no-deprecated-runtimes", job(runtime=DEPRECATED), f"runtime {DEPRECATED} is deprecated: use {RUNTIME}"),
    Breach("max-nodes", job(numNodes=5), "spec.trainer.numNodes is 5 and may be 4 at most"),
    Breach(
        "max-nodes",
        job(runtime=WIDE),
        "spec.trainer.numNodes is 16 by the runtime's own default and may be 4 at most",
    ),
    Breach("max-nodes", job(runtime="theirs"), "runtime theirs is not in the catalogue, so its own number of nodes"),
    Breach(
        "image-registries",
        job(image="registry.example.com/team-b/trl:1"),
        "spec.trainer.image registry.example.com/team-b/trl:1 must come from one of registry.example.com/team, ghcr.io",
    ),
    Breach(
        "queue",
        job(queue=None),
        "a TrainJob here waits in a queue: name one in the label kueue.x-k8s.io/queue-name",
    ),
    Breach(
        "queue",
        job(queue=""),  # as a template without a value writes it: Kueue reads no queue either
        "a TrainJob here waits in a queue: name one in the label kueue.x-k8s.io/queue-name",
    ),
]
ALLOWED = [
    job(),
    job("a-name-with-exactly-33-characters"),
    job("n" * 45, runtime=SAMPLED),
    job(numNodes=4),
    job(runtime=WIDE, numNodes=4),
    job(image="registry.example.com/team/trl:1", numNodes=1),
    job(image="ghcr.io/stoker-dev/trl@sha256:" + "0" * 64),
]


@pytest.fixture(scope="module")
def rules(cluster: Cluster, helm: Callable[..., str]) -> Iterator[Callable[[str], None]]:
    """Installs the rules with the mode that it is called with; two namespaces, one of which has opted in."""
    system = Kube(cluster, "default")
    labelled = {UNDER_RULES: {"stoker.dev/policies": "enabled"}, WITHOUT_RULES: {}}
    for name, labels in labelled.items():
        system.delete("namespace", name)
        system.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    settings = [word for setting in SETTINGS for word in ("--set", setting)]

    def install(mode: str) -> None:
        helm(
            "upgrade", "--install", RELEASE, str(CHART), *settings, "--set", f"policies.mode={mode}",
            "--namespace", NAMESPACE, "--create-namespace",
        )  # fmt: skip
        # The API server takes a moment to see a policy, and to see that it has changed.
        system.until(f"the rules to {mode}", lambda: all(in_force(cluster, breach, mode) for breach in BREACHES), 180)

    yield install
    helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found")
    for name in (NAMESPACE, *labelled):
        system.delete("namespace", name, wait=False)


def policy(rule: str) -> str:
    """Return the name of a rule's policy."""
    return f"{RELEASE}-{rule}.{NAMESPACE}"


def admitted(cluster: Cluster, trainjob: dict[str, Any], namespace: str = UNDER_RULES) -> tuple[bool, str]:
    """Return whether the API server would take a TrainJob, and what it says to its user."""
    done = Kube(cluster, namespace).kubectl(
        "create", "--dry-run=server", "-f", "-", check=False, stdin=json.dumps(trainjob)
    )
    return done.returncode == 0, done.stderr


def in_force(cluster: Cluster, breach: Breach, mode: str) -> bool:
    """Return whether a rule is applied in the mode."""
    _, said = admitted(cluster, breach.trainjob)
    denied = f"ValidatingAdmissionPolicy '{policy(breach.rule)}' with binding" in said and "denied request" in said
    # Trainer itself refuses a runtime that does not exist; whether it or the warning comes first does not matter.
    return denied if mode == "deny" else not denied


@pytest.fixture(scope="module")
def denying(rules: Callable[[str], None]) -> None:
    rules("deny")


@pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: str(breach.message[:40]))
@pytest.mark.usefixtures("denying")
def test_a_trainjob_that_breaks_a_rule_is_refused_with_the_fix(cluster: Cluster, breach: Breach) -> None:
    accepted, said = admitted(cluster, breach.trainjob)
    assert not accepted
    assert f"ValidatingAdmissionPolicy '{policy(breach.rule)}'" in said
    assert breach.message in said


@pytest.mark.parametrize("trainjob", ALLOWED, ids=lambda trainjob: str(trainjob["spec"].get("trainer", "bare")))
@pytest.mark.usefixtures("denying")
def test_a_trainjob_that_keeps_all_rules_is_taken(cluster: Cluster, trainjob: dict[str, Any]) -> None:
    accepted, said = admitted(cluster, trainjob)
    assert accepted, said
    assert "ValidatingAdmissionPolicy" not in said


@pytest.mark.usefixtures("denying")
def test_no_patch_gives_a_role_another_claim(cluster: Cluster) -> None:
    """The chart refuses a trainer and a sampler on one claim when rendering; no rule is needed for TrainJobs."""
    made = job(runtime=SAMPLED)
    claims = [{"name": "gpu", "resourceClaimName": "gpu-0"}]
    made["spec"] |= patches(job_of_pod("node", resourceClaims=claims))
    accepted, said = admitted(cluster, made)
    assert not accepted
    assert "unknown field" in said
    assert "resourceClaims" in said


@pytest.mark.usefixtures("denying")
def test_rules_hold_only_where_a_namespace_has_opted_in(cluster: Cluster) -> None:
    accepted, said = admitted(cluster, job(queue=None, numNodes=5), namespace=WITHOUT_RULES)
    assert accepted, said
    assert "ValidatingAdmissionPolicy" not in said


def test_rules_warn_at_first_and_older_trainjobs_can_change_later(
    cluster: Cluster, rules: Callable[[str], None]
) -> None:
    rules("warn")
    kube = Kube(cluster, UNDER_RULES)
    created = kube.kubectl("create", "-f", "-", stdin=json.dumps(job("older", queue=None, numNodes=5)))
    assert f"Warning: Validation failed for ValidatingAdmissionPolicy '{policy('max-nodes')}'" in created.stderr
    assert "spec.trainer.numNodes is 5 and may be 4 at most" in created.stderr
    assert "a TrainJob here waits in a queue" in created.stderr
    kube.create(job("queued"))
    rules("deny")
    kube.kubectl("patch", "trainjob", "older", "--type=merge", "--patch", '{"metadata": {"labels": {"seen": "yes"}}}')
    # Without its label, a TrainJob would wait in no queue.
    for queue in (None, ""):
        out = json.dumps({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": queue}}})
        done = kube.kubectl("patch", "trainjob", "queued", "--type=merge", "--patch", out, check=False)
        assert done.returncode != 0
        assert "a TrainJob here waits in a queue: name one in the label kueue.x-k8s.io/queue-name" in done.stderr
    for name in ("older", "queued"):
        kube.delete("trainjob", name)
