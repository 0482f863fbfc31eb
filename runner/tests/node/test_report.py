"""What a run leaves behind: the termination message, the last error, the manifest."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from runner.tests.samples import check, plan_of, saved, write_tensors

from stoker.contract import manifest
from stoker.contract.exits import ExitCode
from stoker.contract.manifest import LAST_ERROR, MANIFEST
from stoker.contract.metrics import METRICS, REPORT
from stoker.contract.words import write_termination_message
from stoker.node import report
from stoker.plan.plan import Plan
from stoker.rank.folders import Verdict

CRASH = Verdict(ExitCode.CRASHED, "ValueError: no such column")
LOST = Verdict(ExitCode.UNAVAILABLE, "lost rank 0", primary=False)
RESULT: dict[str, Any] = {
    "steps": 20,
    "max_steps": 20,
    "metrics": {"loss": 1.5},
    "world_size": 2,
    "resumed_from": None,
    "seconds": 3.0,
    "training_seconds": 2.0,
    "versions": {"torch": "2.13.0"},
}


def attempt(tmp_path: Path, number: int, *args: str, rank: int = 0, job: str = "job") -> Plan:
    """Return the plan of one attempt of a run in `tmp_path`."""
    env = {
        "STOKER_WORKSPACE": str(tmp_path),
        "STOKER_RESTART_ATTEMPT": str(number),
        "STOKER_RUN_ID": f"run-{number}",
        "STOKER_JOB_ID": job,
        "PET_NODE_RANK": str(rank),
    }
    return plan_of(*args, env=env)


def written_to(stdout: Any, encoding: str) -> subprocess.CompletedProcess[str]:
    """Write two lines as a process of its own, whose end counts too."""
    program = (
        "import sys; from stoker.contract.words import write_line as w; w(sys.stdout, '\u2713'); w(sys.stdout, 'b')"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": encoding}
    return subprocess.run(
        [sys.executable, "-c", program], env=env, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
    )


def test_a_full_disk_under_the_log_ends_nothing() -> None:
    with Path("/dev/full").open("w") as full:
        done = written_to(full, "utf-8")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_that_lacks_a_character_ends_nothing() -> None:
    done = written_to(subprocess.PIPE, "ascii")
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, [r"\u2713", "b"], "")


def test_a_termination_message_fits_what_kubernetes_keeps(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write_termination_message(path, "é" * 4000)
    assert len(path.read_bytes()) <= 4096
    assert path.read_text() == "é" * 2000


def test_a_termination_message_takes_any_text(tmp_path: Path) -> None:
    write_termination_message(tmp_path / "log", "a file named \udcff")
    assert (tmp_path / "log").read_text() == "a file named ?"


def test_where_no_message_can_be_written_none_is(tmp_path: Path) -> None:
    write_termination_message(tmp_path / "missing" / "log", "text")


def test_a_second_crash_with_no_checkpoint_between_is_final(tmp_path: Path) -> None:
    assert report.settle_crash(attempt(tmp_path, 0), CRASH) == CRASH
    verdict = report.settle_crash(attempt(tmp_path, 1), CRASH)
    assert verdict.code is ExitCode.CONFIG
    assert "crashed twice without a new checkpoint between the crashes (newest: step 0)" in verdict.message
    assert CRASH.message in verdict.message


def test_a_crash_after_a_new_checkpoint_is_tried_again(tmp_path: Path) -> None:
    report.settle_crash(attempt(tmp_path, 0), CRASH)
    saved(tmp_path / "output", 5)
    assert report.settle_crash(attempt(tmp_path, 1), CRASH) == CRASH
    assert report.settle_crash(attempt(tmp_path, 2), CRASH).code is ExitCode.CONFIG


def test_all_nodes_that_crash_at_once_come_to_the_same_end(tmp_path: Path) -> None:
    for rank in (0, 1):
        assert report.settle_crash(attempt(tmp_path, 0, rank=rank), CRASH) == CRASH
    for rank in (0, 1):
        assert report.settle_crash(attempt(tmp_path, 1, rank=rank), CRASH).code is ExitCode.CONFIG


def test_a_node_that_lost_its_peers_does_not_hide_their_crash(tmp_path: Path) -> None:
    report.settle_crash(attempt(tmp_path, 0), CRASH)
    report.write_last_error(attempt(tmp_path, 1, rank=1), LOST)
    assert report.settle_crash(attempt(tmp_path, 1), CRASH).code is ExitCode.CONFIG


def test_a_crash_after_an_attempt_that_did_not_crash_is_tried_again(tmp_path: Path) -> None:
    report.settle_crash(attempt(tmp_path, 0), CRASH)
    report.settle_crash(attempt(tmp_path, 1), Verdict(ExitCode.STOPPED, ""))
    assert report.settle_crash(attempt(tmp_path, 2), CRASH) == CRASH


def test_another_jobs_crashes_do_not_count(tmp_path: Path) -> None:
    report.settle_crash(attempt(tmp_path, 0, job="first"), CRASH)
    assert report.settle_crash(attempt(tmp_path, 1, job="second"), CRASH) == CRASH


def test_a_first_attempt_knows_of_no_crash_before(tmp_path: Path) -> None:
    # Where nobody gives jobs their ids, two of them differ by nothing else.
    for number in (0, 1, 0):
        report.settle_crash(attempt(tmp_path, number, job=""), CRASH)
    assert report.settle_crash(attempt(tmp_path, 2, job=""), CRASH) == CRASH


@pytest.mark.parametrize(
    "verdict", [Verdict(ExitCode.STOPPED, ""), Verdict(ExitCode.CRASHED, "a peer's", primary=False)]
)
def test_what_is_no_crash_of_this_node_is_left_as_it_is(tmp_path: Path, verdict: Verdict) -> None:
    report.settle_crash(attempt(tmp_path, 0), CRASH)
    assert report.settle_crash(attempt(tmp_path, 1), verdict) == verdict


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"job_id": "job"}'])
def test_a_damaged_record_settles_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / ".stoker").mkdir()
    (tmp_path / ".stoker" / "crashes.json").write_text(content)
    assert report.settle_crash(attempt(tmp_path, 1), CRASH) == CRASH


def test_a_crash_that_cannot_be_recorded_is_told_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".stoker").write_text("a file where the folder should be")
    assert report.settle_crash(attempt(tmp_path, 0), CRASH) == CRASH
    assert "could not be written" in capsys.readouterr().err


def test_the_node_with_the_cause_has_the_last_word(tmp_path: Path) -> None:
    path = tmp_path / "output" / LAST_ERROR
    report.write_last_error(attempt(tmp_path, 0, rank=1), LOST)
    report.write_last_error(attempt(tmp_path, 0), CRASH)
    report.write_last_error(attempt(tmp_path, 0, rank=1), LOST)
    assert json.loads(path.read_text())["message"] == CRASH.message
    check(json.loads(path.read_text()), "last-error-v1")
    report.write_last_error(attempt(tmp_path, 1, rank=1), LOST)
    assert json.loads(path.read_text())["message"] == LOST.message


def test_an_error_that_cannot_be_recorded_does_not_hide_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "output").write_text("a file where the folder should be")
    report.write_last_error(attempt(tmp_path, 0), CRASH)
    assert "could not be written" in capsys.readouterr().err


def safetensors(path: Path, size: int) -> bytes:
    """Write a file with a safetensors header and return the header."""
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path.write_bytes((struct.pack("<Q", len(header)) + header).ljust(size, b"\0"))
    return header


def manifest_of(tmp_path: Path, *args: str) -> dict[str, Any]:
    output = tmp_path / "output"
    output.mkdir(exist_ok=True)
    report.write_run_manifest(attempt(tmp_path, 0, *args), RESULT)
    manifest: dict[str, Any] = json.loads((output / MANIFEST).read_text())
    check(manifest, "manifest-v1")
    return manifest


def with_metrics(tmp_path: Path) -> Path:
    output = tmp_path / "output"
    output.mkdir()
    (output / METRICS).write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 1.5}\n')
    return output


def test_the_report_is_there_when_the_manifest_is_which_lists_it(tmp_path: Path) -> None:
    output = with_metrics(tmp_path)
    report.write_run_report(attempt(tmp_path, 0), RESULT)
    text = (output / REPORT).read_text()
    assert all(word in text for word in ("sft", "/workspace/model", "torch 2.13.0", "<figcaption>Loss</figcaption>"))
    assert {REPORT, METRICS} <= {file["path"] for file in manifest_of(tmp_path)["files"]}


def test_a_report_that_cannot_be_written_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = with_metrics(tmp_path)
    (output / REPORT).mkdir()
    (output / REPORT / "in-the-way").touch()
    report.write_run_report(attempt(tmp_path, 0), RESULT)
    (line,) = capsys.readouterr().err.splitlines()
    assert "warning: report.html could not be written (IsADirectoryError" in line
    assert {path.name for path in output.iterdir()} == {REPORT, METRICS}
    assert manifest_of(tmp_path)["status"] == "finished"


def test_a_run_without_metrics_has_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "output").mkdir()
    report.write_run_report(attempt(tmp_path, 0), RESULT)
    assert capsys.readouterr().err == ""
    assert manifest_of(tmp_path)["files"] == []


def test_the_manifest_says_what_was_trained(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path, "--max_steps", "20", "--model_revision", "v1")
    assert manifest["schemaVersion"] == 1
    assert (manifest["status"], manifest["steps"], manifest["world_size"]) == ("finished", 20, 2)
    assert (manifest["nodes"], manifest["processes_per_node"]) == (2, 1)
    assert manifest["base_model"] == {"name_or_path": "/workspace/model", "revision": "v1"}
    assert manifest["budget"] == {"steps": 20.0}
    assert manifest["adapter"] is None


def test_the_manifest_describes_the_adapter(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["v_proj", "q_proj"]}
    (tmp_path / "output" / "adapter_config.json").write_text(json.dumps(config))
    adapter = manifest_of(tmp_path)["adapter"]
    assert (adapter["type"], adapter["rank"], adapter["target_modules"]) == ("LORA", 8, ["q_proj", "v_proj"])


@pytest.mark.parametrize(
    ("tensors", "changed"),
    [
        (["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"], []),
        (["base_model.model.model.embed_tokens.lora_embedding_A"], []),
        (["base_model.model.lm_head.weight"], ["base_model.model.lm_head.weight"]),
        (
            ["base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"],
            ["base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"],
        ),
        (["base_model.model.score.weight"], []),
    ],
)
def test_the_manifest_names_the_embeddings_an_adapter_changes(
    tmp_path: Path, tensors: list[str], changed: list[str]
) -> None:
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    write_tensors(tmp_path / "output" / "adapter_model.safetensors", *tensors)
    assert manifest_of(tmp_path)["adapter"]["changed_embeddings"] == changed


def test_an_adapter_that_does_not_name_its_base_model_is_completed(tmp_path: Path) -> None:
    config = tmp_path / "output" / "adapter_config.json"
    config.parent.mkdir()
    config.write_text('{"r": 8, "peft_type": "LORA", "base_model_name_or_path": ""}')
    manifest = manifest_of(tmp_path)
    content = config.read_bytes()
    assert json.loads(content) == {"r": 8, "peft_type": "LORA", "base_model_name_or_path": "/workspace/model"}
    assert manifest["files"][0]["sha256"] == hashlib.sha256(content).hexdigest(), "listed as completed"
    config.write_text('{"base_model_name_or_path": "org/other"}')
    manifest_of(tmp_path)
    assert json.loads(config.read_bytes()) == {"base_model_name_or_path": "org/other"}


@pytest.mark.parametrize("wrong", [{"status": "stopped"}, {"steps": -1}, {"surprise": 1}, {"files": [{"path": "x"}]}])
def test_the_schema_refuses_what_no_manifest_is(tmp_path: Path, wrong: dict[str, Any]) -> None:
    manifest = manifest_of(tmp_path)
    with pytest.raises(jsonschema.ValidationError):
        check({**manifest, **wrong}, "manifest-v1")


def test_the_manifest_lists_files_with_their_digests_and_not_itself(tmp_path: Path) -> None:
    output = tmp_path / "output"
    saved(output, 5)
    (output / "tokenizer.json").write_bytes(b"{}")
    (output / ".draft").write_bytes(b"")
    (output / LAST_ERROR).write_text("{}")
    manifest_of(tmp_path)
    files = manifest_of(tmp_path)["files"]
    assert files == [{"path": "tokenizer.json", "bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of two users")
def test_a_file_of_another_user_does_not_cost_a_finished_run(capsys: pytest.CaptureFixture[str]) -> None:
    # Not in tmp_path, into which only root may look.
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output")
        output.mkdir()
        for name, mode in (("theirs.txt", 0o600), ("shown.txt", 0o644)):
            (output / name).write_text("x")
            (output / name).chmod(mode)
        for path in (folder, output):
            os.chown(path, 1234, -1)
        run = attempt(Path(folder), 0)
        os.seteuid(1234)
        try:
            (output / "mine.txt").write_text("x")
            (output / "mine.txt").chmod(0o600)
            found = report.write_run_manifest(run, RESULT)
        finally:
            os.seteuid(0)
        assert [file["path"] for file in found["files"]] == ["mine.txt", "shown.txt"]
        assert (output / "mine.txt").stat().st_mode & 0o777 == 0o660
    said = capsys.readouterr().err
    assert "theirs.txt (owned by another user): stoker.json omits" in said


def test_a_file_that_its_owner_removes_meanwhile_does_not_cost_a_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removed(path: Path) -> None:
        path.unlink()
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "theirs.txt").write_text("x")
    monkeypatch.setattr(manifest, "share_with_group", removed)
    assert manifest_of(tmp_path)["files"] == []


def test_of_large_weights_the_header_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "_HASHED_BYTES", 1000)
    (tmp_path / "output").mkdir()
    header = safetensors(tmp_path / "output" / "model.safetensors", 2000)
    (tmp_path / "output" / "pytorch_model.bin").write_bytes(b"x" * 2000)
    weights, other = manifest_of(tmp_path)["files"]
    assert weights == {
        "path": "model.safetensors",
        "bytes": 2000,
        "header_sha256": hashlib.sha256(header).hexdigest(),
    }
    assert other["header_sha256"] is None
