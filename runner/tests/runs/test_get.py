"""A run's result comes whole, through a pod that any namespace admits and that always goes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import kubernetes_validate
import pytest
from runner.tests.command_line import stoker
from runner.tests.runs.api_server import Cluster, forbidden
from runner.tests.runs.objects import IMAGE, claim, ended, pod, real_jobset, terminated, trainjob, unschedulable

from builders import RUNTIME, replicated_jobs
from builders import pod_of as spec_of
from stoker.contract.exits import ExitCode, RunError
from stoker.runs import get as module
from stoker.runs import transfer
from stoker.runs.client import Client
from stoker.runs.errors import ClusterError, CommandError
from stoker.runs.getter import node_of, place_of, pod_of
from stoker.runs.kinds import PODS
from stoker.runs.read import Seen
from stoker.runs.transfer import RemoteFile

Object = dict[str, Any]

FILES = {
    "stoker.json": b"{}\n",
    "adapter_model.safetensors": bytes(range(256)) * 1000,
    "empty": b"",
    "deeper/names with spaces.txt": "ü\n".encode(),
    "checkpoint-10/model.bin": b"large",
}


def made(folder: Path) -> Path:
    for path, data in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    (folder / "link").symlink_to("/etc/hostname")
    return folder


@pytest.fixture
def finished(cluster: Cluster, kubeconfig: Path, tmp_path: Path) -> Cluster:
    """A cluster with a finished run whose pods are gone, and its claim."""
    made(tmp_path / "claim/output")
    cluster.claim = tmp_path / "claim"
    cluster.add("trainjobs", trainjob(**ended("Complete", "AllJobsCompleted")))
    cluster.add("jobsets", real_jobset())
    cluster.add("persistentvolumeclaims", claim(phase="Bound"))
    return cluster


def there(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != transfer.MARK
    }


def expect_no_pod(cluster: Cluster) -> None:
    assert [key for key in cluster.objects if key[0] == "pods"] == []


def test_the_result_comes_without_checkpoints_and_the_pod_goes(finished: Cluster, tmp_path: Path) -> None:
    result = stoker("get", "tune", str(tmp_path / "out"))
    assert there(tmp_path / "out") == {path: data for path, data in FILES.items() if "checkpoint" not in path}
    assert result.stdout.endswith("out has 4 files of tune (250.0 KiB)\n")
    expect_no_pod(finished)
    assert stoker("get", "tune", str(tmp_path / "out")).stdout.endswith("4 of them were there already\n")
    stoker("get", "tune", str(tmp_path / "out"), "--all")
    assert there(tmp_path / "out") == FILES


def test_the_whole_workspace_comes_without_what_only_root_may_read(finished: Cluster, tmp_path: Path) -> None:
    (tmp_path / "claim/lost+found").mkdir()
    (tmp_path / "claim/lost+found/#12").write_bytes(b"of nobody")
    stoker("get", "tune", str(tmp_path / "out"), "--path", ".", "--all")
    assert there(tmp_path / "out") == {f"output/{path}": data for path, data in FILES.items()}


def test_a_part_comes(finished: Cluster, tmp_path: Path) -> None:
    output = stoker("get", "tune", str(tmp_path / "out"), "--only", "*.json", "--output", "json").stdout
    assert json.loads(output)["files"] == ["stoker.json"]
    assert there(tmp_path / "out") == {"stoker.json": b"{}\n"}
    stoker("get", "tune", str(tmp_path / "one"), "--only", "checkpoint-10")
    assert [*there(tmp_path / "one")] == ["checkpoint-10/model.bin"]


def test_it_goes_on_where_it_broke_off(finished: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_RANGE", 100_000)
    finished.cuts = 2
    name = "adapter_model.safetensors"
    stoker("get", "tune", str(tmp_path / "out"), "--only", name)
    assert there(tmp_path / "out") == {name: FILES[name]}
    # Half of it is there, of an earlier try that was killed.
    shutil.move(tmp_path / "out" / name, tmp_path / "out" / f"{name}.part")
    with (tmp_path / "out" / f"{name}.part").open("r+b") as half:
        half.truncate(120_000)
    before = len(finished.requests)
    stoker("get", "tune", str(tmp_path / "out"), "--only", name)
    assert there(tmp_path / "out") == {name: FILES[name]}
    commands = [address for method, address in finished.requests[before:] if method == "EXEC"]
    assert len(commands) == 4  # the list, two ranges, the sum


def test_a_damaged_part_is_brought_anew(finished: Cluster, tmp_path: Path) -> None:
    stoker("get", "tune", str(tmp_path / "out"), "--only", "stoker.json")
    (tmp_path / "out/stoker.json").write_bytes(b"xx\n")
    (tmp_path / "out/stoker.json.part").write_bytes(b"y")
    stoker("get", "tune", str(tmp_path / "out"), "--only", "stoker.json")
    assert there(tmp_path / "out") == {"stoker.json": b"{}\n"}


@pytest.mark.parametrize(("name", "comes"), [("metrics.jsonl", True), ("model.bin", False)])
def test_of_files_that_a_run_still_writes_only_those_that_it_appends_to_come(
    tmp_path: Path, name: str, comes: bool
) -> None:
    growing = tmp_path / name
    growing.write_bytes(b"1\n2\n")

    def execute(command: Sequence[str]) -> Iterator[bytes]:
        yield subprocess.run(command, check=True, capture_output=True).stdout
        with growing.open("ab") as stream:
            stream.write(b"3\n")

    file, folder = RemoteFile(name, 4), tmp_path / "out"
    if comes:
        assert transfer.bring(execute, str(tmp_path), file, folder, lambda _: None)
        assert there(folder) == {name: b"1\n2\n"}
        assert not transfer.bring(execute, str(tmp_path), file, folder, lambda _: None)
    else:
        with pytest.raises(ClusterError, match="the run still writes it"):
            transfer.bring(execute, str(tmp_path), file, folder, lambda _: None)


def run_here(command: Sequence[str]) -> Iterator[bytes]:
    """Run a command on this machine, as the pod would."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise CommandError("tune-get", done.returncode, done.stderr)
    yield done.stdout.encode()


