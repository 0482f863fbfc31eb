"""Runs are submitted, stopped and resumed; what cannot be is refused with what to do instead. And `top`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from runner.tests.command_line import stoker
from runner.tests.runs.api_server import Cluster, forbidden
from runner.tests.runs.objects import NOW, ended, held, jobset, pod, progress, trainjob

import builders
from stoker.contract.exits import ExitCode
from stoker.runs.client import Client
from stoker.runs.errors import ObjectRefusedError
from stoker.runs.kinds import Kind
from stoker.runs.run import QUEUE, run_of
from stoker.runs.top import Losses, in_view


def written(path: Path, *resources: builders.Manifest) -> str:
    path.write_text(yaml.safe_dump_all(resources))
    return str(path)


def suspended(cluster: Cluster) -> bool:
    return bool(cluster.objects["trainjobs", "ml", "tune"]["spec"]["suspend"])


@pytest.fixture
def catalogue(cluster: Cluster, kubeconfig: Path) -> Cluster:
    """A cluster with our runtime, and nothing that runs."""
    cluster.add("clustertrainingruntimes", builders.kept(builders.RUNTIME))
    return cluster


def test_the_runner_is_told_of_a_grace_period_that_the_trainjob_patches(catalogue: Cluster, tmp_path: Path) -> None:
    spec = builders.patches(builders.job_of_pod("node", terminationGracePeriodSeconds=20))
    job = builders.trainjob("a", spec=spec, env=builders.variables({"A": "1"}))
    result = stoker("submit", written(tmp_path / "a.yaml", job))
    entry = '{name: STOKER_GRACE_PERIOD_SECONDS, value: "20"}'
    assert f"[stoker] a: added {entry} to spec.trainer.env, because a runtimePatch sets" in result.stderr
    made = catalogue.objects["trainjobs", "ml", "a"]["spec"]["trainer"]["env"]
    assert made == builders.variables({"A": "1", "STOKER_GRACE_PERIOD_SECONDS": "20"})
    # What the user wrote stays, and is refused if the pods have less.
    job = builders.trainjob("b", spec=spec, env=builders.variables({"STOKER_GRACE_PERIOD_SECONDS": "600"}))
    refused = stoker("submit", written(tmp_path / "b.yaml", job), code=ExitCode.CONFIG)
    assert entry in refused.stderr


def test_two_of_one_name_and_another_namespace_are_refused(catalogue: Cluster, tmp_path: Path) -> None:
    twice = written(tmp_path / "twice.yaml", builders.trainjob("a"), builders.trainjob("a"))
    assert "twice.yaml has two TrainJobs a: rename one" in stoker("submit", twice, code=ExitCode.USAGE).stderr
    job = builders.trainjob("a")
    job["metadata"]["namespace"] = "team-a"
    refused = stoker("submit", written(tmp_path / "a.yaml", job), "--namespace", "team-b", code=ExitCode.USAGE)
    assert "a is of namespace team-a in " in refused.stderr
    assert "--namespace is team-b: write one of them" in refused.stderr
    assert [key for key in catalogue.objects if key[0] == "trainjobs"] == []


@pytest.fixture
def quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota without room for the TrainJob `b`, of which a dry run knows nothing."""
    create = Client.create

    def full(self: Client, kind: Kind, body: Mapping[str, Any], *, dry_run: bool = False) -> builders.Manifest:
        if not dry_run and body["metadata"]["name"] == "b":
            raise ObjectRefusedError(ExitCode.CONFIG, "exceeded quota")
        return create(self, kind, body, dry_run=dry_run)

    monkeypatch.setattr(Client, "create", full)


@pytest.mark.usefixtures("quota")
def test_if_one_cannot_be_made_after_all_none_is(catalogue: Cluster, tmp_path: Path) -> None:
    path = written(tmp_path / "job.yaml", builders.trainjob("a"), builders.trainjob("b"))
    assert "exceeded quota" in stoker("submit", path, code=ExitCode.CONFIG).stderr
    assert [key for key in catalogue.objects if key[0] == "trainjobs"] == []


@pytest.mark.usefixtures("quota")
def test_a_trainjob_that_may_not_be_taken_back_is_named(catalogue: Cluster, other_context: str, tmp_path: Path) -> None:
    catalogue.refusals["DELETE", "trainjobs"] = forbidden("delete", "trainjobs")
    path = written(tmp_path / "job.yaml", builders.trainjob("a"), builders.trainjob("b"))
    told = stoker("submit", path, "--context", other_context, code=ExitCode.CONFIG).stderr
    assert "exceeded quota" in told
    assert "a was submitted before and stays (" in told
    assert "kubectl delete trainjob a --context 'team a' --namespace ml" in told


