"""A session is an ordinary TrainJob with labels, limits and a key, and four objects beside it."""

from __future__ import annotations

import json
from typing import Any

import pytest

import builders
from stoker.cluster.admission import admission_of
from stoker.cluster.patches import patched
from stoker.contract.exits import ExitCode, RunError
from stoker.runs.run import QUEUE
from stoker.sessions import render
from stoker.sessions.render import LABEL, Session, seconds_in
from stoker.submit.command_line import TrainJobOptions, trainjob_of

Object = dict[str, Any]


def sums(name: str = "sums", **more: Any) -> Object:
    """Return a TrainJob as the user writes it."""
    return builders.trainjob(name, runtime="trl-grpo-async", env=builders.variables({"A": "1"}), spec=more)


def env_of(trainjob: Object) -> Object:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in trainjob["spec"]["trainer"]["env"]}


def test_a_session_is_a_trainjob_that_the_cluster_takes(runtime: Object) -> None:
    options = TrainJobOptions("grpo_async", "sums", "trl-grpo-async", settings=("reward_funcs=think_format_reward",))
    made = render.session_trainjob(trainjob_of(options), Session(4, 28800, 1800), runtime)
    assert admission_of(made, runtime).problems == ()
    assert made["metadata"]["labels"] == {LABEL: "sums"}
    assert made["spec"]["activeDeadlineSeconds"] == 28800
    assert env_of(made) == {
        "STOKER_SAMPLERS_API_KEY": {"secretKeyRef": {"name": "sums-session", "key": "api-key"}},
        "STOKER_IDLE_SECONDS": "1800",
        "STOKER_SAMPLERS": ",".join(f"http://sums-sampler-0-{number}.sums:8080" for number in range(4)),
    }


def test_everything_it_makes_has_its_label_and_its_samplers_its_key(runtime: Object) -> None:
    made = render.session_trainjob(sums(), Session(), runtime)
    assert list(env_of(made)) == ["A", "STOKER_SAMPLERS_API_KEY"], "the runtime's own number of samplers"
    (patch,) = made["spec"]["runtimePatches"]
    assert patch["trainingRuntimeSpec"]["template"]["metadata"]["labels"] == {LABEL: "sums"}, "of the JobSet"
    jobs = {job["name"]: job for job in patched(made, runtime)["spec"]["template"]["spec"]["replicatedJobs"]}
    assert set(jobs) == {"node", "sampler"}
    for job in jobs.values():
        assert job["template"]["metadata"]["labels"][LABEL] == "sums", "of the Job"
        assert job["template"]["spec"]["template"]["metadata"]["labels"][LABEL] == "sums", "of its pods"
    before = {job["name"]: job for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]}
    pod, was = (one["sampler"]["template"]["spec"]["template"]["spec"] for one in (jobs, before))
    proxy, old = (next(one for one in each["initContainers"] if one["name"] == "proxy") for each in (pod, was))
    assert {**proxy, "env": None, "volumeMounts": old["volumeMounts"]} == {**old, "env": None}
    assert {"name": "SESSION_GUARD", "value": "keyed"} in proxy["env"]
    assert {"name": "keys", "mountPath": "/keys", "readOnly": True} in proxy["volumeMounts"]
    assert {"name": "keys", "secret": {"secretName": "sums-session"}} in pod["volumes"]
    # No other container has the key.
    others = [one for one in (*pod["initContainers"], *pod["containers"]) if one["name"] != "proxy"]
    assert not any(mount["name"] == "keys" for one in others for mount in one["volumeMounts"])


def test_its_queue_is_a_label_of_the_trainjob(runtime: Object) -> None:
    one, other = (render.session_trainjob(sums(), Session(queue=queue), runtime) for queue in ("gpu-0", "gpu-1"))
    assert one["metadata"]["labels"] == {QUEUE: "gpu-0", LABEL: "sums"}
    assert render.differences(one, other) == ["queue is gpu-0, and you ask for gpu-1"]
    labelled = {**sums(), "metadata": one["metadata"]}
    assert render.session_trainjob(labelled, Session(queue="gpu-0"), runtime)["metadata"]["labels"][QUEUE] == "gpu-0"