def test_a_folder_that_goes_while_it_is_listed_does_not_end_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "output")
    # Between the list of its parent and its own.
    leaves = transfer._LIST.replace(
        "folders[:] =", 'import shutil; shutil.rmtree(sys.argv[1] + "/checkpoint-10", ignore_errors=True); folders[:] ='
    )
    assert leaves != transfer._LIST
    monkeypatch.setattr(transfer, "_LIST", leaves)
    found = transfer.remote_files(run_here, str(tmp_path / "output"))
    assert {file.path for file in found} == {path for path in FILES if not path.startswith("checkpoint-10/")}


def test_a_file_that_the_run_has_removed_is_told_with_what_to_do(tmp_path: Path) -> None:
    file, folder = RemoteFile("checkpoint-10/model.bin", 4), tmp_path / "out"
    with pytest.raises(ClusterError, match=r"model.bin is gone: .*Delete what came of its folder .* and repeat"):
        transfer.bring(run_here, str(tmp_path), file, folder, lambda _: None)
    assert not there(folder)


def test_two_runs_never_mix(finished: Cluster, tmp_path: Path) -> None:
    stoker("get", "tune", str(tmp_path / "out"))
    finished.objects["persistentvolumeclaims", "ml", "initializer-tune"]["metadata"]["uid"] = "another"
    result = stoker("get", "tune", str(tmp_path / "out"), code=ExitCode.USAGE)
    assert "has the files of another run, tune (claim initializer-tune): name another folder" in result.stderr
    model = stoker("get", "tune", str(tmp_path / "model"), "--path", "output/deeper")
    assert model.exit_code == 0
    again = stoker("get", "tune", str(tmp_path / "model"), code=ExitCode.USAGE)
    assert "has the files of output/deeper of this run: name another folder" in again.stderr
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").touch()
    assert "has files already" in stoker("get", "tune", str(tmp_path / "mine"), code=ExitCode.USAGE).stderr


def test_a_run_without_a_result(finished: Cluster, tmp_path: Path) -> None:
    assert finished.claim is not None
    shutil.rmtree(finished.claim / "output")
    result = stoker("get", "tune", str(tmp_path / "out"), code=ExitCode.NO_INPUT)
    assert "no result yet" in result.stderr
    expect_no_pod(finished)


