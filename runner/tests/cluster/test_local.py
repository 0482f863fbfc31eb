"""A local run restarts, stops and ends as the JobSet of the runtime would; commands stand in for trainers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders import RUNTIME, container, pod_of, replicated_jobs, trainjob, with_initializers
from stoker.cluster import local as local_run
from stoker.cluster.pods import initializers_of, job_of
from stoker.cluster.processes import Container, Stop, run_attempt
from stoker.contract.exits import ExitCode, RunError

# Writes down each start of a node as a file `<attempt>-<rank>` and then does what the test says.
PREAMBLE = """
import os, pathlib, signal, sys, time
workspace = pathlib.Path(os.environ["STOKER_WORKSPACE"])
attempt, rank = int(os.environ["STOKER_RESTART_ATTEMPT"]), int(os.environ["PET_NODE_RANK"])
(workspace / f"{attempt}-{rank}").write_text(str(os.getpid()))
"""


class Local:
    """A local run of a TrainJob whose nodes run a Python program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workspace = folder / "workspace"

    def start(
        self,
        program: str,
        nodes: int = 1,
        grace: int = 5,
        options: Sequence[str] = (),
        initializer: Mapping[str, Any] | None = None,
        initializer_command: Sequence[str] = (),
        initializer_mounts: Sequence[Mapping[str, Any]] = (),
        **trainer: Any,
    ) -> subprocess.Popen[str]:
        """Start `stoker local`."""
        wanted = initializer is not None
        runtime = with_initializers(initializer_command, initializer_mounts) if wanted else deepcopy(RUNTIME)
        pod_of(replicated_jobs(runtime)[0])["terminationGracePeriodSeconds"] = grace
        command = {"command": ["python", "-c", PREAMBLE + program]}
        spec = {"initializer": initializer} if wanted else {}
        job = trainjob(spec=spec, numNodes=nodes, **{**command, **trainer})
        for name, manifest in (("job", job), ("runtime", runtime)):
            # As `helm template` prints them: the one that is meant is not the first.
            other = {**manifest, "metadata": {"name": "another"}}
            documents = [other, manifest] if name == "runtime" else [manifest]
            (self.folder / f"{name}.yaml").write_text(yaml.safe_dump_all(documents))
        arguments = [str(self.folder / "job.yaml"), "--runtime", str(self.folder / "runtime.yaml")]
        # Tests that run under `nohup` would hand on that a closed terminal is ignored.
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "stoker", "local", *arguments, "--workspace", str(self.workspace), *options],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PET_NNODES": "77"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        finally:
            signal.signal(signal.SIGHUP, before)

    def run(self, program: str, **options: Any) -> tuple[int, str]:
        """Run to the end and return exit code and output."""
        process = self.start(program, **options)
        output, _ = process.communicate(timeout=120)
        return process.returncode, output

    def wait_for(self, name: str) -> None:
        """Wait until a file is there."""
        deadline = time.monotonic() + 120
        while not (self.workspace / name).exists():
            assert time.monotonic() < deadline, f"{name} never came"
            time.sleep(0.02)

    def pid(self, name: str) -> int:
        """The process id in a file."""
        return int((self.workspace / name).read_text())

    @property
    def starts(self) -> list[str]:
        """The starts of nodes so far, `<attempt>-<rank>`."""
        return sorted(path.name for path in self.workspace.iterdir() if path.name[0].isdigit())


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, waiting a little for it."""
    deadline = time.monotonic() + 120
    with suppress(OSError):  # nothing is left of it
        while Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
    return True


@pytest.fixture
def local(tmp_path: Path) -> Local:
    return Local(tmp_path)


def test_every_node_is_told_who_it_is_and_where_its_folders_are(local: Local, tmp_path: Path) -> None:
    (tmp_path / "shm").mkdir()
    code, output = local.run(
        "print(rank, os.environ['PET_NNODES'], os.environ['STOKER_ARG_MODEL_NAME_OR_PATH'], sys.argv[1])",
        nodes=2,
        args=["/dev/shm/x"],
        options=["--volume", f"shm={tmp_path / 'shm'}"],
    )
    assert code == 0, output
    for rank in (0, 1):
        assert f"[node-{rank}] {rank} 2 {local.workspace}/model {tmp_path}/shm/x\n" in output


def test_nodes_are_hosts_of_their_own_to_nccl_unless_the_job_says_otherwise(local: Local) -> None:
    """Else NCCL refuses two ranks on one GPU, which pods may share."""
    program = "print('host', os.environ['NCCL_HOSTID'])"
    _, output = local.run(program, nodes=2)
    assert {line.rpartition("host ")[2] for line in output.splitlines() if "] host " in line} == {"node-0", "node-1"}
    _, output = local.run(program, nodes=2, env=[{"name": "NCCL_HOSTID", "value": "one"}])
    assert output.count("] host one\n") == 2


@pytest.mark.parametrize("code", [ExitCode.USAGE, ExitCode.BAD_DATA, ExitCode.NO_INPUT, ExitCode.CONFIG])
def test_what_no_retry_can_mend_ends_at_once(local: Local, code: ExitCode) -> None:
    returned, output = local.run(f"sys.exit({int(code)})")
    assert returned == code
    assert local.starts == ["0-0"]
    assert f"attempt 0: 1 nodes ended with {int(code)} ({code.meaning})" in output


def test_a_crash_is_tried_again_as_often_as_the_runtime_says(local: Local) -> None:
    code, output = local.run("sys.exit(70)")
    assert code == 70
    assert local.starts == ["0-0", "1-0", "2-0", "3-0"]
    assert "no restart left of 3" in output


def test_an_unknown_code_counts_as_a_crash(local: Local) -> None:
    code, _ = local.run("sys.exit(3 if attempt == 0 else 0)")
    assert code == 0
    assert local.starts == ["0-0", "1-0"]


def test_an_interruption_is_not_counted(local: Local) -> None:
    code, _ = local.run("sys.exit(75 if attempt < 5 else 0)")
    assert code == 0
    assert len(local.starts) == 6


@pytest.mark.parametrize("failing", [0, 1])
def test_the_other_nodes_are_asked_to_stop_when_one_fails(local: Local, failing: int) -> None:
    program = (
        f"failing = {failing}"
        """