def test_patches_of_the_user_stay(runtime: Object) -> None:
    own = {"manager": "example.com/me", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": []}}}}
    made = render.session_trainjob(sums(runtimePatches=[own]), Session(), runtime)
    assert [one["manager"] for one in made["spec"]["runtimePatches"]] == ["example.com/me", LABEL]


def test_the_runner_of_a_session_is_told_of_a_patched_grace_period(runtime: Object) -> None:
    own = builders.patches(builders.job_of_pod("node", terminationGracePeriodSeconds=45))
    made = render.session_trainjob(sums(**own), Session(), runtime)
    assert env_of(made)["STOKER_GRACE_PERIOD_SECONDS"] == "45"


def test_pods_of_a_session_reach_each_other_and_nobody_else_reaches_them() -> None:
    made = {(one["kind"], one["metadata"]["name"]): one for one in render.own_objects("sums", "ml", "the-key")}
    assert list(made) == [
        ("Secret", "sums-session"),
        ("NetworkPolicy", "sums-session-nodes"),
        ("NetworkPolicy", "sums-session-samplers"),
        ("Service", "sums-samplers"),
    ]
    assert all(one["metadata"]["labels"] == {LABEL: "sums"} for one in made.values())
    assert made["Secret", "sums-session"]["stringData"] == {"api-key": "the-key"}
    own = [{"podSelector": {"matchLabels": {LABEL: "sums"}}}]
    nodes, samplers = (made["NetworkPolicy", f"sums-session-{role}"]["spec"] for role in ("nodes", "samplers"))
    assert nodes == {
        "podSelector": {"matchLabels": {LABEL: "sums", "stoker.dev/role": "node"}},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": own}],
    }
    assert samplers["podSelector"] == {"matchLabels": {LABEL: "sums", "stoker.dev/role": "sampler"}}
    assert samplers["policyTypes"] == ["Ingress", "Egress"]
    assert samplers["ingress"] == [{"from": own, "ports": [{"port": 8080}]}]
    assert samplers["egress"] == [{"ports": [{"port": 53, "protocol": one} for one in ("UDP", "TCP")]}]
    service = made["Service", "sums-samplers"]["spec"]
    assert service["selector"] == {LABEL: "sums", "stoker.dev/role": "sampler"}
    assert render.url_of("sums", "ml") == "http://sums-samplers.ml:8080"


def test_what_a_session_has_goes_with_its_trainjob() -> None:
    trainjob = {**sums(), "metadata": {"name": "sums", "uid": "1-2"}}
    for one in render.own_objects("sums", "ml", "the-key"):
        assert render.owned(one, trainjob)["metadata"]["ownerReferences"] == [
            {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": "sums", "uid": "1-2"}
        ]


def test_another_value_is_named_and_a_secret_is_not_shown(runtime: Object) -> None:
    def made(session: Session, **values: str) -> Object:
        trainer = {"env": [{"name": name, "value": value} for name, value in values.items()]}
        return render.session_trainjob(sums(trainer=trainer), session, runtime)

    one = made(Session(time_limit=60), A="1", HF_TOKEN="secret-1")
    # The API server adds fields of its own.
    there = json.loads(json.dumps({**one, "spec": {**one["spec"], "suspend": False}}))
    assert render.differences(there, made(Session(time_limit=60), A="1", HF_TOKEN="secret-1")) == []
    assert render.differences(there, made(Session(samplers=3), A="2", HF_TOKEN="secret-2")) == [
        "spec.trainer.env.A is 1, and you ask for 2",
        "spec.trainer.env.HF_TOKEN is (not shown), and you ask for (not shown)",
        "time-limit is 60, and you ask for nothing",
        "samplers is nothing, and you ask for 3",
    ]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("8h", 28800), ("1d", 86400), ("1h30m", 5400)]
)
def test_times_are_written_as_people_do(text: str, seconds: int) -> None:
    assert seconds_in("--time-limit", text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "0", "0h", "-1", "1.5h", "1h30", "1w"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(RunError, match=r"--time-limit '.*' is not a time: write seconds, or numbers with") as refused:
        seconds_in("--time-limit", text)
    assert refused.value.code is ExitCode.USAGE


def without_samplers(runtime: Object) -> None:
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    jobs[:] = [job for job in jobs if job["name"] != "sampler"]


def of_an_older_catalogue(runtime: Object) -> None:
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    (sampler,) = (job for job in jobs if job["name"] == "sampler")
    sampler["template"]["spec"]["template"]["metadata"]["annotations"]["stoker.dev/Caddyfile"] = ":8080 {}"


@pytest.mark.parametrize(
    ("trainjob", "session", "change", "code", "message"),
    [
        (sums(), Session(), without_samplers, 64, "has no samplers of its own: choose one that has"),
        (sums(), Session(), of_an_older_catalogue, 78, "do not check keys.*upgrade its release"),
        (sums(activeDeadlineSeconds=5), Session(time_limit=60), None, 64, "activeDeadlineSeconds, which --time-limit"),
        (
            sums(trainer={"env": [{"name": "STOKER_IDLE_SECONDS", "value": "5"}]}),
            Session(),
            None,
            64,
            "sets STOKER_IDLE_SECONDS, which the session sets: drop it",
        ),
        (
            {**sums(), "metadata": {"name": "sums", "labels": {LABEL: "other"}}},
            Session(),
            None,
            64,
            "has the label stoker.dev/session=other: drop it",
        ),
        (
            {**sums(), "metadata": {"name": "sums", "labels": {QUEUE: "gpus"}}},
            Session(samplers=9),
            None,
            64,
            "--samplers 9 is more than the 2 of runtime trl-grpo-async, and Kueue admits",
        ),
        (sums(), Session(samplers=9, queue="gpus"), None, 64, "--samplers 9 is more than the 2 of runtime"),
        (
            {**sums(), "metadata": {"name": "sums", "labels": {QUEUE: "gpus"}}},
            Session(queue="gpu-0"),
            None,
            64,
            f"has the label {QUEUE}=gpus, and --queue is gpu-0: write one of them",
        ),
        (sums(), Session(queue=""), None, 64, "--queue is empty: write the name of a LocalQueue, or drop --queue"),
        (sums("Sums"), Session(), None, 64, "Trainer refuses the name 'Sums'"),
        (sums("s" * 60), Session(), None, 64, "is too long"),
    ],
    ids=[
        *("no samplers", "older catalogue", "two limits", "own variable", "other session", "queue", "option queue"),
        *("two queues", "empty queue", "name", "long name"),
    ],
)
def test_what_makes_no_session_is_refused(
    runtime: Object, trainjob: Object, session: Session, change: Any, code: int, message: str
) -> None:
    if change:
        change(runtime)
    with pytest.raises(RunError, match=message) as refused:
        render.session_trainjob(trainjob, session, runtime)
    assert refused.value.code == code


def test_the_run_folder_is_the_sessions_own(runtime: Object) -> None:
    assert render.folder_of("sums", runtime) == ("initializer-sums", "")
    (node,) = (job for job in runtime["spec"]["template"]["spec"]["replicatedJobs"] if job["name"] == "node")
    shared = {"name": "initializer", "persistentVolumeClaim": {"claimName": "team"}}
    node["template"]["spec"]["template"]["spec"]["volumes"].append(shared)
    assert render.folder_of("sums", runtime) == ("team", "sums"), "the mount has subPathExpr $(JOBSET_NAME)"