def test_no_right_to_run_commands_is_named_and_the_pod_goes(finished: Cluster, tmp_path: Path) -> None:
    finished.refusals["GET", "pods/exec"] = forbidden("get", "pods/exec")
    result = stoker("get", "tune", str(tmp_path / "out"), code=ExitCode.CONFIG)
    assert "you may not get pods/exec in namespace ml" in result.stderr
    expect_no_pod(finished)


@pytest.mark.parametrize("status", [404, 400], ids=["gone", "ended"])
def test_a_pod_that_ends_on_the_way_is_no_wrong_name(
    finished: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    def ends(*_: object) -> None:
        (key,) = [key for key in finished.objects if key[0] == "pods"]
        if status == 404:
            del finished.objects[key]
        else:
            finished.objects[key]["status"]["phase"] = "Failed"

    finished.refusals["GET", "pods/exec"] = (status, {})
    monkeypatch.setattr(module, "_wait_ready", ends)
    told = stoker("get", "tune", str(tmp_path / "out"), code=ExitCode.UNAVAILABLE).stderr
    assert re.search(r"pod tune-get-\w+, which reads the claim, is gone or has ended: repeat the command", told)
    expect_no_pod(finished)


def test_a_pod_that_runs_and_refuses_commands_is_not_called_gone(finished: Cluster, tmp_path: Path) -> None:
    """As behind a proxy that passes no websockets on."""
    finished.refusals["GET", "pods/exec"] = (400, {"message": "Upgrade request required"})
    told = stoker("get", "tune", str(tmp_path / "out"), code=ExitCode.USAGE).stderr
    assert ("is gone" in told, "the cluster refuses to get Pod tune-get-" in told) == (False, True), told
    expect_no_pod(finished)


def test_a_pod_that_goes_before_it_starts_is_no_wrong_name(
    finished: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        module, "say", lambda _: finished.objects.pop(next(key for key in finished.objects if key[0] == "pods"))
    )
    told = stoker("get", "tune", str(tmp_path / "out"), code=ExitCode.UNAVAILABLE).stderr
    assert "is gone or has ended: repeat the command" in told


def test_the_right_to_make_pods_is_named(finished: Cluster, tmp_path: Path) -> None:
    for method, verb in (("POST", "create"), ("DELETE", "delete")):
        finished.refusals[method, "pods"] = forbidden(verb, "pods")
    result = stoker("get", "tune", str(tmp_path / "out"), code=ExitCode.CONFIG)
    assert "you may not create pods in namespace ml" in result.stderr


def test_a_stop_removes_the_pod(finished: Cluster, tmp_path: Path) -> None:
    finished.starts = False
    command = [sys.executable, "-m", "stoker", "get", "tune", str(tmp_path / "out")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as getting:
        assert getting.stderr is not None
        assert "reading claim initializer-tune through pod" in getting.stderr.readline()
        getting.terminate()
        getting.communicate(timeout=120)
    assert getting.returncode != 0
    expect_no_pod(finished)


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("sh: python3-is-missing: not found", "has no Python: name one that has it with --image"),
        ("[Errno 13] Permission denied: '/claim/output'", "only their owner may read"),
    ],
)
def test_what_the_pod_cannot_read_is_said_with_what_to_do(said: str, advice: str) -> None:
    def fails(_: object) -> Any:
        raise CommandError("tune-get", 127, said)

    with pytest.raises(RunError, match=advice):
        transfer.remote_files(fails, "/claim/output")


def test_the_pod_is_never_root() -> None:
    spec = {"containers": [{"name": "node", "image": IMAGE}], "securityContext": {"runAsUser": 0, "fsGroup": 7}}
    place = place_of(Seen(trainjob(), None, (), (pod(spec=spec),)))
    made = pod_of("tune", "ab12cd", place)["spec"]["securityContext"]
    assert (made["runAsUser"], made["runAsNonRoot"], made["fsGroup"]) == (1001, True, 7)