if rank == failing:
    while not (workspace / "ready").exists(): time.sleep(0.02)
    sys.exit(66)
signal.signal(signal.SIGTERM, lambda *_: ((workspace / "asked").touch(), sys.exit(75)))
(workspace / "ready").touch()
time.sleep(600)
"""
    )
    code, _ = local.run(program, nodes=2)
    assert code == 66
    assert (local.workspace / "asked").exists()


def test_a_node_that_does_not_stop_in_its_grace_period_is_killed(local: Local) -> None:
    program = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
(workspace / f"ready-{rank}").touch()
while not (workspace / "ready-1").exists() or not (workspace / "ready-0").exists(): time.sleep(0.02)
sys.exit(78) if rank == 0 else time.sleep(600)
"""
    # 0 s of grace and the 5 s that a runner needs to write down its ending.
    code, _ = local.run(program, nodes=2, grace=0)
    assert code == 78
    with pytest.raises(ProcessLookupError):
        os.kill(int((local.workspace / "0-1").read_text()), 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_is_passed_on_and_nothing_is_started_again(local: Local, number: signal.Signals) -> None:
    program = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
(workspace / f"ready-{rank}").touch()
time.sleep(600)
"""
    process = local.start(program, nodes=2)
    local.wait_for("ready-0")
    local.wait_for("ready-1")
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 75, output
    assert local.starts == ["0-0", "0-1"]
    assert "Traceback" not in output


def test_a_second_interrupt_does_not_wait_for_the_grace_period(local: Local) -> None:
    program = """
signal.signal(signal.SIGTERM, lambda *_: (workspace / "asked").touch())
(workspace / "ready").touch()
while True: time.sleep(0.02)
"""
    process = local.start(program, grace=600)
    local.wait_for("ready")
    process.send_signal(signal.SIGINT)
    local.wait_for("asked")
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said == "[stoker] stopping: 600 s to save the work; press Ctrl-C again to end at once\n"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 70, output
    assert is_gone(local.pid("0-0"))


def test_a_stop_that_meets_a_node_without_a_handler_is_no_crash(local: Local) -> None:
    process = local.start("(workspace / 'ready').touch(); time.sleep(600)")
    local.wait_for("ready")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert (process.returncode, "Traceback" in output) == (75, False), output


def test_a_job_goes_on_when_nobody_reads_its_log_any_more(local: Local) -> None:
    program = """
print("first", flush=True)
while not (workspace / "closed").exists(): time.sleep(0.02)
print("x" * 1000000)
(workspace / "done").touch()
"""
    process = local.start(program)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    (local.workspace / "closed").touch()
    assert process.wait(timeout=120) == 0
    assert (local.workspace / "done").exists()


def test_pods_that_are_killed_before_their_runner_is_done_are_not_started(local: Local) -> None:
    code, output = local.run("", command=["stoker", "run"], grace=60)
    assert code == ExitCode.CONFIG
    assert 'add {name: STOKER_GRACE_PERIOD_SECONDS, value: "60"} to spec.trainer.env' in output
    assert not local.workspace.exists()


def test_a_file_with_several_trainjobs_is_refused(local: Local) -> None:
    local.run("")
    job = (local.folder / "job.yaml").read_text()
    (local.folder / "job.yaml").write_text(f"{job}---\n{job.replace('name: sft', 'name: dpo')}")
    with pytest.raises(RunError, match="has 2 TrainJobs, but only one can run at a time: sft, dpo") as refused:
        local_run.run(local.folder / "job.yaml", local.folder / "runtime.yaml", local.workspace, ())
    assert refused.value.code is ExitCode.USAGE


def test_fields_that_are_null_are_not_there_as_for_kubernetes(local: Local) -> None:
    code, output = local.run("", env=None, initializer={"model": {"storageUri": None, "env": None}, "dataset": None})
    assert code == 0, output


def test_what_a_node_leaves_behind_ends_with_it_as_in_a_container(local: Local) -> None:
    program = """
import subprocess
child = subprocess.Popen(["sleep", "600"])
(workspace / "child").write_text(str(child.pid))
"""
    code, output = local.run(program)
    assert code == 0, output
    assert is_gone(local.pid("child"))


def test_a_stop_asked_for_before_the_nodes_exist_reaches_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    stop = Stop()
    stop.asked = True
    job = job_of(trainjob(command=["sleep", "600"]), RUNTIME)
    started = time.monotonic()
    node = Container("node-0", job, 0, sys.executable, {"/workspace": str(tmp_path)})
    run_attempt([node], "job", 0, stop)
    assert time.monotonic() - started < 300


SERVES = """
import os, pathlib, sys
with (pathlib.Path(os.environ["STOKER_WORKSPACE"]) / "starts").open("a") as starts:
    starts.write("started\\n")
"""
WAITS = """
import os, pathlib, sys, time
starts = pathlib.Path(os.environ["STOKER_WORKSPACE"]) / "starts"
deadline = time.monotonic() + 60
while not starts.exists() or len(starts.read_text().splitlines()) < 2:
    if time.monotonic() > deadline:
        sys.exit(1)
    time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("serving_ends", "code"),
    [("0", ExitCode.FINISHED), ("70", ExitCode.FINISHED), ("75", ExitCode.FINISHED), ("78", ExitCode.CONFIG)],
)
def test_what_serves_the_nodes_is_started_again_unless_its_error_is_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serving_ends: str, code: ExitCode
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    folders = {"/workspace": str(tmp_path)}
    serves = job_of(trainjob(command=["python", "-c", f"{SERVES}sys.exit({serving_ends})"]), RUNTIME)
    waits = job_of(trainjob(command=["python", "-c", WAITS]), RUNTIME)
    beside = Container("sampler-0", serves, 0, sys.executable, folders)
    node = Container("node-0", waits, 0, sys.executable, folders)
    assert run_attempt([node], "job", 0, Stop(), [beside]) is code
    assert len((tmp_path / "starts").read_text().splitlines()) == (1 if code is ExitCode.CONFIG else 2)


