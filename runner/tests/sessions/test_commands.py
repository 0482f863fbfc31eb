"""`stoker rl` against an API server: a session is made whole or not at all, and ended without remains."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from runner.tests.runs.api_server import Cluster, forbidden
from runner.tests.runs.objects import CREATED, pod, workload

import builders
from stoker import sdk
from stoker.backends import TRLConfig
from stoker.backends.initializer import Initializer, Source
from stoker.commands.main import main
from stoker.runs import get
from stoker.runs.client import Client, connect
from stoker.runs.errors import NotFoundError
from stoker.runs.kinds import DEVICE_CLAIMS, Kind
from stoker.runs.run import QUEUE
from stoker.serve.slices.record import record_of
from stoker.serve.slices.turns import EngineState, Rules, Turns, Write
from stoker.sessions import down, folder, places, render, sharing, show, up

Object = dict[str, Any]
Rl = Callable[..., Result]
SUMS = ("--model", "hf://org/model", "--set", "reward_funcs=think_format_reward")
MADE = [
    ("networkpolicies", "sums-session-nodes"),
    ("networkpolicies", "sums-session-samplers"),
    ("secrets", "sums-session"),
    ("services", "sums-samplers"),
    ("trainjobs", "sums"),
]


@pytest.fixture
def rl(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> Rl:
    """Runs `stoker rl` as the user of that cluster would."""
    monkeypatch.setattr(up, "_SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(sharing, "_SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(up, "_JOB_SECONDS", 0.05)
    monkeypatch.setattr(down, "_SECONDS_BETWEEN_LOOKS", 0.01)

    def run(*words: str) -> Result:
        return CliRunner().invoke(main, ["rl", *words])

    return run


def names(cluster: Cluster) -> list[tuple[str, str]]:
    """Return what there is beside the runtime."""
    return sorted((plural, name) for plural, _, name in cluster.objects if plural != "clustertrainingruntimes")


def sampler(index: int, ready: bool = True, session: str = "sums", **status: Any) -> Object:
    labels = {"stoker.dev/session": session, "stoker.dev/role": "sampler"}
    index_label = {"batch.kubernetes.io/job-completion-index": str(index)}
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"name": f"{session}-sampler-0-{index}-x", "namespace": "ml", "labels": labels | index_label},
        "status": {"phase": "Running", "conditions": conditions, **status},
    }


def initializers(runtime: Object) -> None:
    """Give a runtime the jobs that fetch."""
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    for part in ("dataset", "model"):
        name = f"{part}-initializer"
        container = {
            "name": name,
            "image": "fetch",
            "volumeMounts": [{"name": "initializer", "mountPath": "/workspace"}],
        }
        jobs.append({"name": name, "template": {"spec": {"template": {"spec": {"containers": [container]}}}}})


@pytest.fixture(autouse=True)
def fetching(runtime: Object) -> None:
    initializers(runtime)


def test_a_session_is_made_once(rl: Rl, cluster: Cluster) -> None:
    told = rl("up", "sums", *SUMS, "--time-limit", "8h", "--idle-limit", "30m", "--wait", "0")
    assert told.exit_code == 0, told.output
    assert names(cluster) == MADE
    trainjob = cluster.objects["trainjobs", "ml", "sums"]
    assert trainjob["spec"]["activeDeadlineSeconds"] == 28800
    for plural, name in MADE[:-1]:
        (owner,) = cluster.objects[plural, "ml", name]["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("TrainJob", "uid-sums")
    key = cluster.objects["secrets", "ml", "sums-session"]["stringData"]["api-key"]
    assert len(key) == 64
    lines = dict(line.split(maxsplit=1) for line in told.stdout.splitlines())
    assert lines["samplers"] == "http://sums-samplers.ml:8080 (2 samplers)"
    assert lines["key"].startswith("kubectl get secret sums-session --namespace ml --output jsonpath=")
    assert lines["folder"] == "claim initializer-sums: /workspace in the pods"
    assert (lines["ends"], lines["idle"]) == ("8h after it began", "ends 30m after the last request and step")
    assert key not in told.output

    cluster.requests.clear()
    again = rl("up", "sums", *SUMS, "--time-limit", "8h", "--idle-limit", "30m", "--wait", "0")
    assert again.exit_code == 0
    assert "already exists with these values" in again.stderr
    assert {method for method, _ in cluster.requests} == {"GET"}

    other = rl("up", "sums", *SUMS, "--time-limit", "9h", "--idle-limit", "30m", "--wait", "0")
    assert other.exit_code == 64
    assert "session sums is up with another value: time-limit is 28800, and you ask for 32400" in other.stderr
    assert "`stoker rl down sums` first" in other.stderr


def test_a_session_that_cannot_be_completed_leaves_no_trainjob(rl: Rl, cluster: Cluster) -> None:
    cluster.refusals["POST", "networkpolicies"] = forbidden("create", "networkpolicies")
    told = rl("up", "sums", *SUMS, "--wait", "0")
    assert told.exit_code == 78
    assert "you may not create networkpolicies" in told.stderr
    assert ("trainjobs", "sums") not in names(cluster)
    # Kubernetes collects what the TrainJob owned.
    assert names(cluster) == [("secrets", "sums-session")]
    assert cluster.objects["secrets", "ml", "sums-session"]["metadata"]["ownerReferences"]


def test_two_who_make_one_session_at_once_both_have_it(
    rl: Rl, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = Client.find

    def overtaken(self: Client, kind: Kind, name: str, **more: Any) -> Object | None:
        found = find(self, kind, name, **more)
        if kind.kind == "Secret" and found is None:
            own = {"labels": {"stoker.dev/session": "sums"}, "ownerReferences": [{"uid": "uid-sums"}]}
            cluster.add("secrets", {"metadata": {"name": name, "namespace": "ml", **own}})
        return found

    monkeypatch.setattr(Client, "find", overtaken)
    told = rl("up", "sums", *SUMS, "--wait", "0")
    assert told.exit_code == 0, told.output
    assert names(cluster) == MADE


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"spec": {"runtimeRef": "trl-grpo-async"}}, "spec.runtimeRef"),
        ({"spec": {"runtimeRef": {"kind": "ClusterTrainingRuntime"}}}, "spec.runtimeRef"),
        ({"spec": {"runtimeRef": {"name": "trl-grpo-async"}, "trainer": ["a"]}}, "spec.trainer"),
        ({"spec": {"runtimeRef": {"name": "trl-grpo-async"}, "trainer": {"env": "A"}}}, "spec.trainer.env"),
    ],
)
def test_a_trainjob_of_another_shape_is_refused_in_words(
    rl: Rl, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    file = tmp_path / "trainjob.yaml"
    file.write_text(yaml.safe_dump({**builders.trainjob("a", runtime="trl-grpo-async"), **changes}))
    refused = rl("up", "sums", str(file), "--wait", "0")
    assert (refused.exit_code, said in refused.stderr) == (64, True), refused.output


def test_fields_without_a_value_are_as_if_they_were_not_there(rl: Rl, tmp_path: Path) -> None:
    file = tmp_path / "trainjob.yaml"
    trainjob = builders.trainjob("a", runtime="trl-grpo-async", env=None, args=builders.GRPO)
    trainjob["metadata"]["labels"] = trainjob["spec"]["runtimePatches"] = None
    file.write_text(yaml.safe_dump(trainjob))
    made = rl("up", "sums", str(file), "--wait", "0")
    assert made.exit_code == 0, made.output


def test_what_is_of_somebody_else_is_left_alone(rl: Rl, cluster: Cluster) -> None:
    cluster.add("services", {"metadata": {"name": "sums-samplers"}})
    told = rl("up", "sums", *SUMS, "--wait", "0")
    assert told.exit_code == 64
    assert "Service sums-samplers exists but is not of this session: choose another name" in told.stderr
    cluster.add("trainjobs", {"metadata": {"name": "mine", "uid": "1"}, "spec": {"runtimeRef": {"name": "x"}}})
    told = rl("up", "mine", *SUMS, "--wait", "0")
    assert told.exit_code == 64
    assert "TrainJob mine exists but is not a session" in told.stderr
    told = rl("down", "mine")
    assert told.exit_code == 64
    assert "TrainJob mine is not a session: it lacks the label" in told.stderr
    assert ("trainjobs", "mine") in names(cluster)


def test_it_waits_for_its_samplers_and_says_for_what(rl: Rl, cluster: Cluster) -> None:
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff"}}, "name": "vllm"}
    cluster.add("pods", sampler(0), sampler(1, ready=False, containerStatuses=[waiting]))
    late = rl("up", "sums", *SUMS, "--wait", "0.05")
    assert late.exit_code == 75
    assert "session sums is not ready after 0.05 s: 1 of 2 samplers ready" in late.stderr
    assert "sampler: vllm ImagePullBackOff" in late.stderr
    cluster.add("pods", sampler(1))
    assert rl("up", "sums", *SUMS, "--wait", "5").exit_code == 0
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "it took too long"}
    cluster.objects["trainjobs", "ml", "sums"]["status"] = {"conditions": [failed]}
    ended = rl("up", "sums", *SUMS, "--wait", "5")
    assert ended.exit_code == 64
    assert "session sums has ended (Failed): `stoker rl down sums` first" in ended.stderr
    cluster.objects["trainjobs", "ml", "sums"]["status"] = {}
    cluster.objects["trainjobs", "ml", "sums"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ending = rl("up", "sums", *SUMS, "--wait", "5")
    assert (ending.exit_code, "session sums is being deleted: wait for" in ending.stderr) == (64, True)


def test_a_session_that_fails_while_it_is_waited_for_is_70(cluster: Cluster, client: Client) -> None:
    failed = {"type": "Failed", "status": "True", "message": "no model"}
    cluster.add("trainjobs", {"metadata": {"name": "sums"}, "status": {"conditions": [failed]}})
    with pytest.raises(Exception, match="session sums has failed: no model; see `stoker logs sums`") as refused:
        up.wait(client, "sums", 2, 5)
    assert getattr(refused.value, "code", None) == 70


def test_another_number_of_samplers_scales_their_job(rl: Rl, cluster: Cluster) -> None:
    cluster.add("jobs", {"metadata": {"name": "sums-sampler-0"}, "spec": {"parallelism": 2, "completions": 2}})
    assert rl("up", "sums", *SUMS, "--samplers", "3", "--wait", "0").exit_code == 0
    assert cluster.objects["jobs", "ml", "sums-sampler-0"]["spec"] == {"parallelism": 3, "completions": 3}


def test_a_session_that_kueue_admits_late_has_the_samplers_that_were_asked_for(
    rl: Rl, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add("localqueues", {"metadata": {"name": "gpu-0"}})
    job = {"metadata": {"name": "sums-sampler-0"}, "spec": {"parallelism": 2, "completions": 2}}
    waited: list[float] = []

    def slept(seconds: float) -> None:
        waited.append(time.monotonic())
        if waited[-1] - waited[0] > 0.2:  # longer than `up` itself waits for the job
            cluster.add("pods", sampler(0))
        if waited[-1] - waited[0] > 0.3 and ("jobs", "ml", "sums-sampler-0") not in cluster.objects:
            cluster.add("jobs", job)
        time.sleep(seconds)

    monkeypatch.setattr(up, "time", SimpleNamespace(monotonic=time.monotonic, sleep=slept))
    told = rl("up", "sums", *SUMS, "--queue", "gpu-0", "--samplers", "1", "--wait", "20")
    assert told.exit_code == 0, told.stderr
    assert cluster.objects["jobs", "ml", "sums-sampler-0"]["spec"] == {"parallelism": 1, "completions": 1}


def test_a_session_that_restarts_while_it_is_waited_for_gets_its_samplers_again(
    cluster: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def job() -> Object:
        return {"metadata": {"name": "sums-sampler-0"}, "spec": {"parallelism": 2, "completions": 2}}

    def restarted(_seconds: float) -> None:
        cluster.add("jobs", job())
        for index in range(3):
            cluster.add("pods", sampler(index))

    cluster.add("trainjobs", {"metadata": {"name": "sums"}})
    cluster.add("jobs", job())
    monkeypatch.setattr(up, "time", SimpleNamespace(monotonic=time.monotonic, sleep=restarted))
    up.wait(client, "sums", 3, 20, scale=True)
    assert cluster.objects["jobs", "ml", "sums-sampler-0"]["spec"]["completions"] == 3


def test_two_sessions_have_nothing_in_common(rl: Rl, cluster: Cluster) -> None:
    for name in ("one", "two"):
        assert rl("up", name, *SUMS, "--wait", "0").exit_code == 0
    keys = {cluster.objects["secrets", "ml", f"{name}-session"]["stringData"]["api-key"] for name in ("one", "two")}
    assert len(keys) == 2
    assert rl("down", "one").exit_code == 0
    assert {name for _, name in names(cluster)} == {name.replace("sums", "two") for _, name in MADE}


def test_down_of_what_has_ended_leaves_the_others(rl: Rl, cluster: Cluster) -> None:
    for name in ("one", "two", "three"):
        assert rl("up", name, *SUMS, "--wait", "0").exit_code == 0
    assert "no session in namespace ml has ended" in rl("down", "--ended").stderr
    for name, kind in (("one", "Complete"), ("three", "Failed")):
        cluster.objects["trainjobs", "ml", name]["status"] = {"conditions": [{"type": kind, "status": "True"}]}
    told = rl("down", "--ended")
    assert (told.exit_code, told.stderr.count("nothing is left")) == (0, 2), told.stderr
    assert {name for _, name in names(cluster)} == {name.replace("sums", "two") for _, name in MADE}
    for words in ((), ("two", "--ended")):
        assert "write the NAME of a session, or --ended" in rl("down", *words).stderr


def test_a_session_that_is_left_keeps_no_other_from_its_end(rl: Rl, cluster: Cluster) -> None:
    for name in ("one", "two"):
        assert rl("up", name, *SUMS, "--wait", "0").exit_code == 0
        cluster.objects["trainjobs", "ml", name]["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    cluster.add("pods", sampler(0, session="one"))
    told = rl("down", "--ended", "--wait", "0.05")
    assert (told.exit_code, "session one: Pod one-sampler-0-0-x is left" in told.stderr) == (75, True), told.stderr
    assert ("trainjobs", "ml", "two") not in cluster.objects


def test_down_leaves_nothing_and_says_what_stays(rl: Rl, cluster: Cluster) -> None:
    rl("up", "sums", *SUMS, "--wait", "0")
    cluster.add("persistentvolumeclaims", {"metadata": {"name": "initializer-sums"}})
    told = rl("down", "sums")
    assert told.exit_code == 0, told.output
    assert names(cluster) == [("persistentvolumeclaims", "initializer-sums")]
    assert "claim initializer-sums keeps the run folder with all that is in it, published adapters too" in told.stderr
    assert "; `stoker rl down sums --purge` deletes it\n" in told.stderr
    assert told.stderr.endswith("session sums: nothing else is left\n")
    refused = rl("up", "sums", *SUMS, "--wait", "0")
    assert refused.exit_code == 64
    assert "claim initializer-sums of an earlier session or run still exists" in refused.stderr
    # Without its TrainJob, nothing but the user knows the image.
    assert "`stoker get sums FOLDER --image IMAGE` (IMAGE is that of its runtime)" in refused.stderr
    assert rl("down", "sums", "--purge").exit_code == 0
    assert names(cluster) == []
    again = rl("down", "sums")
    assert (again.exit_code, "session sums does not exist" in again.stderr) == (0, True)


def test_purge_deletes_no_claim_that_may_be_an_ordinary_runs(rl: Rl, cluster: Cluster) -> None:
    cluster.add("persistentvolumeclaims", {"metadata": {"name": "initializer-tune"}})
    refused = rl("down", "tune", "--purge")
    assert (refused.exit_code, "claim initializer-tune may be an ordinary run's" in refused.stderr) == (64, True)
    assert "`kubectl delete pvc initializer-tune --namespace ml`" in refused.stderr
    assert names(cluster) == [("persistentvolumeclaims", "initializer-tune")]


def test_purge_deletes_a_claim_that_jobset_makes_anew(
    rl: Rl, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rl("up", "sums", *SUMS, "--wait", "0")
    claim = {"metadata": {"name": "initializer-sums"}}
    cluster.add("persistentvolumeclaims", claim)
    cluster.add("jobsets", {"metadata": {"name": "sums", "labels": {"stoker.dev/session": "sums"}}})

    def end(_: float) -> None:
        """JobSet sees to its claim once more before its JobSet is gone."""
        if cluster.objects.pop(("jobsets", "ml", "sums"), None):
            cluster.add("persistentvolumeclaims", claim)

    monkeypatch.setattr("stoker.sessions.down.time.sleep", end)
    told = rl("down", "sums", "--purge", "--wait", "20")
    assert told.exit_code == 0, told.output
    assert names(cluster) == []


def test_down_names_what_is_left_and_why(rl: Rl, cluster: Cluster) -> None:
    rl("up", "sums", *SUMS, "--wait", "0")
    stuck = sampler(0)
    stuck["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster.add("pods", stuck)
    labels = {"stoker.dev/session": "sums"}
    ends = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/x"]}
    cluster.add("leases", {"metadata": {"name": "gpu", "labels": labels, **ends}})
    cluster.refusals["GET", "jobsets"] = forbidden("list", "jobsets.jobset.x-k8s.io")
    cluster.kinds.remove("resourceclaims")  # a cluster without DRA
    told = rl("down", "sums", "--wait", "0.05")
    assert told.exit_code == 75
    assert "Pod sums-sampler-0-0-x is left: it is being deleted; try again later" in told.stderr
    assert "Lease gpu is left: its finalizers example.com/x still block deletion" in told.stderr
    assert "you may not list jobsets.jobset.x-k8s.io, so whether one is left is not known" in told.stderr


def test_down_looks_by_name_where_it_may_not_list(rl: Rl, cluster: Cluster) -> None:
    rl("up", "sums", *SUMS, "--wait", "0")
    cluster.add("secrets", {"metadata": {"name": "other-session", "labels": {"stoker.dev/session": "other"}}})
    cluster.only_by_name = {"secrets"}
    cluster.refusals["DELETE", "secrets"] = forbidden("delete", "secrets")
    told = rl("down", "sums", "--wait", "0.05")
    assert (told.exit_code, "you may not delete secrets" in told.stderr) == (78, True), told.stderr
    del cluster.refusals["DELETE", "secrets"]
    told = rl("down", "sums", "--wait", "0.05")
    assert told.exit_code == 0, told.output
    assert names(cluster) == [("secrets", "other-session")]
    assert "is not known" not in told.stderr


def of_a_shared_claim(runtime: Object) -> Object:
    """Return the JobSet of the session `sums`, whose runtime has all runs in folders of one claim."""
    (node,) = (one for one in runtime["spec"]["template"]["spec"]["replicatedJobs"] if one["name"] == "node")
    pod = node["template"]["spec"]["template"]["spec"]
    pod["volumes"].append({"name": "initializer", "persistentVolumeClaim": {"claimName": "team"}})
    (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["mountPath"] == "/workspace")
    mount["subPathExpr"] = "$(JOBSET_NAME)"
    return {"metadata": {"name": "sums"}, "spec": {"replicatedJobs": [node]}}


@pytest.fixture
def sharing_a_claim(rl: Rl, cluster: Cluster, runtime: Object, tmp_path: Path) -> Path:
    """The folder of a session that is up, beside that of another one."""
    cluster.add("jobsets", of_a_shared_claim(runtime))
    cluster.add("persistentvolumeclaims", {"metadata": {"name": "team"}, "spec": {"accessModes": ["ReadWriteMany"]}})
    for name in ("sums", "other"):
        (tmp_path / "claim" / name / "adapters/run/1").mkdir(parents=True)
        (tmp_path / "claim" / name / ".hidden").touch()
    cluster.claim = tmp_path / "claim"
    rl("up", "sums", *SUMS, "--wait", "0")
    return tmp_path / "claim/sums"


def test_purge_deletes_the_sessions_folder_of_a_shared_claim(rl: Rl, cluster: Cluster, sharing_a_claim: Path) -> None:
    told = rl("down", "sums")
    assert told.exit_code == 0, told.output
    assert "its folder sums of claim team stays with all that is in it, published adapters too" in told.stderr
    assert told.stderr.endswith("session sums: nothing else is left\n")
    assert (sharing_a_claim / "adapters/run/1").is_dir()
    rl("up", "sums", *SUMS, "--wait", "0")
    told = rl("down", "sums", "--purge")
    assert told.exit_code == 0, told.output
    assert "stays" not in told.stderr
    assert not sharing_a_claim.exists()
    assert (sharing_a_claim.parent / "other/adapters/run/1").is_dir()
    assert (sharing_a_claim.parent / "other/.hidden").exists()
    assert [name for plural, name in names(cluster) if plural in ("pods", "trainjobs")] == []


def test_purge_follows_no_link(rl: Rl, sharing_a_claim: Path) -> None:
    sharing_a_claim.rename(sharing_a_claim.with_name("elsewhere"))
    sharing_a_claim.symlink_to(sharing_a_claim.with_name("elsewhere"))
    assert rl("down", "sums", "--purge").exit_code == 0
    assert not sharing_a_claim.is_symlink()
    assert sharing_a_claim.with_name("elsewhere").is_dir()


def test_a_folder_that_cannot_be_deleted_is_named(rl: Rl, cluster: Cluster, sharing_a_claim: Path) -> None:
    cluster.refusals["POST", "pods"] = forbidden("create", "pods")
    told = rl("down", "sums", "--purge")
    assert told.exit_code == 78
    assert "session sums has ended, but its folder sums of claim team stays, whole or in part, until" in told.stderr
    assert "`stoker rl down sums --purge` has deleted it: you may not create pods" in told.stderr
    assert sharing_a_claim.is_dir()
    assert ("trainjobs", "sums") not in names(cluster)


def note_of(cluster: Cluster) -> str | None:
    """Return what the claim remembers of the session `sums`."""
    metadata = cluster.objects["persistentvolumeclaims", "ml", "team"]["metadata"]
    found: str | None = metadata.get("annotations", {}).get("purge.stoker.dev/sums")
    return found


def test_purge_goes_on_where_it_failed(
    rl: Rl, cluster: Cluster, sharing_a_claim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.starts = False
    monkeypatch.setattr(get, "_START_SECONDS", 0.0)
    told = rl("down", "sums", "--purge")
    assert told.exit_code == 69
    advice = "its node still pulls the image or mounts the claim): repeat the command"
    assert f"the pod that changes the claim does not start ({advice}" in told.stderr
    assert "--image" not in told.stderr
    # What is kept of the session's pods has none of their variables.
    assert {*json.loads(note_of(cluster) or "")["pod"]} <= {"securityContext", "tolerations", "nodeSelector"}

    cluster.starts = True
    cluster.objects.pop(("jobsets", "ml", "sums"))  # as the garbage collector does
    refused = rl("up", "sums", *SUMS, "--wait", "0")
    assert refused.exit_code == 64
    half = "the folder sums of claim team is only half deleted: finish it with `stoker rl down sums --purge`"
    assert half in refused.stderr
    told = rl("down", "sums", "--purge")
    assert told.exit_code == 0, told.output
    assert told.stderr.endswith("session sums: nothing is left\n")
    assert not sharing_a_claim.exists()
    assert (sharing_a_claim.parent / "other/adapters/run/1").is_dir()
    assert note_of(cluster) is None
    assert "session sums does not exist" in rl("down", "sums", "--purge").stderr


def test_purge_waits_for_the_end_of_what_may_write(rl: Rl, cluster: Cluster, sharing_a_claim: Path) -> None:
    job = {"metadata": {"name": "sums-node-0", "labels": {"stoker.dev/session": "sums"}}}
    cluster.add("jobs", job)
    told = rl("down", "sums", "--purge", "--wait", "0.05")
    assert told.exit_code == 75
    assert "Job sums-node-0 is left" in told.stderr
    assert (
        "its folder sums of claim team stays until these are gone: repeat `stoker rl down sums --purge`" in told.stderr
    )
    assert (sharing_a_claim / "adapters/run/1").is_dir()
    assert [address for method, address in cluster.requests if method == "EXEC"] == []
    cluster.objects.pop(("jobs", "ml", "sums-node-0"))
    assert rl("down", "sums", "--purge").exit_code == 0
    assert not sharing_a_claim.exists()


def test_a_folder_that_takes_long_breaks_no_connection(
    rl: Rl, sharing_a_claim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "bin/rm"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nsleep 2\nexec {shutil.which("rm")} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("stoker.runs.client._EXEC_WAIT", 0.2)
    monkeypatch.setattr("stoker.runs.client._EXEC_SILENT", 1.0)
    monkeypatch.setattr(folder, "_SECONDS_BETWEEN_LINES", 0.2)
    told = rl("down", "sums", "--purge")
    assert told.exit_code == 0, told.output
    assert "session sums: still deletes its folder sums of claim team" in told.stderr
    assert not sharing_a_claim.exists()


def test_purge_ends_nothing_that_it_cannot_go_on_with(rl: Rl, cluster: Cluster, sharing_a_claim: Path) -> None:
    cluster.refusals["PATCH", "persistentvolumeclaims"] = forbidden("patch", "persistentvolumeclaims")
    told = rl("down", "sums", "--purge")
    assert told.exit_code == 78
    assert (
        "session sums has not ended, because --purge cannot note its folder on claim team: you may not" in told.stderr
    )
    assert "drop --purge to end it and to keep its folder" in told.stderr
    assert ("trainjobs", "sums") in names(cluster)
    assert sharing_a_claim.is_dir()


def test_a_claim_that_is_gone_has_no_folder_to_delete(rl: Rl, cluster: Cluster, sharing_a_claim: Path) -> None:
    cluster.objects.pop(("persistentvolumeclaims", "ml", "team"))
    told = rl("down", "sums", "--purge")
    assert told.exit_code == 0, told.output
    assert ("trainjobs", "sums") not in names(cluster)


def test_a_note_that_is_none_is_refused(rl: Rl, cluster: Cluster, sharing_a_claim: Path) -> None:
    rl("down", "sums")
    metadata = cluster.objects["persistentvolumeclaims", "ml", "team"]["metadata"]
    metadata["annotations"] = {"purge.stoker.dev/sums": "[]"}
    told = rl("down", "sums", "--purge")
    assert told.exit_code == 78
    assert "claim team has the annotation purge.stoker.dev/sums, which `stoker rl down` did not write" in told.stderr
    assert sharing_a_claim.is_dir()


def test_a_folder_that_the_user_has_named_is_left_alone(
    rl: Rl, cluster: Cluster, runtime: Object, sharing_a_claim: Path
) -> None:
    jobset = of_a_shared_claim(runtime)
    mounts = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0][
        "volumeMounts"
    ]
    (mount,) = (one for one in mounts if one["mountPath"] == "/workspace")
    mount["subPathExpr"] = "$(JOBSET_NAME)/deeper"
    cluster.add("jobsets", jobset)
    assert rl("down", "sums", "--purge").exit_code == 0
    assert (sharing_a_claim / "adapters/run/1").is_dir()


def test_the_list_names_what_cleans_up_after_an_ended_session(rl: Rl, cluster: Cluster) -> None:
    rl("up", "sums", *SUMS, "--wait", "0")
    assert "down" not in rl("list").stderr
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "it took too long"}
    cluster.objects["trainjobs", "ml", "sums"]["status"] = {"conditions": [failed]}
    told = rl("list")
    assert told.stdout.splitlines()[1].split()[:3] == ["sums", "trl-grpo-async", "Failed"]
    assert "sums has ended, and keeps its key, address and policies: `stoker rl down sums`" in told.stderr


def test_advice_names_the_sessions_namespace(rl: Rl, cluster: Cluster) -> None:
    there = ("--namespace", "other")
    told = rl("up", "sums", *SUMS, "--wait", "0", *there)
    assert "starting since now: stoker rl list --namespace other" in told.stdout
    other = rl("up", "sums", *SUMS, "--time-limit", "9h", "--wait", "0", *there)
    assert "`stoker rl down sums --namespace other` first" in other.stderr
    waited = rl("up", "sums", *SUMS, "--wait", "0.1", *there)
    assert waited.exit_code == 75
    assert "`stoker rl list --namespace other` shows it" in waited.stderr
    assert "`stoker rl down sums --namespace other` ends it" in waited.stderr
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "it took too long"}
    cluster.objects["trainjobs", "other", "sums"]["status"] = {"conditions": [failed]}
    assert "policies: `stoker rl down sums --namespace other`" in rl("list", *there).stderr
    waited = rl("up", "sums", *SUMS, "--wait", "0.1", *there)
    assert "has ended (Failed): `stoker rl down sums --namespace other` first" in waited.stderr


@pytest.mark.parametrize("may_list", [True, False])
def test_a_runtime_of_the_namespace_goes_into_a_file(rl: Rl, cluster: Cluster, runtime: Object, may_list: bool) -> None:
    cluster.objects.pop(("clustertrainingruntimes", "ml", runtime["metadata"]["name"]))
    cluster.add("trainingruntimes", runtime | {"kind": "TrainingRuntime"})
    if not may_list:
        cluster.refusals["GET", "clustertrainingruntimes"] = forbidden("list", "clustertrainingruntimes")
    told = rl("up", "sums", *SUMS, "--wait", "0")
    assert told.exit_code == 64, told.output
    reference = "`runtimeRef: {name: trl-grpo-async, kind: TrainingRuntime}`"
    assert f"the runtime trl-grpo-async is one of namespace ml: write a TrainJob with {reference} into" in told.stderr


def test_sessions_are_listed(rl: Rl, cluster: Cluster) -> None:
    assert "there are no sessions in namespace ml" in rl("list").stderr
    rl("up", "sums", *SUMS, "--time-limit", "8h", "--wait", "0")
    rl("up", "other", *SUMS, "--wait", "0")
    cluster.add("pods", sampler(0), sampler(1), sampler(0, ready=False, session="other"))
    cluster.add("trainjobs", {"metadata": {"name": "plain"}, "spec": {}})
    head, other, sums = rl("list").stdout.splitlines()
    assert head.split() == ["NAME", "RUNTIME", "STATE", "SAMPLERS", "AGE", "ENDS", "IN", "URL"]
    assert other.split()[:4] == ["other", "trl-grpo-async", "starting", "0/1"]
    assert sums.split() == ["sums", "trl-grpo-async", "up", "2/2", "0s", "8h", "http://sums-samplers.ml:8080"]
    (first, second) = json.loads(rl("list", "--output", "json").stdout)
    assert (first["name"], second["state"], second["samplers"]) == ("other", "up", [2, 2])


def test_the_time_of_a_session_that_waited_counts_from_when_it_went_on(
    rl: Rl, cluster: Cluster, client: Client
) -> None:
    rl("up", "sums", *SUMS, "--time-limit", "8h", "--wait", "0")
    trainjob = cluster.objects["trainjobs", "ml", "sums"]
    trainjob["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    ten, (hour, eight) = datetime(2026, 1, 1, 10, tzinfo=UTC).timestamp(), (3600, 8 * 3600)

    def ends_in(suspend: bool, *conditions: Object) -> float | None:
        trainjob["spec"]["suspend"], trainjob["status"] = suspend, {"conditions": [*conditions]}
        (row,) = show.rows(client, ten)
        assert row.age == 10 * hour
        return row.ends_in

    def suspended(status: str, when: str) -> Object:
        return {"type": "Suspended", "status": status, "lastTransitionTime": f"2026-01-01T{when}:00Z"}

    assert ends_in(False) == 0
    assert ends_in(True, suspended("True", "00:00")) is None
    assert ends_in(False, suspended("True", "00:00")) is None
    assert ends_in(False, suspended("False", "09:00")) == eight - hour
    assert ends_in(True, suspended("False", "09:00")) is None


def test_logs_are_those_of_any_run(rl: Rl, cluster: Cluster) -> None:
    rl("up", "sums", *SUMS, "--wait", "0")
    containers = {"containers": [{"name": "vllm"}, {"name": "proxy"}]}
    cluster.add("pods", pod("sampler", 0, run="sums", spec=containers), pod("sampler", 1, run="sums", spec=containers))
    cluster.logs["sums-sampler-0-1-x0k1c", "vllm"] = "2026-01-01T00:00:00Z one\n2026-01-01T00:00:01Z two\n"
    cluster.logs["sums-sampler-0-1-x0k1c", "proxy"] = "2026-01-01T00:00:02Z asked\n"
    cluster.logs["sums-sampler-0-0-x0k0c", "vllm"] = "2026-01-01T00:00:03Z three\n"
    one = rl("logs", "sums", "--role", "sampler-1/vllm", "--tail", "1")
    assert one.stdout == "sampler-1/vllm | two\n"
    assert [line.split(" | ")[1] for line in rl("logs", "sums").stdout.splitlines()] == ["one", "two", "asked", "three"]
    absent = rl("logs", "absent")
    assert (absent.exit_code, "absent" in absent.stderr) == (66, True), absent.stderr


def test_a_dry_run_prints_the_objects_and_asks_no_cluster(
    rl: Rl, cluster: Cluster, runtime: Object, tmp_path: Path
) -> None:
    file = tmp_path / "runtimes.yaml"
    file.write_text(json.dumps(runtime))
    told = rl("up", "sums", *SUMS, "--dry-run", "--runtimes", str(file), "--namespace", "team")
    assert told.exit_code == 0, told.output
    kinds = [one["kind"] for one in yaml.safe_load_all(told.stdout)]
    assert kinds == ["TrainJob", "Secret", "NetworkPolicy", "NetworkPolicy", "Service"]
    assert {one["metadata"]["namespace"] for one in yaml.safe_load_all(told.stdout)} == {"team"}
    assert cluster.requests == []
    assert rl("up", "sums", *SUMS, "--dry-run").exit_code == 0
    assert {method for method, _ in cluster.requests} == {"GET"}


def test_a_trainjob_of_ones_own_becomes_a_session(rl: Rl, cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "trainjob.yaml"
    trainjob = builders.trainjob("whatever", runtime="trl-grpo-async", numNodes=2, args=builders.GRPO)
    trainjob["metadata"]["labels"] = {"team": "a"}
    file.write_text(yaml.safe_dump(trainjob))
    assert rl("up", "sums", str(file), "--wait", "0").exit_code == 0
    made = cluster.objects["trainjobs", "ml", "sums"]
    assert made["metadata"]["labels"] == {"team": "a", "stoker.dev/session": "sums"}
    assert made["spec"]["trainer"]["numNodes"] == 2
    waiting = rl("up", "sums", str(file), "--wait", "0.05")
    assert waiting.exit_code == 75
    assert "there are no pods yet: the controller has made none" in waiting.stderr
    trainjob["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "gpu-0"
    file.write_text(yaml.safe_dump(trainjob))
    waiting = rl("up", "queued", str(file), "--wait", "0.05")
    assert waiting.exit_code == 75
    assert "there are no pods yet: queue gpu-0 has not admitted it (`stoker explain queued`" in waiting.stderr
    refused = rl("up", "sums", str(file), "--model", "hf://org/model")
    assert refused.exit_code == 64
    assert f"--model does not go with a TrainJob: write it into {file}" in refused.stderr


def test_a_session_in_a_queue_says_what_kueue_waits_for(rl: Rl, cluster: Cluster) -> None:
    cluster.add("localqueues", {"metadata": {"name": "gpu-0"}})
    words = ("up", "sums", *SUMS, "--queue", "gpu-0", "--wait", "0.05")
    silent = rl(*words)
    assert silent.exit_code == 75
    assert cluster.objects["trainjobs", "ml", "sums"]["metadata"]["labels"][QUEUE] == "gpu-0"
    assert "no pods yet: queue gpu-0 has not admitted it (`stoker explain sums` tells more)" in silent.stderr
    lacks = "insufficient unused quota for pods in flavor gpu-0, 2 more needed"
    for run in ("sums", "other"):
        made = workload(lacks if run == "sums" else "of another", run=run)
        cluster.add("workloads", {**made, "spec": {"queueName": "gpu-0"}})
    told = rl(*words)
    assert told.exit_code == 75
    assert f"queue gpu-0 has not admitted it (it waits in queue gpu-0: {lacks}; `stoker explain sums`" in told.stderr
    # Kueue explains one of several equal runs.
    cluster.add("workloads", {**workload(run="sums"), "spec": {"queueName": "gpu-0"}, "status": {}})
    assert "it waits in queue gpu-0, behind other: of another; `stoker explain" in rl(*words).stderr
    cluster.refusals["GET", "workloads"] = forbidden("list", "workloads.kueue.x-k8s.io")
    assert "queue gpu-0 has not admitted it (`stoker explain sums`" in rl(*words).stderr


def without_kueue(cluster: Cluster) -> None:
    cluster.kinds.remove("localqueues")


def without_rights_in_kueue(cluster: Cluster) -> None:
    cluster.refusals["GET", "localqueues"] = forbidden("get", "localqueues.kueue.x-k8s.io")


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (None, 66, "--queue gpu-0: there is no LocalQueue gpu-0 in namespace ml: correct the name"),
        (without_kueue, 78, "has no localqueues.kueue.x-k8s.io: install Kueue in it"),
        (without_rights_in_kueue, 0, "session sums: made in namespace ml"),
    ],
    ids=["absent", "no Kueue", "no rights"],
)
def test_a_queue_must_be_there_or_nothing_limits_the_session(
    rl: Rl, cluster: Cluster, change: Callable[[Cluster], None] | None, code: int, message: str
) -> None:
    if change:
        change(cluster)
    told = rl("up", "sums", *SUMS, "--queue", "gpu-0", "--wait", "0")
    assert (told.exit_code, message in told.stderr) == (code, True), told.stderr
    assert (("trainjobs", "sums") in names(cluster)) is (code == 0)


def test_python_starts_a_session_that_shares_a_device(cluster: Cluster, kubeconfig: Path, runtime: Object) -> None:
    let_share(runtime)
    cluster.add("localqueues", {"metadata": {"name": "gpu-0"}})
    config = TRLConfig(method="grpo_async", extra_args={"reward_funcs": "think_format_reward"})
    fetched = Initializer(model=Source("hf://org/model"), dataset=Source("hf://org/data"))
    sdk.start_session(
        *(config, "sums"),
        initializer=fetched,
        queue="gpu-0",
        device_claim=f"{DEVICE}=gpu.example.com",
        turns=True,
        wait_seconds=0,
    )
    assert cluster.objects["trainjobs", "ml", "sums"]["metadata"]["labels"][QUEUE] == "gpu-0"
    for shared in (("resourceclaims", "ml", DEVICE), ("leases", "ml", LEASE)):
        assert [one["name"] for one in cluster.objects[shared]["metadata"]["ownerReferences"]] == ["sums"]


def test_python_starts_and_ends_a_session(cluster: Cluster, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(down, "_SECONDS_BETWEEN_LOOKS", 0.01)
    cluster.add("pods", sampler(0), sampler(1))
    config = TRLConfig(method="grpo_async", extra_args={"reward_funcs": "think_format_reward"})
    fetched = Initializer(model=Source("hf://org/model"), dataset=Source("hf://org/data", "token"))
    url = sdk.start_session(config, "sums", initializer=fetched, time_limit=3600, idle_limit=600)
    assert url == "http://sums-samplers.ml:8080"
    trainjob = cluster.objects["trainjobs", "ml", "sums"]
    assert trainjob["spec"]["activeDeadlineSeconds"] == 3600
    assert trainjob["spec"]["initializer"]["dataset"]["secretRef"] == {"name": "token"}
    for index in range(2):
        del cluster.objects["pods", "ml", f"sums-sampler-0-{index}-x"]
    sdk.end_session("sums")
    assert names(cluster) == []


DEVICE = "gpu-a"
LEASE = "turns-at-gpu-a"


def let_share(runtime: Object) -> None:
    """Let the samplers of a runtime name a claim, and take turns at its device."""
    (job,) = (one for one in runtime["spec"]["template"]["spec"]["replicatedJobs"] if one["name"] == "sampler")
    pod = job["template"]["spec"]["template"]
    pod["spec"]["resourceClaims"] = [{"name": "device", "resourceClaimName": DEVICE}]
    pod["metadata"]["labels"]["stoker.dev/lease"] = LEASE


def test_many_sessions_become_owners_of_a_device_at_once(cluster: Cluster, kubeconfig: Path) -> None:
    claim = render.device_claim("gpu-0", "ml", "gpu.example.com")
    claim["metadata"]["resourceVersion"] = "1"
    cluster.add("resourceclaims", claim)
    uids = [str(number) for number in range(24)]
    sessions = [{"apiVersion": "v1", "kind": "TrainJob", "metadata": {"name": uid, "uid": uid}} for uid in uids]
    with ThreadPoolExecutor(len(sessions)) as pool:
        shared = [pool.submit(sharing._share, connect(None, "ml"), DEVICE_CLAIMS, claim, one) for one in sessions]
    assert [one.exception() for one in shared] == [None] * len(sessions)
    owners = cluster.objects["resourceclaims", "ml", "gpu-0"]["metadata"]["ownerReferences"]
    assert sorted(one["uid"] for one in owners) == sorted(uids)


def test_sessions_of_a_namespace_share_a_device_until_the_last_ends(rl: Rl, cluster: Cluster, runtime: Object) -> None:
    let_share(runtime)
    missing = rl("up", "one", *SUMS, "--wait", "0")
    assert missing.exit_code == 66
    assert (
        f"needs ResourceClaim {DEVICE}, which is not in namespace ml: create it, or let the session" in missing.stderr
    )
    without = rl("up", "one", *SUMS, "--device-claim", f"{DEVICE}=gpu.example.com", "--wait", "0")
    assert (without.exit_code, f"take turns by the Lease {LEASE}, which is not in namespace ml" in without.stderr) == (
        66,
        True,
    )
    for name in ("one", "two", "two"):
        words = ("--device-claim", f"{DEVICE}=gpu.example.com", "--turns", "--wait", "0")
        assert rl("up", name, *SUMS, *words).exit_code == 0
    claim = cluster.objects["resourceclaims", "ml", DEVICE]
    assert claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "gpu.example.com"
    lease = cluster.objects["leases", "ml", LEASE]
    for shared in (claim, lease):
        assert [one["name"] for one in shared["metadata"]["ownerReferences"]] == ["one", "two"]
    # It is of another one too.
    assert rl("down", "one").exit_code == 0
    claim["metadata"]["ownerReferences"] = claim["metadata"]["ownerReferences"][
        1:
    ]  # Kubernetes drops owners that are gone
    told = rl("down", "two", "--wait", "0.05")
    assert (told.exit_code, f"ResourceClaim {DEVICE} is left" in told.stderr) == (75, True)


def test_a_session_without_the_options_is_an_owner_of_what_it_uses_too(
    rl: Rl, cluster: Cluster, runtime: Object
) -> None:
    let_share(runtime)
    words = ("--device-claim", f"{DEVICE}=gpu.example.com", "--turns", "--wait", "0")
    assert rl("up", "one", *SUMS, *words).exit_code == 0
    assert rl("up", "two", *SUMS, "--wait", "0").exit_code == 0
    shared = [cluster.objects["resourceclaims", "ml", DEVICE], cluster.objects["leases", "ml", LEASE]]
    for one in shared:
        assert [owner["name"] for owner in one["metadata"]["ownerReferences"]] == ["one", "two"]
    # What an administrator made is used, and no session deletes it.
    for one in shared:
        del one["metadata"]["labels"], one["metadata"]["ownerReferences"]
    assert rl("up", "three", *SUMS, "--wait", "0").exit_code == 0
    assert not any("ownerReferences" in one["metadata"] for one in shared)


LIMITED = ("--device-claim", f"{DEVICE}=gpu.example.com", "--device-limit", "2", "--turns", "--wait", "0")


def in_state(cluster: Cluster, name: str) -> tuple[bool, bool]:
    """Return whether a session has no pods yet, and whether it waits for a place."""
    trainjob = cluster.objects["trainjobs", "ml", name]
    return bool(trainjob["spec"].get("suspend")), places.waits(trainjob)


def users(cluster: Cluster) -> list[str]:
    owners = cluster.objects["resourceclaims", "ml", DEVICE]["metadata"]["ownerReferences"]
    return [one["name"] for one in owners]


def test_no_more_sessions_than_the_limit_use_a_device(rl: Rl, cluster: Cluster, runtime: Object) -> None:
    let_share(runtime)
    for name in ("one", "two"):
        assert rl("up", name, *SUMS, *LIMITED).exit_code == 0
        assert in_state(cluster, name) == (False, False)
    # Who does not know the limit keeps it too.
    for words in (LIMITED, ("--wait", "0"), LIMITED):
        told = rl("up", "three", *SUMS, *words)
        assert told.exit_code == 0
        assert f"starts no pods yet, because 2 of 2 sessions use ResourceClaim {DEVICE}: one, two" in told.stderr
        assert "state     queued since " in told.stdout
        assert in_state(cluster, "three") == (True, True)
    assert users(cluster) == ["one", "two"]
    assert "three  trl-grpo-async  queued" in rl("list").stdout
    cluster.objects["trainjobs", "ml", "one"]["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    # Its last pod still has the device.
    cluster.add("pods", sampler(0, session="one"))
    assert "because 2 of 2 sessions use ResourceClaim" in rl("up", "three", *SUMS, *LIMITED).stderr
    cluster.objects.pop(("pods", "ml", "one-sampler-0-0-x"))
    assert rl("up", "three", *SUMS, *LIMITED).exit_code == 0
    assert in_state(cluster, "three") == (False, False)
    assert users(cluster) == ["one", "two", "three"]


def test_a_session_waits_for_its_place_and_starts(
    rl: Rl, cluster: Cluster, runtime: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_share(runtime)
    for name in ("one", "two"):
        rl("up", name, *SUMS, *LIMITED)
    late = rl("up", "three", *SUMS, *LIMITED[:-1], "0.05")
    assert (late.exit_code, "use ResourceClaim gpu-a: one, two. The same command waits again" in late.stderr) == (
        75,
        True,
    ), late.stderr

    def slept(_: float) -> None:
        cluster.objects["trainjobs", "ml", "two"]["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
        if not in_state(cluster, "three")[1]:
            cluster.add("pods", sampler(0, session="three"), sampler(1, session="three"))

    monkeypatch.setattr(up, "time", SimpleNamespace(monotonic=time.monotonic, sleep=slept))
    told = rl("up", "three", *SUMS, *LIMITED[:-1], "20")
    assert (told.exit_code, in_state(cluster, "three")) == (0, (False, False)), told.stderr


def test_ten_sessions_at_once_are_never_more_than_the_limit(cluster: Cluster, kubeconfig: Path) -> None:
    claim = render.device_claim("gpu-0", "ml", "gpu.example.com", 3)
    claim["metadata"]["resourceVersion"] = "1"
    cluster.add("resourceclaims", claim)
    made = [{"apiVersion": "v1", "kind": "TrainJob", "metadata": {"name": f"{n}", "uid": f"{n}"}} for n in range(10)]
    sessions = [places.waiting({**one, "spec": {}}, "gpu-0") for one in made]
    cluster.add("trainjobs", *sessions)
    with ThreadPoolExecutor(len(sessions)) as pool:
        shared = [pool.submit(sharing._share, connect(None, "ml"), DEVICE_CLAIMS, claim, one) for one in sessions]
    full = [one.exception() for one in shared if one.exception()]
    assert [type(one) for one in full] == [places.NoPlaceError] * 7
    assert str(full[0]).startswith("3 of 3 sessions use ResourceClaim gpu-0: ")
    assert len(cluster.objects["resourceclaims", "ml", "gpu-0"]["metadata"]["ownerReferences"]) == 3


def test_a_limit_is_the_claims_own_and_kueue_does_not_count_beside_it(
    rl: Rl, cluster: Cluster, runtime: Object
) -> None:
    let_share(runtime)
    cluster.add("localqueues", {"metadata": {"name": "gpu-0"}})
    early = rl("up", "one", *SUMS, *LIMITED, "--queue", "gpu-0")
    assert early.exit_code == 64
    assert "queue gpu-0: ResourceClaim gpu-a has a limit of sessions" in early.stderr
    assert "leave out the queue, or let Kueue's quota count and leave out --device-limit" in early.stderr
    rl("up", "one", *SUMS, *LIMITED)
    other = rl("up", "two", *SUMS, *LIMITED[:2], "--device-limit", "3", "--turns", "--wait", "0")
    assert other.exit_code == 64
    assert f"ResourceClaim {DEVICE} is there, and lets 2 sessions use it at once: drop the option" in other.stderr
    late = rl("up", "two", *SUMS, "--queue", "gpu-0", "--wait", "0")
    assert late.exit_code == 64
    assert "remove the limit: `kubectl annotate resourceclaim gpu-a stoker.dev/sessions- --namespace ml`" in late.stderr
    assert ("trainjobs", "two") not in names(cluster)
    del cluster.objects["resourceclaims", "ml", DEVICE]["metadata"]["annotations"][places.LIMIT]
    for name in ("two", "three", "four"):
        assert rl("up", name, *SUMS, "--queue", "gpu-0", "--wait", "0").exit_code == 0
        assert in_state(cluster, name)[1] is False
    cluster.objects["resourceclaims", "ml", DEVICE]["metadata"]["annotations"][places.LIMIT] = "two"
    wrong = rl("up", "five", *SUMS, "--wait", "0")
    assert (wrong.exit_code, "stoker.dev/sessions='two': write a whole number" in wrong.stderr) == (78, True)


@pytest.mark.parametrize("words", [(), LIMITED[:4]], ids=["the claim's", "written out"])
def test_a_limit_of_a_claim_at_which_no_session_counts_is_refused(
    rl: Rl, cluster: Cluster, runtime: Object, words: tuple[str, ...]
) -> None:
    let_share(runtime)
    claim = render.device_claim(DEVICE, "ml", "gpu.example.com", 2)
    del claim["metadata"]["labels"]
    cluster.add("resourceclaims", claim)
    told = rl("up", "one", *SUMS, *words, "--turns", "--wait", "0")
    assert told.exit_code == 64
    label = "kubectl label resourceclaim gpu-a stoker.dev/shared-by-sessions=true --namespace ml"
    assert f"add the label with `{label}`, or remove the annotation" in told.stderr
    assert ("trainjobs", "one") not in names(cluster)
    cluster.objects["resourceclaims", "ml", DEVICE]["metadata"]["labels"] = {render.SHARED: "true"}
    assert rl("up", "one", *SUMS, *words, "--turns", "--wait", "0").exit_code == 0
    assert users(cluster) == ["one"]


def test_a_dry_run_prints_the_session_that_waits_for_its_place(
    rl: Rl, cluster: Cluster, runtime: Object, tmp_path: Path
) -> None:
    let_share(runtime)
    file = tmp_path / "runtimes.yaml"
    file.write_text(json.dumps(runtime))

    def printed(*words: str) -> Object:
        told = rl("up", "one", *SUMS, *words, "--dry-run")
        assert told.exit_code == 0, told.output
        found: Object = next(iter(yaml.safe_load_all(told.stdout)))
        return found

    alone = printed(*LIMITED, "--runtimes", str(file), "--namespace", "ml")
    first = printed(*LIMITED)
    assert alone == first
    assert (first["spec"]["suspend"], places.waits(first)) == (True, True)
    assert rl("up", "two", *SUMS, *LIMITED).exit_code == 0
    assert places.waits(printed("--turns")), "the claim has a limit of its own"
    assert rl("up", "one", *SUMS, *LIMITED, "--queue", "gpu-0", "--dry-run").exit_code == 64


def taken_after(lease: Object) -> float:
    """Return the seconds after which an engine has a Lease that it sees for the first time."""
    turns, record, now = Turns("me", Rules()), record_of(lease), 0.0
    turns.engine_is(EngineState.PARKED, now)
    while turns.term is None:
        call = turns.call(now)
        if isinstance(call, Write):
            record = call.record
            turns.wrote(record, "", now, now)
        elif call is not None:
            turns.saw(record, "", now)
        now += 0.25
        assert now < 60
    return now


def test_a_new_lease_is_free_unless_pods_of_earlier_sessions_may_still_use_the_device(
    rl: Rl, cluster: Cluster, runtime: Object
) -> None:
    let_share(runtime)
    words = ("--device-claim", f"{DEVICE}=gpu.example.com", "--turns", "--wait", "0")

    def add_pod(session: str, created: str = CREATED) -> None:
        labels = {"stoker.dev/session": session, "stoker.dev/lease": LEASE}
        metadata = {"name": f"{session}-sampler-0-0-x", "labels": labels, "creationTimestamp": created}
        cluster.add("pods", {"metadata": metadata})

    def made_by(session: str) -> Object:
        assert rl("up", session, *SUMS, *words).exit_code == 0
        lease = cluster.objects.pop(("leases", "ml", LEASE))
        assert lease["metadata"]["labels"] == {"stoker.dev/shared-by-sessions": "true"}
        return lease

    add_pod("one")  # its own, which has no Lease yet
    assert taken_after(made_by("one")) < 1
    assert Rules().duration <= taken_after(made_by("two")) < Rules().duration + 2
    cluster.objects["trainjobs", "ml", "one"]["metadata"]["creationTimestamp"] = CREATED
    assert taken_after(made_by("one")) < 1
    add_pod("one", "2026-11-22T09:59:59Z")  # of an earlier session of this name, which still ends
    assert Rules().duration <= taken_after(made_by("one")) < Rules().duration + 2


def test_a_claim_that_is_being_deleted_is_waited_for(
    rl: Rl, cluster: Cluster, runtime: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_share(runtime)
    words = ("--device-claim", f"{DEVICE}=gpu.example.com", "--turns", "--wait", "0")
    assert rl("up", "one", *SUMS, *words).exit_code == 0
    claim = cluster.objects["resourceclaims", "ml", DEVICE]
    claim["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    told = rl("up", "two", *SUMS, "--wait", "0")
    assert (told.exit_code, f"anew with --device-claim {DEVICE}=DEVICECLASS" in told.stderr) == (66, True), told.stderr

    def slept(_: float) -> None:
        cluster.objects.pop(("resourceclaims", "ml", DEVICE), None)

    monkeypatch.setattr(sharing, "time", SimpleNamespace(monotonic=time.monotonic, sleep=slept))
    told = rl("up", "two", *SUMS, *words)
    assert (told.exit_code, f"for ResourceClaim {DEVICE}: it is being deleted" in told.stderr) == (0, True), told.stderr
    again = cluster.objects["resourceclaims", "ml", DEVICE]
    assert [owner["name"] for owner in again["metadata"]["ownerReferences"]] == ["two"]


@pytest.mark.parametrize(
    "words", [(), ("--device-claim", f"{DEVICE}=gpu.example.com", "--turns")], ids=["there", "made"]
)
def test_a_cluster_without_claims_of_devices_is_told_at_once(
    rl: Rl, cluster: Cluster, runtime: Object, words: tuple[str, ...]
) -> None:
    rl("up", "old", *SUMS, "--wait", "0")
    let_share(runtime)
    cluster.kinds.remove("resourceclaims")
    cluster.requests.clear()
    told = rl("up", "sums", *SUMS, *words, "--wait", "0")
    assert told.exit_code == 78
    assert f"runtime trl-grpo-async needs ResourceClaim {DEVICE}, but the cluster at" in told.stderr
    assert "has no resourceclaims.resource.k8s.io: install Dynamic Resource Allocation (Kubernetes 1.34" in told.stderr
    assert {method for method, _ in cluster.requests} == {"GET"}
    assert rl("down", "old").exit_code == 0
    assert names(cluster) == []


def test_what_nobody_can_share_is_not_tried_again(
    cluster: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "_SHARE_SECONDS", 0.5)
    cluster.kinds.remove("resourceclaims")
    session = {"apiVersion": "v1", "kind": "TrainJob", "metadata": {"name": "sums", "uid": "1"}}
    with pytest.raises(NotFoundError, match=r"has no resourceclaims\.resource\.k8s\.io: install Dynamic"):
        sharing._share(client, DEVICE_CLAIMS, render.device_claim(DEVICE, "ml", "gpu.example.com"), session)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--device-claim", "prod/gpu-a=x"), 64, "is in namespace prod, and the session in ml: Kubernetes gives"),
        (("--turns",), 64, "--turns: the samplers of runtime trl-grpo-async cannot share a device; set runtimes.trl"),
        (("--device-limit", "2"), 64, "--device-limit needs a claim: write --device-claim NAME=DEVICECLASS too"),
        (("--device-claim", "gpu-a"), 64, "is incomplete: write NAME=DEVICECLASS"),
        (("--device-claim", "gpu-a=x"), 64, "the runtime trl-grpo-async names none; write a claim that its pods name"),
        (("--runtime", "absent"), 66, "the cluster has no runtime absent: choose another --runtime (it has trl-grpo"),
        (("--time-limit", "soon"), 64, "--time-limit 'soon' is not a time"),
        (("--runtimes", "x.yaml"), 64, "--runtimes only goes with --dry-run"),
        (("--samplers", "0"), 64, "--samplers"),
    ],
)
def test_bad_words_are_one_message_each(
    rl: Rl, cluster: Cluster, words: tuple[str, ...], code: int, message: str
) -> None:
    told = rl("up", "sums", *SUMS, "--wait", "0", *words)
    assert (told.exit_code, message in told.stderr) == (code, True), told.stderr
    assert names(cluster) == []


def test_without_a_cluster_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    told = CliRunner().invoke(main, ["rl", "list"])
    assert told.exit_code == 78
    assert "there is no kubeconfig at" in told.stderr