def test_a_pod_that_does_not_start_goes(finished: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_START_SECONDS", 0.0)
    finished.starts = False
    result = stoker("get", "tune", str(tmp_path / "out"), code=ExitCode.UNAVAILABLE)
    assert "does not start (its node still pulls the image or mounts the claim): repeat the command" in result.stderr
    assert "see `kubectl get events --namespace ml`" in result.stderr
    expect_no_pod(finished)


def test_a_pod_without_a_node_is_not_helped_by_another_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_START_SECONDS", 0.0)
    client = Mock(**{"get.return_value": unschedulable("0/1 nodes are available"), "there": " --namespace ml"})
    with pytest.raises(ClusterError, match=r"Unschedulable: 0/1 nodes are available\): correct what this names; see"):
        module._wait_ready(client, "tune-get", "reads the claim", "--image names another image")


def test_the_claim_of_a_deleted_run_can_be_read(finished: Cluster, tmp_path: Path) -> None:
    for kind in ("trainjobs", "jobsets"):
        finished.objects.pop((kind, "ml", "tune"))
    result = stoker("get", "tune", str(tmp_path / "out"), code=ExitCode.NO_INPUT)
    assert "the run tune was deleted, but its claim initializer-tune still exists: name an image" in result.stderr
    stoker("get", "tune", str(tmp_path / "out"), "--image", IMAGE)
    assert "stoker.json" in there(tmp_path / "out")


@pytest.fixture
def too_late(finished: Cluster) -> Cluster:
    """A cluster with a run that came to its deadline, of which only TrainJob and claim are left, and its runtime."""
    finished.objects.pop(("jobsets", "ml", "tune"))
    finished.add("trainjobs", trainjob(**ended("Failed", "DeadlineExceeded")))
    finished.add("clustertrainingruntimes", RUNTIME)
    return finished


def test_a_run_that_came_to_its_deadline_is_read_with_its_runtimes_image(too_late: Cluster, tmp_path: Path) -> None:
    too_late.starts = False
    images = []

    def look(client: Client, name: str, *_: str) -> None:
        images.append(client.get(PODS, name)["spec"]["containers"][0]["image"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_wait_ready", look)
        stoker("get", "tune", str(tmp_path / "out"))
    assert images == [spec_of(replicated_jobs(RUNTIME)[0])["containers"][0]["image"]]
    assert "stoker.json" in there(tmp_path / "out")


@pytest.mark.parametrize("answer", [None, forbidden("get", "clustertrainingruntimes")], ids=["gone", "hidden"])
def test_without_a_runtime_the_image_is_asked_for(
    too_late: Cluster, tmp_path: Path, answer: tuple[int, Object] | None
) -> None:
    if answer:
        too_late.refusals["GET", "clustertrainingruntimes"] = answer
    else:
        too_late.objects.pop(("clustertrainingruntimes", "ml", RUNTIME["metadata"]["name"]))
    result = stoker("get", "tune", str(tmp_path / "out"), code=ExitCode.CONFIG)
    assert "tune has no pod, JobSet or runtime that you can read" in result.stderr
    stoker("get", "tune", str(tmp_path / "out"), "--image", IMAGE)


def test_a_claim_that_is_gone_is_not_a_wrong_name(finished: Cluster, tmp_path: Path) -> None:
    finished.objects.pop(("persistentvolumeclaims", "ml", "initializer-tune"))
    words = ("get", "tune", str(tmp_path / "out"))
    told = stoker(*words, code=ExitCode.NO_INPUT).stderr
    assert "the claim initializer-tune of tune was deleted, and its result with it; --claim names another" in told
    assert "no PersistentVolumeClaim mine in" in stoker(*words, "--claim", "mine", code=ExitCode.NO_INPUT).stderr
    finished.add("trainjobs", trainjob())
    told = stoker(*words, code=ExitCode.NO_INPUT).stderr
    assert "tune has no claim initializer-tune yet, and so no result: `stoker explain tune` says why" in told


def test_patterns_that_no_file_fits_are_named(finished: Cluster, tmp_path: Path) -> None:
    words = ("get", "tune", str(tmp_path / "out"), "--only", "nothere", "--only", "*.bin")
    shutil.rmtree(tmp_path / "claim/output/checkpoint-10")
    told = stoker(*words, code=ExitCode.NO_INPUT).stderr
    assert "tune has no files in output that fit --only nothere --only *.bin: a pattern is a file's name" in told
    assert "--all" not in told


def test_a_file_in_place_of_the_folder_is_named(finished: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "afile"
    file.touch()
    for folder in (file, file / "below"):
        told = stoker("get", "tune", str(folder), code=ExitCode.USAGE).stderr
        assert told.endswith(f"{file} is a file: name a folder\n")


def test_no_path_leads_out_of_the_folder() -> None:
    def lies(_: object) -> Any:
        yield b'["../../.bashrc", 1]\n'

    with pytest.raises(RunError, match="leads out of"):
        transfer.remote_files(lies, "/claim/output")


# The pod.


def test_the_pod_is_what_the_restricted_standard_and_the_schema_ask_for() -> None:
    body = pod_of("tune", "ab12cd", place_of(Seen(trainjob(), real_jobset(), (), ())), "worker-1")
    kubernetes_validate.validate(body, "1.34", strict=True)
    spec = body["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["securityContext"]["runAsUser"] == 1001
    container = spec["containers"][0]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["volumeMounts"] == [{"name": "claim", "mountPath": "/claim", "readOnly": True}]
    assert spec["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert spec["activeDeadlineSeconds"]
    assert spec["automountServiceAccountToken"] is False


def test_the_place_of_a_result() -> None:
    place = place_of(Seen(trainjob(), real_jobset(), (), ()))
    assert (place.claim, place.folder) == ("initializer-tune", "")
    assert place.image == spec_of(replicated_jobs(RUNTIME)[0])["containers"][0]["image"]
    assert place_of(Seen(trainjob(), None, (), (pod(),))).image == IMAGE
    assert place_of(Seen(trainjob(), None, (), (pod(),)), "other", "claim").image == "other"
    with pytest.raises(RunError, match="name one with --image"):
        place_of(Seen(trainjob(), None, (), ()))


def test_a_sidecar_that_comes_first_is_not_the_trainer() -> None:
    proxy = {"name": "istio-proxy", "image": "istio/proxyv2"}
    mount = {"name": "initializer", "mountPath": "/workspace", "subPath": "runs/a"}
    volume = {"name": "initializer", "persistentVolumeClaim": {"claimName": "runs"}}
    for name in ("node", "main"):
        trains = {"name": name, "image": IMAGE, "volumeMounts": [mount]}
        spec = {"containers": [proxy, trains], "volumes": [volume]}
        place = place_of(Seen(trainjob(), None, (), (pod(spec=spec),)))
        assert (place.image, place.claim, place.folder) == (IMAGE, "runs", "runs/a")


def test_a_claim_that_runs_share_is_read_in_the_runs_folder() -> None:
    shared = real_jobset()
    del shared["spec"]["volumeClaimPolicies"]
    spec = spec_of(shared["spec"]["replicatedJobs"][0])
    spec = json.loads(json.dumps(spec))
    shared["spec"]["replicatedJobs"] = [{"name": "node", "template": {"spec": {"template": {"spec": spec}}}}]
    spec["volumes"].append({"name": "initializer", "persistentVolumeClaim": {"claimName": "runs"}})
    spec["containers"][0]["volumeMounts"][0]["subPathExpr"] = "$(JOBSET_NAME)"
    place = place_of(Seen(trainjob(), shared, (), ()))
    assert (place.claim, place.folder) == ("runs", "tune")


def test_a_volume_goes_where_it_is_attached() -> None:
    once, many = claim(mode="Once"), claim(mode="Many")
    assert node_of(once, [pod()]) == "worker-1"
    assert node_of(once, [terminated(0)]) == ""
    assert node_of(once, [pod(run="other")]) == ""
    assert node_of(many, [pod()]) == ""
    with pytest.raises(RunError, match=r"ReadWriteOncePod, and tune-node-0-0-\w+ has it: stop the run"):
        node_of(claim(mode="OncePod"), [pod()])
    body = pod_of("tune", "ab12cd", place_of(Seen(trainjob(), None, (), (pod(),))), "worker-1")
    assert "worker-1" in json.dumps(body["spec"]["affinity"])