TIDIES = """
import os, pathlib, signal, sys, time
workspace = pathlib.Path(os.environ["STOKER_WORKSPACE"])
def end(*_):
    (workspace / "tidied").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
(workspace / "starts").write_text("one\\ntwo\\n")
time.sleep(600)
"""


def test_what_serves_the_nodes_may_tidy_up_after_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    folders = {"/workspace": str(tmp_path)}
    serves, waits = (
        Container(title, job_of(trainjob(command=["python", "-c", program]), RUNTIME), 0, sys.executable, folders)
        for title, program in (("sampler-0", TIDIES), ("node-0", WAITS))
    )
    assert run_attempt([waits], "job", 0, Stop(), [serves]) is ExitCode.FINISHED
    assert (tmp_path / "tidied").exists()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--volume", "shm"], 64, "write NAME=DIR, where NAME is a volume of the pod: cache, initializer, shm, tmp"),
        (["--volume", "bogus=/tmp"], 64, "NAME is a volume of the pod"),
        (["--volume", "shm=/missing"], 66, "the folder /missing does not exist"),
    ],
)
def test_volumes_are_checked(local: Local, options: list[str], code: int, message: str) -> None:
    returned, output = local.run("", options=options)
    assert (returned, message in output) == (code, True), output


def test_a_volume_that_the_job_reads_and_no_folder_stands_for_is_named(local: Local, tmp_path: Path) -> None:
    inputs = {"initializer": {}, "initializer_mounts": [{"name": "inputs", "mountPath": "/mnt/inputs"}]}
    told = "the volume inputs at /mnt/inputs has no folder here: name one with --volume inputs=DIR"
    speaks = {"initializer_command": ["true", "/mnt/inputs/model"], **inputs}
    assert told in local.run("", **speaks)[1]
    assert told not in local.run("", **speaks, options=["--volume", f"inputs={tmp_path}"])[1]
    assert told not in local.run("", initializer_command=["true"], **inputs)[1]


