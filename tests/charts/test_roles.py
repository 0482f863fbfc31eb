"""Pods that train and samplers on nodes of their own."""

from __future__ import annotations

import json
from typing import Any

from charts.helm import TRAINING_RUNTIMES, Manifest, render
from charts.runtimes import jobs, runtimes

NAME = "trl-grpo-async"
ROLE = "stoker.dev/role"


def pods(own: dict[str, Any], *settings: str) -> dict[str, Manifest]:
    """Return the pods of a runtime with samplers, by its jobs."""
    words = ['profile="none"', "test.enabled=false", 'accelerator="nvidia"']
    runtime = {"enabled": True, **own}
    made = render(TRAINING_RUNTIMES, settings=[*words, f"runtimes.{NAME}={json.dumps(runtime)}", *settings])
    (one,) = runtimes(made)
    return {job["metadata"]["name"]: job["spec"]["template"]["spec"] for job in jobs(one)}


def taint(role: str) -> dict[str, str]:
    """Return what tolerates the taint of a role's nodes."""
    return {"key": ROLE, "operator": "Equal", "value": role, "effect": "NoSchedule"}


def test_the_roles_share_no_node_where_they_are_separate() -> None:
    made = pods({}, "separateRoles=true")
    for name, role, other in (("node", "trainer", "sampler"), ("sampler", "sampler", "trainer")):
        assert made[name]["nodeSelector"][ROLE] == role
        assert taint(role) in made[name]["tolerations"]
        assert taint(other) not in made[name]["tolerations"]
    # What fetches has no device, and goes anywhere.
    assert ROLE not in made["model-initializer"]["nodeSelector"]


def test_they_go_anywhere_where_values_say_nothing() -> None:
    made = pods({})
    assert not [name for name, pod in made.items() if ROLE in json.dumps(pod)]


def test_samplers_have_labels_tolerations_and_affinity_of_their_own() -> None:
    mine = {"key": "pool", "operator": "Exists"}
    affinity: dict[str, Any] = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    samplers = {"nodeSelector": {"pool": "small"}, "tolerations": [mine], "affinity": affinity}
    made = pods({"nodeSelector": {"pool": "large"}, "samplers": samplers})
    assert made["sampler"]["nodeSelector"]["pool"] == "small"
    assert made["node"]["nodeSelector"]["pool"] == "large"
    assert mine in made["sampler"]["tolerations"]
    assert mine not in made["node"]["tolerations"]
    assert made["sampler"]["affinity"] == affinity
    assert "affinity" not in made["node"]
