"""Samplers that take turns at their device: the guard, `stoker slice`, its account and rights, and who it may reach."""

from __future__ import annotations

import json
from typing import Any

import pytest

from charts.helm import TRAINING_RUNTIMES, Manifest, render, run, template, template_arguments
from charts.refusals import ends_with_the_fix
from charts.runtimes import jobs, runtimes

NAME = "trl-grpo-async"
CLAIM = {"name": "gpu", "resourceClaimName": "gpu-0"}
ACCOUNT = "training-runtimes-slice-gpu-0-37a8eec1"


def settings(accelerator: str, slice_: dict[str, Any], **more: Any) -> list[str]:
    """Return settings with a runtime whose samplers take turns."""
    own = {"enabled": True, "initializers": False, "samplers": {"deviceClaims": [CLAIM], "slice": slice_}, **more}
    return [
        'profile="none"',
        "test.enabled=false",
        f'accelerator="{accelerator}"',
        f"runtimes.{NAME}={json.dumps(own)}",
    ]


@pytest.fixture(scope="module")
def objects() -> list[Manifest]:
    """All objects of a catalogue whose samplers take turns at a GPU."""
    words = settings("nvidia", {"lease": "gpu-0", "quantumSeconds": 7, "hookSeconds": 300, "byLoad": True})
    return render(TRAINING_RUNTIMES, settings=[*words, 'namespaces=["team-a","team-b"]'])


@pytest.fixture(scope="module")
def sampler(objects: list[Manifest]) -> Manifest:
    """The template of a sampler's pod."""
    (runtime,) = runtimes(objects)
    (found,) = (job["spec"]["template"] for job in jobs(runtime) if job["metadata"]["name"] == "sampler")
    return dict(found)


@pytest.fixture(scope="module")
def containers(sampler: Manifest) -> dict[str, Manifest]:
    """The containers of a sampler, by name."""
    return {one["name"]: one for one in [*sampler["spec"]["initContainers"], *sampler["spec"]["containers"]]}


def of_kind(objects: list[Manifest], kind: str) -> list[Manifest]:
    """Return the objects of a kind."""
    return [one for one in objects if one["kind"] == kind]


def test_the_guard_starts_vllm(containers: dict[str, Manifest]) -> None:
    vllm = containers["vllm"]
    assert vllm["command"] == [
        *("python3", "-I", "/slice/guard.py", "/slice"),
        *("vllm", "serve", "--config", "/config/vllm.yaml"),
    ]
    assert {"--enable-sleep-mode", "--enable-server-load-tracking"} <= {*vllm["args"]}
    assert containers["guard"]["command"] == ["stoker", "slice", "install", "--folder", "/slice"]
    names = list(containers)
    assert names.index("guard") < names.index("vllm")
    assert "restartPolicy" not in containers["guard"]


def test_stoker_slice_runs_beside_it_as_long_as_it_does(containers: dict[str, Manifest]) -> None:
    one = containers["slice"]
    assert one["restartPolicy"] == "Always"
    assert one["command"] == ["stoker", "slice", "run", "gpu-0"]
    assert one["args"] == [
        "--folder=/slice",
        "--engine=http://127.0.0.1:8000",
        "--config=/config/vllm.yaml",
        "--sleep-level=1",
        "--quantum=7",
        "--lease-seconds=10",
        "--hook-seconds=300",
        "--by-load",
    ]
    # `prepare` has written the configuration by then.
    assert list(containers).index("prepare") < list(containers).index("slice")


def test_the_watcher_has_stoker_slice_load_whole_weights(containers: dict[str, Manifest]) -> None:
    watcher = containers["adapters"]
    assert watcher["args"][-2:] == ["--slice", "/slice"]
    assert {"name": "slice", "mountPath": "/slice"} in watcher["volumeMounts"]


def test_stoker_slice_alone_has_the_token(sampler: Manifest, containers: dict[str, Manifest]) -> None:
    (volume,) = (one for one in sampler["spec"]["volumes"] if one["name"] == "account")
    assert [next(iter(source)) for source in volume["projected"]["sources"]] == [
        *("serviceAccountToken", "configMap", "downwardAPI"),
    ]
    holders = [
        name
        for name, one in containers.items()
        if any(mount["name"] == "account" for mount in one.get("volumeMounts", ()))
    ]
    assert holders == ["slice"]
    assert sampler["spec"]["automountServiceAccountToken"] is False
    assert sampler["spec"]["serviceAccountName"] == ACCOUNT