def test_a_trainjob_is_submitted(catalogue: Cluster, tmp_path: Path) -> None:
    path = written(tmp_path / "job.yaml", builders.trainjob("a"), builders.trainjob("b"))
    assert stoker("submit", path).stdout.splitlines()[0] == (
        "a is submitted to namespace ml: stoker logs a --follow --namespace ml"
    )
    assert ("trainjobs", "ml", "b") in catalogue.objects
    again = stoker("submit", path, code=ExitCode.USAGE)
    assert "TrainJob a exists already in namespace ml: choose another name" in again.stderr
    assert json.loads(
        stoker("submit", written(tmp_path / "c.yaml", builders.trainjob("c")), "--output", "json").stdout
    ) == [{"namespace": "ml", "name": "c"}]


def test_a_wrong_trainjob_is_refused_before_anything_is_made(catalogue: Cluster, tmp_path: Path) -> None:
    wrong = builders.trainjob("b", args=["--learning_rte=1"])
    path = written(tmp_path / "job.yaml", builders.trainjob("a"), wrong)
    assert "did you mean --learning_rate?" in stoker("submit", path, code=ExitCode.USAGE).stderr
    assert [key for key in catalogue.objects if key[0] == "trainjobs"] == []
    stoker("submit", path, "--no-check")
    assert ("trainjobs", "ml", "b") in catalogue.objects


def test_what_is_no_trainjob_is_refused(catalogue: Cluster, tmp_path: Path) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    result = stoker("submit", written(tmp_path / "job.yaml", builders.trainjob("a"), config), code=ExitCode.USAGE)
    assert "also has ConfigMap x: put these into another file for `kubectl apply`" in result.stderr
    stoker("submit", str(tmp_path / "missing.yaml"), code=ExitCode.NO_INPUT)


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        (None, "kubectl get clustertrainingruntimes --context 'team a' lists"),
        ("TrainingRuntime", "kubectl get trainingruntimes --context 'team a' --namespace ml lists"),
    ],
)
@pytest.mark.usefixtures("catalogue")
def test_a_runtime_that_is_missing_is_named(other_context: str, tmp_path: Path, kind: str | None, command: str) -> None:
    path = written(tmp_path / "job.yaml", builders.trainjob("a", runtime="none", kind=kind))
    told = stoker("submit", path, "--context", other_context, code=ExitCode.USAGE).stderr
    assert f"a names the runtime none, which the cluster does not have: {command}" in told


@pytest.mark.parametrize(
    ("named", "there"),
    [(None, "TrainingRuntime"), ("TrainingRuntime", "ClusterTrainingRuntime")],
)
def test_the_kind_of_a_runtime_is_corrected(catalogue: Cluster, tmp_path: Path, named: str | None, there: str) -> None:
    kept = builders.kept(builders.RUNTIME)
    catalogue.add(f"{there.lower()}s", {**kept, "kind": there, "metadata": {**kept["metadata"], "name": "own"}})
    path = written(tmp_path / "job.yaml", builders.trainjob("a", runtime="own", kind=named))
    told = stoker("submit", path, code=ExitCode.USAGE).stderr
    assert f"a names the {named or 'ClusterTrainingRuntime'} own, but it is a {there}: " in told
    assert f"write spec.runtimeRef.kind: {there}\n" in told


def test_a_kind_of_runtimes_that_the_user_may_not_read_is_passed_over(catalogue: Cluster, tmp_path: Path) -> None:
    catalogue.refusals["GET", "trainingruntimes"] = forbidden("get", "trainingruntimes")
    path = written(tmp_path / "job.yaml", builders.trainjob("a", runtime="none"))
    assert "which the cluster does not have" in stoker("submit", path, code=ExitCode.USAGE).stderr


def test_a_runtime_that_the_user_may_not_read_is_said(catalogue: Cluster, tmp_path: Path) -> None:
    catalogue.refusals["GET", "clustertrainingruntimes"] = forbidden("get", "clustertrainingruntimes")
    told = stoker("submit", written(tmp_path / "job.yaml", builders.trainjob("a"))).stderr
    assert "a is not checked before it is submitted, because its runtime cannot be read: you may not get" in told


def test_a_run_is_stopped_and_resumed(cluster: Cluster, kubeconfig: Path) -> None:
    cluster.add("trainjobs", trainjob())
    cluster.add("jobsets", jobset())
    cluster.add("pods", pod())
    assert stoker("resume", "tune").stdout == "tune is not stopped: it is running\n"
    assert stoker("stop", "tune").stdout.startswith("tune stops: ")
    assert suspended(cluster)
    again = json.loads(stoker("stop", "tune", "--output", "json").stdout)
    assert again == {"name": "tune", "told": "tune is stopped already: stoker resume tune"}
    assert stoker("stop", "tune").stdout == "tune is stopped already: stoker resume tune\n"
    named = stoker("resume", "tune", "--namespace", "ml").stdout
    assert named == "tune goes on: `stoker logs tune --follow`\n", "it is the context's own"
    assert not suspended(cluster)


