"""Pods that name their claims: own or shared, each instead of the accelerator's devices."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kubeflow_trainer_api.models import (
    IoK8sApiCoreV1PodSpec,
    TrainerV1alpha1ContainerPatch,
    TrainerV1alpha1PodSpecPatch,
)

from charts.helm import TRAINING_RUNTIMES, VLLM_SERVING, Manifest, render, run, template_arguments
from charts.refusals import ends_with_the_fix
from charts.runtimes import jobs, runtimes

NAME = "trl-grpo-async"
OWN = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}
SHARED = {"name": "gpu", "resourceClaimName": "gpu-0"}
BASE = ['profile="none"', "test.enabled=false", f"runtimes.{NAME}.enabled=true"]


def settings(accelerator: str, own: dict[str, Any], *more: str) -> list[str]:
    """Return settings with one runtime that has samplers."""
    return [*BASE, f'accelerator="{accelerator}"', f"runtimes.{NAME}={json.dumps({'enabled': True, **own})}", *more]


def pods(objects: list[Manifest]) -> dict[str, Manifest]:
    """Return the pods of the one runtime, by its jobs."""
    (runtime,) = runtimes(objects)
    return {job["metadata"]["name"]: job["spec"]["template"]["spec"] for job in jobs(runtime)}


def container(pod: Manifest) -> Manifest:
    """Return the container that has the devices."""
    found: Manifest = pod["containers"][0]
    return found


@pytest.mark.parametrize("accelerator", ["nvidia", "nvidia-dra", "cpu"])
def test_each_role_has_the_claims_that_values_give_it(accelerator: str) -> None:
    own = {"deviceClaims": [OWN], "samplers": {"deviceClaims": [SHARED]}}
    objects = render(TRAINING_RUNTIMES, settings=settings(accelerator, own))
    made = pods(objects)
    assert made["node"]["resourceClaims"] == [OWN]
    assert made["sampler"]["resourceClaims"] == [SHARED]
    for pod in (made["node"], made["sampler"]):
        resources = container(pod)["resources"]
        assert resources["claims"] == [{"name": "gpu"}]
        assert not [name for name in resources["limits"] if "/" in name]
    assert not [one for one in objects if one["kind"] == "ResourceClaimTemplate"]


def test_the_devices_of_claims_are_counted_by_values() -> None:
    own = {"deviceClaims": [OWN], "resources": {"devices": 4}, "samplers": {"deviceClaims": [SHARED]}}
    made = pods(render(TRAINING_RUNTIMES, settings=settings("nvidia", own)))
    assert {"name": "STOKER_NPROC_PER_NODE", "value": "4"} in container(made["node"])["env"]


def test_one_role_may_keep_the_devices_of_its_accelerator() -> None:
    made = pods(render(TRAINING_RUNTIMES, settings=settings("nvidia", {"samplers": {"deviceClaims": [SHARED]}})))
    assert "resourceClaims" not in made["node"]
    assert container(made["node"])["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "nvidia.com/gpu" not in container(made["sampler"])["resources"]["limits"]


def test_samplers_with_another_number_of_devices_have_a_template_of_their_own() -> None:
    objects = render(TRAINING_RUNTIMES, settings=settings("nvidia-dra", {"samplers": {"resources": {"devices": 2}}}))
    made = {one["metadata"]["name"] for one in objects if one["kind"] == "ResourceClaimTemplate"}
    claiming = [pod["resourceClaims"] for name, pod in pods(objects).items() if name in ("node", "sampler")]
    named = {claims[0]["resourceClaimTemplateName"] for claims in claiming}
    assert named == made
    assert len(made) == 2


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (
            {"deviceClaims": [SHARED], "samplers": {"deviceClaims": [SHARED]}},
            f'runtimes.{NAME}.samplers.deviceClaims: the pods of runtimes.{NAME} that train have the claim "gpu-0" too',
        ),
        ({"deviceClaims": [OWN, SHARED]}, f'runtimes.{NAME}.deviceClaims: two claims have the name "gpu". Choose'),
        (
            {"samplers": {"deviceClaims": [OWN, OWN]}},
            f'runtimes.{NAME}.samplers.deviceClaims: two claims have the name "gpu". Choose',
        ),
        ({"deviceClaims": [{"name": "gpu"}]}, "minProperties: got 1, want 2"),
        ({"deviceClaims": [OWN | SHARED]}, "maxProperties: got 3, want 2"),
        ({"samplers": {"deviceClaims": [{**SHARED, "count": 1}]}}, "additional properties 'count' not allowed"),
    ],
)
def test_claims_that_cannot_work_are_refused(own: dict[str, Any], message: str) -> None:
    done = run("helm", *template_arguments(TRAINING_RUNTIMES, settings=settings("nvidia-dra", own)))
    assert done.returncode != 0
    assert message in done.stderr
    assert ends_with_the_fix(done.stderr), done.stderr


def test_a_claim_of_one_runtimes_trainers_is_refused_for_anothers_samplers() -> None:
    other = {"base": NAME, "samplers": {"deviceClaims": [SHARED]}}
    words = settings("nvidia-dra", {"deviceClaims": [SHARED]}, f"runtimes.other={json.dumps(other)}")
    done = run("helm", *template_arguments(TRAINING_RUNTIMES, settings=words))
    assert f'the pods of runtimes.{NAME} that train have the claim "gpu-0" too' in done.stderr
    assert ends_with_the_fix(done.stderr)


def test_a_trainjob_has_no_field_for_another_claim() -> None:
    """So what is refused here when rendering cannot come back by a patch, and needs no admission policy."""
    assert "resource_claims" in IoK8sApiCoreV1PodSpec.model_fields
    assert {"volumes", "node_selector"} <= set(TrainerV1alpha1PodSpecPatch.model_fields)
    assert "resource_claims" not in TrainerV1alpha1PodSpecPatch.model_fields
    assert "resources" not in TrainerV1alpha1ContainerPatch.model_fields


SERVING = ['model.uri="hf://a/b"', "api.anonymous=true"]


@pytest.mark.parametrize("accelerator", ["nvidia", "nvidia-dra"])
def test_a_replica_has_the_claims_that_values_give_it(accelerator: str) -> None:
    words = [*SERVING, f'accelerator="{accelerator}"', f"deviceClaims={json.dumps([SHARED])}"]
    objects = render(VLLM_SERVING, settings=words)
    (pod,) = (one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Deployment")
    assert pod["resourceClaims"] == [SHARED]
    resources = container(pod)["resources"]
    assert resources["claims"] == [{"name": "gpu"}]
    assert "nvidia.com/gpu" not in resources["limits"]
    assert not [one for one in objects if one["kind"] == "ResourceClaimTemplate"]


def test_two_claims_of_a_replica_have_two_names() -> None:
    words = [*SERVING, 'accelerator="nvidia"', f"deviceClaims={json.dumps([SHARED, SHARED])}"]
    done = run("helm", *template_arguments(VLLM_SERVING, settings=words))
    assert 'deviceClaims: two claims have the name "gpu"' in done.stderr
    assert ends_with_the_fix(done.stderr)