def test_a_command_that_is_not_there_is_named(local: Local) -> None:
    code, output = local.run("", command=["no-such-command"])
    assert code == 78
    assert "the job's command 'no-such-command' is not installed here" in output
    assert "Traceback" not in output


def test_a_runtime_without_a_command_is_refused(local: Local) -> None:
    job, runtime = trainjob(), deepcopy(RUNTIME)
    del container(runtime)["command"]
    (local.folder / "job.yaml").write_text(yaml.safe_dump(job))
    (local.folder / "runtime.yaml").write_text(yaml.safe_dump(runtime))
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "local", "job.yaml", "--runtime", "runtime.yaml", "--workspace", "w"],
        cwd=local.folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 64
    assert done.stderr == "stoker: error: the job has no command: write one in the runtime or in the TrainJob\n"


def test_initializers_run_before_the_nodes(local: Local) -> None:
    source = local.folder / "source"
    source.mkdir()
    (source / "model.safetensors").write_text("weights")
    code, output = local.run(
        "print((workspace / 'model/model.safetensors').read_text(), attempt); sys.exit(70 if attempt == 0 else 0)",
        initializer={"model": {"storageUri": f"file://{source}"}},
    )
    assert code == 0, output
    lines = output.splitlines()
    for said in (
        "[dataset-initializer] [stoker] STORAGE_URI is empty: no dataset to fetch",
        f"[model-initializer] [stoker] {local.workspace}/model is there: file://{source}",
        f"[model-initializer] [stoker] {local.workspace}/model is there: file://{source}, nothing to fetch",
        "[node-0] weights 1",
    ):
        assert said in lines, output


def test_a_model_that_cannot_be_fetched_ends_the_job_before_a_node_starts(local: Local) -> None:
    code, output = local.run("", initializer={"model": {"storageUri": "file:///no/such/folder"}})
    assert (code, local.starts) == (66, []), output
    assert "attempt 0: model-initializer ended with 66 (model or data missing)" in output