def test_advice_names_the_namespace_that_is_not_the_contexts(cluster: Cluster, kubeconfig: Path) -> None:
    for status, state in (({}, "stopped"), (ended("Complete", "AllJobsCompleted"), "complete")):
        job = trainjob(suspend=True, **status)
        job["metadata"]["namespace"] = "team-a"
        cluster.add("trainjobs", job)
        stopped = stoker("stop", "tune", "--namespace", "team-a").stdout
        assert ("stoker resume tune --namespace team-a" in stopped) is (state == "stopped")
        found = json.loads(stoker("explain", "tune", "-n", "team-a", "--output", "json").stdout)
        verb, rest = ("resume", " lets it") if state == "stopped" else ("get", " FOLDER`")
        assert f"stoker {verb} tune --namespace team-a{rest}" in found[0]["fix"]
    assert "`stoker get tune --namespace team-a FOLDER`" in (
        stoker("resume", "tune", "-n", "team-a", code=ExitCode.USAGE).stderr
    )


@pytest.mark.usefixtures("catalogue")
def test_advice_names_the_context_as_a_shell_takes_it(other_context: str, tmp_path: Path) -> None:
    path = written(tmp_path / "job.yaml", builders.trainjob("tune", spec={"suspend": True}))
    assert stoker("submit", path, "--context", other_context).stdout == (
        "tune is submitted to namespace ml: stoker logs tune --follow --context 'team a' --namespace ml\n"
    )
    assert stoker("resume", "tune", "--context", other_context).stdout == (
        "tune goes on: `stoker logs tune --context 'team a' --follow`\n"
    )


def test_a_run_that_is_over_is_neither_stopped_nor_resumed(cluster: Cluster, kubeconfig: Path) -> None:
    cluster.add("trainjobs", trainjob(**ended("Complete", "AllJobsCompleted")))
    assert "is complete already" in stoker("stop", "tune").stdout
    assert "`stoker get tune FOLDER`" in stoker("resume", "tune", code=ExitCode.USAGE).stderr
    cluster.add("trainjobs", trainjob(**ended("Failed", "FailedJobs")))
    told = stoker("resume", "tune", code=ExitCode.USAGE).stderr
    assert "continue it under another name (docs/guides/resume-a-run.md)" in told


@pytest.mark.parametrize("command", ["stop", "resume"])
@pytest.mark.usefixtures("kubeconfig")
def test_a_session_that_waits_for_a_device_is_left_to_rl_up(cluster: Cluster, command: str) -> None:
    cluster.add("trainjobs", held())
    result = stoker(command, "tune", code=ExitCode.USAGE)
    assert "waits for a place at ResourceClaim gpu-0: repeat the `stoker rl up" in result.stderr
    assert cluster.objects["trainjobs", "ml", "tune"]["spec"]["suspend"] is True


@pytest.mark.parametrize("command", ["stop", "resume"])
def test_what_kueue_decides_is_left_to_kueue(cluster: Cluster, other_context: str, command: str) -> None:
    queued = trainjob(suspend=command == "resume")
    queued["metadata"]["labels"] = {QUEUE: "research"}
    cluster.add("trainjobs", queued)
    told = stoker(command, "tune", "--context", other_context, code=ExitCode.USAGE).stderr
    assert f'"active": {"true" if command == "resume" else "false"}' in told
    assert "kubectl patch workload NAME --context 'team a' --namespace ml --type=merge" in told
    assert "`kubectl get workloads --context 'team a' --namespace ml`" in told
    assert suspended(cluster) is (command == "resume")


# `top`.


def test_top_prints_tables_where_nobody_looks(cluster: Cluster, kubeconfig: Path) -> None:
    cluster.add("trainjobs", trainjob(trainerStatus=progress(step=4, loss=1.5, staleness__mean=2)))
    cluster.add("pods", pod())
    lines = stoker("top", "--times", "2", "--interval", "1").stdout.splitlines()
    assert len(lines) == 5
    assert lines[1].split()[:6] == ["tune", "Running", "42", "%", "4", "1.5"]
    assert lines[2] == ""
    assert "\x1b" not in "".join(lines)
    looks = [*map(json.loads, stoker("top", "--times", "2", "--interval", "1", "--output", "json").stdout.splitlines())]
    assert [[run["name"] for run in look["runs"]] for look in looks] == [["tune"], ["tune"]]


def test_a_loss_is_recorded_once_for_each_step() -> None:
    losses = Losses()
    for step, loss in ((1, 3.0), (1, 3.0), (2, 2.0)):
        losses.add([run_of(trainjob(trainerStatus=progress(step=step, loss=loss)), None, [])])
    assert [*losses.of["uid-tune"]] == [3.0, 2.0]


def test_runs_that_ended_long_ago_leave_the_view() -> None:
    done = run_of(trainjob(**ended("Complete", "AllJobsCompleted")), None, [])
    now = datetime.fromisoformat(NOW)
    assert in_view([done], now) == [done]
    assert in_view([done], now.replace(hour=23)) == []
