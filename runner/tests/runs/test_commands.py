"""The commands as a user calls them, against an API server on loopback."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from runner.tests.command_line import stoker
from runner.tests.runs.api_server import Cluster, forbidden, miss_second_look
from runner.tests.runs.objects import (
    Object,
    ended,
    event,
    job,
    jobset,
    pod,
    progress,
    queued,
    terminated,
    trainjob,
    unschedulable,
    workload,
)

from stoker.contract.exits import ExitCode


@pytest.fixture
def busy(cluster: Cluster, kubeconfig: Path) -> Cluster:
    """A cluster with a run that trains and one that no node takes."""
    told = progress(loss=1.5, time=datetime.now(UTC).isoformat())
    cluster.add("trainjobs", trainjob(trainerStatus=told), trainjob("wait"))
    cluster.add("jobsets", jobset(), jobset("wait"))
    cluster.add("jobs", job(), job("wait"))
    message = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    cluster.add("pods", pod(), pod(index=1), unschedulable(message, run="wait", spec={"nodeSelector": {"gpu": "h200"}}))
    return cluster


def test_runs_are_listed(busy: Cluster) -> None:
    lines = stoker("runs").output.splitlines()
    assert lines[0].split() == [
        "NAME",
        "STATE",
        "DONE",
        "LOSS",
        "LEFT",
        "NODES",
        "RESTARTS",
        "AGE",
        "RUNTIME",
        "REASON",
    ]
    assert [line.split()[:2] for line in lines[1:]] == [["wait", "Pending"], ["tune", "Running"]]
    assert lines[1].endswith("Unschedulable")
    assert len([one for one in busy.requests if one[0] == "GET"]) == 3
    assert "NAMESPACE" in stoker("runs", "-A").output


def test_json_is_the_whole_run(busy: Cluster) -> None:
    runs = json.loads(stoker("runs", "--output", "json").output)
    assert [(run["name"], run["state"]) for run in runs] == [("wait", "Pending"), ("tune", "Running")]
    assert runs[1]["progress"]["metrics"] == {"loss": 1.5}
    one = json.loads(stoker("status", "tune", "--output", "json").output)
    assert one == runs[1]


@pytest.mark.parametrize("loss", ["nan", "inf"])
def test_what_is_no_number_is_left_out(busy: Cluster, loss: str) -> None:
    busy.add("trainjobs", trainjob(trainerStatus=progress(loss=float(loss), step=7)))
    assert stoker("top", "--times", "1").stdout.splitlines()[-1].split()[:5] == ["tune", "Running", "42", "%", "7"]
    for command in (("runs",), ("status", "tune"), ("top", "--times", "1")):
        told = stoker(*command, "--output", "json").stdout
        json.loads(told, parse_constant=pytest.fail)
        assert '"step": 7.0' in told


def test_one_run_is_shown(busy: Cluster) -> None:
    output = stoker("status", "tune").output
    assert "state      Running\n" in output
    assert "loss 1.5" in output
    assert [line.split()[:2] for line in output.splitlines()[-2:]] == [["node-0", "Running"], ["node-1", "Running"]]


def test_what_pods_say_does_not_steer_the_terminal(busy: Cluster) -> None:
    # Both ways to begin an escape sequence: ESC, and its form in one character.
    busy.add("pods", terminated(65, message="\x1b]0;x\x07\x1b[2Jbad\x9b31m row"))
    for command in ("status", "explain"):
        told = stoker(command, "tune").stdout
        assert "[2Jbad" in told
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", told)


def test_a_run_is_explained(busy: Cluster) -> None:
    busy.add("events", event(job("wait"), "FailedCreate", 'pods "x" is forbidden: exceeded quota: small, used: pods=2'))
    lines = stoker("explain", "wait").output.splitlines()
    assert lines[0] == "Job wait-node-0: the namespace's quota is used up: small, used: pods=2"
    assert lines[2].endswith("1 of 1 nodes do not have the labels that it asks for (gpu=h200)")
    assert all(line.startswith("  → ") for line in lines[1::2])


def test_each_line_with_kubectl_names_the_context(busy: Cluster, other_context: str) -> None:
    busy.add("events", event(job("wait"), "FailedCreate", 'pods "x" is forbidden: exceeded quota: small, used: pods=2'))
    told = stoker("explain", "wait", "--context", other_context).output
    lines = [line for line in told.splitlines() if "kubectl" in line]
    assert "kubectl describe resourcequota --context 'team a' --namespace ml; " in lines[0]
    assert "(`stoker runs --context 'team a'`)" in lines[0]
    assert "kubectl get nodes --selector gpu=h200 --context 'team a' lists" in lines[1]


@pytest.mark.parametrize(
    ("status", "cause", "fix"),
    [
        ({}, "it is running normally", "`stoker estimate --model MODEL --measured OUTPUT TRAINJOB`"),
        (ended("Complete", "AllJobsCompleted"), "it is complete", "`stoker get tune FOLDER`"),
        (ended("Failed", "FailedJobs"), "it has failed, and its pods are gone", "--only last-error.json` brings"),
    ],
)
def test_a_run_without_a_cause_has_its_advice_in_json_too(busy: Cluster, status: Object, cause: str, fix: str) -> None:
    busy.add("trainjobs", trainjob(**status))
    if status:
        for index in (0, 1):
            busy.objects.pop(("pods", "ml", f"tune-node-0-{index}-x0k{index}c"))
    (found,) = json.loads(stoker("explain", "tune", "--output", "json").output)
    assert cause in found["cause"]
    assert fix in found["fix"]
    assert stoker("explain", "tune").output == f"{found['about']}: {found['cause']}\n  → {found['fix']}\n"


def test_a_run_in_a_queue_is_explained_by_its_own_workload(busy: Cluster) -> None:
    busy.add("trainjobs", queued("later"))
    busy.add("workloads", workload("of another run"), workload("5 cpu more needed", run="later"))
    assert any(line.endswith("queue research") for line in stoker("runs").output.splitlines())
    assert stoker("explain", "later").output.startswith(
        "TrainJob later: it waits in queue research: 5 cpu more needed\n"
    )
    # Who has no queue needs no rights in Kueue.
    busy.refusals["GET", "workloads"] = forbidden("list", "workloads")
    assert stoker("explain", "tune").stderr == ""
    assert "you may not list workloads" in stoker("explain", "later").stderr


def test_a_run_whose_device_claim_does_not_exist_is_told_so(busy: Cluster) -> None:
    # The scheduler says nothing of such a pod.
    claims = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu-0"}]}
    busy.add("trainjobs", trainjob("claims"))
    busy.add("jobsets", jobset("claims"))
    busy.add("pods", pod(run="claims", phase="Pending", node="", containerStatuses=[], spec=claims))
    for known in (set(), {"resourceclaims"}):  # without DRA there are no claims at all
        busy.kinds |= known
        told = stoker("explain", "claims").output
        assert (
            "the ResourceClaim gpu-0, by which it shares a device, does not exist\n  → create it in namespace ml"
            in told
        )
    busy.add("resourceclaims", {"metadata": {"name": "gpu-0", "namespace": "ml"}})
    assert "gpu-0" not in stoker("explain", "claims").output
    # Who shares no device needs no rights for claims.
    busy.refusals["GET", "resourceclaims"] = forbidden("get", "resourceclaims")
    assert stoker("explain", "tune").stderr == ""
    assert "you may not get resourceclaims" in stoker("explain", "claims").stderr


# Bad input: one line each.


def test_a_namespace_without_runs(cluster: Cluster, kubeconfig: Path) -> None:
    result = stoker("runs")
    assert result.stdout == ""
    assert result.stderr == (
        "[stoker] there are no runs in namespace ml: --namespace or --all-namespaces shows others\n"
    )
    assert stoker("runs", "--output", "json").stdout == "[]\n"


def test_a_misspelled_name(busy: Cluster) -> None:
    result = stoker("status", "tun", code=ExitCode.NO_INPUT)
    assert result.stderr == "stoker: error: there is no run tun in namespace ml: did you mean tune?\n"
    assert "`stoker runs` lists" in stoker("explain", "zzz", code=ExitCode.NO_INPUT).stderr


def test_a_run_of_another_tool(busy: Cluster, other_context: str) -> None:
    busy.add("jobsets", jobset("theirs"))
    told = stoker("status", "theirs", "--context", other_context, code=ExitCode.NO_INPUT).stderr
    assert len(told.splitlines()) == 1
    assert "is a JobSet that no TrainJob made" in told
    assert "`kubectl get jobset theirs --context 'team a' --namespace ml`" in told


@pytest.mark.parametrize("kind", ["jobsets", "pods"])
def test_what_the_user_may_not_see_is_said_once(busy: Cluster, kind: str) -> None:
    busy.refusals["GET", kind] = forbidden("list", kind)
    for command in (("runs",), ("status", "tune"), ("explain", "tune")):
        result = stoker(*command)
        assert len(result.stderr.splitlines()) == 1
        assert f"you may not {'get' if kind == 'jobsets' and len(command) > 1 else 'list'} {kind}" in result.stderr
    for output in ("text", "json"):
        result = stoker("top", "--times", "2", "--interval", "1", "--output", output)
        assert result.stderr.count(f"you may not list {kind}") == 1


def test_top_goes_on_while_the_cluster_does_not_answer(busy: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    gone = r"the cluster at http://\S+ does not answer \(HTTP 503, the server is shutting down\): check the network"
    with monkeypatch.context() as change:
        miss_second_look(busy, change)
        first, second, third = stoker("top", "--times", "3").stdout.split("\n\n")
        problem, *table = second.splitlines()
        assert re.match(rf"this is \d+s old: {gone}", problem)
        assert table == first.splitlines()
        assert third.splitlines()[0].startswith("NAME")
    miss_second_look(busy, monkeypatch)
    looks = [json.loads(line) for line in stoker("top", "--times", "3", "--output", "json").stdout.splitlines()]
    assert [sorted(look) for look in looks] == [["runs", "time"], ["problem", "time"], ["runs", "time"]]
    assert re.match(gone, looks[1]["problem"])


def test_top_ends_if_the_cluster_never_answered(busy: Cluster) -> None:
    busy.refusals["GET", "trainjobs"] = (503, {})
    for output in ("text", "json"):
        result = stoker("top", "--output", output, code=ExitCode.UNAVAILABLE)
        assert "does not answer (HTTP 503" in result.stderr


@pytest.mark.parametrize("words", [(), ("--follow",)], ids=["past", "follow"])
def test_logs_need_the_right_to_list_pods(busy: Cluster, words: tuple[str, ...]) -> None:
    busy.refusals["GET", "pods"] = forbidden("list", "pods")
    assert "you may not list pods" in stoker("logs", "tune", *words, code=ExitCode.CONFIG).stderr


def test_a_missing_jobset_is_said_whatever_else_is_hidden(busy: Cluster) -> None:
    busy.add("trainjobs", trainjob("new"))
    busy.refusals["GET", "events"] = forbidden("list", "events")
    result = stoker("explain", "new")
    assert "Kubeflow Trainer has made no JobSet of it yet" in result.stdout
    assert "you may not list events" in result.stderr


def test_no_rights_at_all(busy: Cluster) -> None:
    busy.refusals["GET", "trainjobs"] = forbidden("list", "trainjobs")
    for command in (("runs",), ("status", "tune"), ("explain", "tune")):
        result = stoker(*command, code=ExitCode.CONFIG)
        assert len(result.stderr.splitlines()) == 1
        assert "you may not" in result.stderr


def test_no_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    result = stoker("runs", code=ExitCode.CONFIG)
    assert result.stderr.startswith("stoker: error: there is no kubeconfig at ")
    assert len(result.stderr.splitlines()) == 1