def test_an_initializer_is_tried_again_by_itself_before_the_run_is(local: Local) -> None:
    # Not before its third start; a user's own image in the place of ours.
    command = """
import os, pathlib, sys
starts = pathlib.Path(os.environ["STOKER_WORKSPACE"]) / "starts"
starts.write_text((starts.read_text() if starts.exists() else "") + "x")
sys.exit([75, 69, 0][len(starts.read_text()) - 1])
"""
    code, output = local.run("", initializer={}, initializer_command=["python", "-c", command])
    assert code == 0, output
    assert "[stoker] model-initializer ended with 75 (stopped by a signal, resumable): trying again" in output
    assert local.starts == ["0-0"]
    code, output = local.run("", initializer={}, initializer_command=["python", "-c", "import sys; sys.exit(70)"])
    assert code == 70
    # maxRestarts 3 of the job, backoffLimit 1 of the initializer.
    assert output.count("model-initializer ended with 70 (the trainer crashed): trying again") == 4
    assert "no restart left of 3" in output


def test_a_claim_that_only_an_initializer_mounts_is_a_folder_here(local: Local) -> None:
    claim = local.folder / "the claim"
    (claim / "data").mkdir(parents=True)
    (claim / "data" / "train.jsonl").write_text("{}")
    for uri in ("pvc://inputs/data", "file:///mnt/pvc/inputs/data"):
        code, output = local.run(
            "print((workspace / 'dataset/train.jsonl').read_text())",
            initializer={"dataset": {"storageUri": uri, "env": [{"name": "STOKER_FETCH_REPLACE", "value": "true"}]}},
            initializer_mounts=[{"name": "inputs", "mountPath": "/mnt/pvc/inputs"}],
            options=["--volume", f"inputs={claim}"],
        )
        assert (code, "[node-0] {}" in output) == (0, True), output


def test_a_file_stands_in_for_a_secret(local: Local) -> None:
    (local.folder / "store.env").write_text("# a comment\nACCESS_KEY_ID=someone\n")
    wanted = {"dataset": {"storageUri": "s3://bucket/x", "secretRef": {"name": "store"}}}
    code, output = local.run("", initializer=wanted, options=["--secret", f"store={local.folder}/store.env"])
    assert (code, "only one of ACCESS_KEY_ID and SECRET_ACCESS_KEY is set" in output) == (64, True), output
    _, output = local.run("", initializer={"dataset": {"storageUri": "", "secretRef": {"name": "store"}}})
    assert "the secret store is only in the cluster: give a file to use instead with --secret store=FILE" in output


def test_each_framework_has_its_own_python(local: Local) -> None:
    python = local.folder / "elsewhere" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    code, output = local.run("print('by', sys.executable)", options=["--python", f"trl={python}"])
    assert (code, f"[node-0] by {python}" in output) == (0, True), output
    code, output = local.run("print('by', sys.executable)", options=["--python", f"torchtune={python}"])
    assert (code, f"[node-0] by {sys.executable}" in output) == (0, True), output


def test_nothing_outlives_a_local_run_that_is_killed(local: Local) -> None:
    process = local.start("(workspace / f'ready-{rank}').touch(); time.sleep(600)", nodes=2)
    for rank in (0, 1):
        local.wait_for(f"ready-{rank}")
    process.kill()
    process.wait()
    assert [rank for rank in (0, 1) if not is_gone(local.pid(f"0-{rank}"))] == []


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--python", "trl"], 64, "--python trl: write FRAMEWORK=PATH"),
        (["--python", "trl=/missing"], 66, "/missing is not a program"),
        (["--python", "trl2=/missing"], 64, "--python trl2=/missing: trl2 must be one of fetch, "),
        (["--secret", "store"], 64, "--secret store: write NAME=FILE"),
        (["--secret", "store=/missing"], 66, "/missing cannot be read"),
    ],
)
def test_pythons_and_secrets_are_checked(local: Local, options: list[str], code: int, message: str) -> None:
    returned, output = local.run("", options=options)
    assert (returned, message in output) == (code, True), output


def test_an_initializer_that_the_runtime_does_not_have_is_refused(local: Local) -> None:
    job = trainjob()
    job["spec"]["initializer"] = {"model": {"storageUri": "hf://org/name"}}
    with pytest.raises(RunError, match="has no job model-initializer"):
        initializers_of(job, RUNTIME)
    job["spec"]["initializer"] = {"model": {"storageURI": "hf://org/name"}}
    with pytest.raises(RunError, match="did you mean storageUri"):
        initializers_of(job, RUNTIME)