def test_its_account_may_read_and_update_the_one_lease(objects: list[Manifest]) -> None:
    for kind in ("ServiceAccount", "Role", "RoleBinding"):
        found = of_kind(objects, kind)
        assert [(one["metadata"]["namespace"], one["metadata"]["name"]) for one in found] == [
            ("team-a", ACCOUNT),
            ("team-b", ACCOUNT),
        ]
        assert {one["metadata"]["annotations"]["helm.sh/resource-policy"] for one in found} == {"keep"}
    assert {json.dumps(one["rules"]) for one in of_kind(objects, "Role")} == {
        json.dumps(
            [
                {
                    "apiGroups": ["coordination.k8s.io"],
                    "resources": ["leases"],
                    "resourceNames": ["gpu-0"],
                    "verbs": ["get", "update"],
                }
            ]
        )
    }
    for binding in of_kind(objects, "RoleBinding"):
        assert binding["roleRef"]["name"] == ACCOUNT
        namespace = binding["metadata"]["namespace"]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}]


def test_such_samplers_alone_reach_the_api_server(objects: list[Manifest], sampler: Manifest) -> None:
    found = [one for one in of_kind(objects, "NetworkPolicy") if "-slices-" in one["metadata"]["name"]]
    assert [one["metadata"]["namespace"] for one in found] == ["team-a", "team-b"]
    for one in found:
        spec = one["spec"]
        assert spec["podSelector"]["matchLabels"] == {"stoker.dev/role": "sampler"}
        assert spec["podSelector"]["matchExpressions"] == [{"key": "stoker.dev/lease", "operator": "Exists"}]
        assert spec["policyTypes"] == ["Egress"]
        assert spec["egress"] == [{"ports": [{"port": 443}, {"port": 6443}]}]
    assert sampler["metadata"]["labels"]["stoker.dev/lease"] == "gpu-0"
    words = [*settings("cpu", {"lease": "gpu-0"}), 'networkPolicy.apiServer.cidrs=["10.0.0.1/32"]']
    (spec,) = (
        one["spec"]
        for one in of_kind(render(TRAINING_RUNTIMES, settings=words), "NetworkPolicy")
        if "-slices-" in one["metadata"]["name"]
    )
    assert spec["egress"][0]["to"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}]


def test_on_cpus_an_engine_pauses() -> None:
    text = template(TRAINING_RUNTIMES, settings=settings("cpu", {"lease": "gpu-0"}))
    assert "--sleep-level=0" in text
    assert "--enable-sleep-mode" not in text
    assert "--by-load" not in text
    assert "--hook-seconds=60" in text


def test_without_turns_nothing_is_there() -> None:
    words = settings("cpu", {"lease": "gpu-0"})
    without = [word.replace(', "slice": {"lease": "gpu-0"}', "") for word in words]
    assert without != words
    text = template(TRAINING_RUNTIMES, settings=without)
    assert not [word for word in ("/slice", "stoker.dev/lease", "kind: Role", "kind: ServiceAccount") if word in text]


@pytest.mark.parametrize(
    ("accelerator", "slice_", "message"),
    [
        ("cpu", {"lease": "gpu-0", "sleepLevel": 1}, "slice.sleepLevel is 1, and vLLM cannot sleep on CPUs. Set it"),
        ("nvidia", {"lease": "gpu-0", "sleepLevel": 2}, "slice.sleepLevel is 2, and runs of this runtime train LoRA"),
        ("nvidia", {"lease": "gpu-0", "sleepLevel": 3}, "value must be one of 0, 1, 2"),
        ("nvidia", {}, "missing property 'lease'"),
        ("nvidia", {"lease": "gpu-0", "quantum": 1}, "additional properties 'quantum' not allowed"),
        ("nvidia", {"lease": "gpu-0", "hookSeconds": 0}, "minimum: got 0, want 1"),
        ("nvidia", {"lease": "GPU"}, "'GPU' does not match pattern"),
    ],
)
def test_turns_that_cannot_work_are_refused(accelerator: str, slice_: dict[str, Any], message: str) -> None:
    done = run("helm", *template_arguments(TRAINING_RUNTIMES, settings=settings(accelerator, slice_)))
    assert done.returncode != 0
    assert message in done.stderr
    assert ends_with_the_fix(done.stderr), done.stderr


@pytest.mark.parametrize("other", [{"lease": "gpu-1"}, None])
def test_all_samplers_of_a_claim_take_turns_by_one_lease(other: dict[str, Any] | None) -> None:
    samplers = {"deviceClaims": [CLAIM], **({"slice": other} if other else {})}
    words = [
        *settings("nvidia", {"lease": "gpu-0"}),
        f"runtimes.other={json.dumps({'base': NAME, 'samplers': samplers})}",
    ]
    done = run("helm", *template_arguments(TRAINING_RUNTIMES, settings=words))
    assert 'have the claim "gpu-0" too, and take turns by another Lease or not at all. Set the same' in done.stderr


@pytest.mark.parametrize("level", [0, 1, 2])
def test_samplers_of_runs_that_train_all_weights_take_turns_too(level: int) -> None:
    words = settings("nvidia", {"lease": "gpu-0", "sleepLevel": level}, args={"use_peft": "false"})
    assert f"--sleep-level={level}" in template(TRAINING_RUNTIMES, settings=words)
