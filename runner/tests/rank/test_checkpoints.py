"""Only a checkpoint that every rank finished is resumed from, and only by the run it belongs to."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from runner.tests.samples import MINE, saved

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.manifest import MANIFEST
from stoker.contract.metrics import METRICS
from stoker.rank import checkpoints

RECORD = {"fingerprint": MINE}


def flaw_of(output: Path) -> str:
    (checkpoint,) = checkpoints.read_checkpoints(output)
    return checkpoint.flaw


def test_a_sealed_checkpoint_is_complete(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    assert flaw_of(tmp_path) == ""


def test_a_checkpoint_without_a_seal_was_not_saved_to_its_end(tmp_path: Path) -> None:
    saved(tmp_path, 5, sealed=False)
    assert flaw_of(tmp_path) == "the save did not finish"


def test_a_seal_shares_files_with_the_group_and_leaves_those_that_are_shared_alone(tmp_path: Path) -> None:
    folder = saved(tmp_path, 5, sealed=False)
    own, shared = folder / "model.safetensors", folder / "nested" / "optimizer.pt"
    own.chmod(0o600)
    shared.chmod(0o664)
    # Another user's file would refuse even to be given the mode that it has.
    before = shared.stat().st_ctime_ns
    checkpoints.seal(folder, 5, MINE)
    assert own.stat().st_mode & 0o777 == 0o660
    assert shared.stat().st_ctime_ns == before


def test_a_truncated_file_is_a_flaw(tmp_path: Path) -> None:
    weights = saved(tmp_path, 5) / "model.safetensors"
    whole = weights.stat().st_size
    weights.write_bytes(b"x")
    assert flaw_of(tmp_path) == f"model.safetensors has 1 bytes, not {whole}"


def test_a_checkpoint_whose_weights_lost_their_header_is_set_aside_for_the_one_before(tmp_path: Path) -> None:
    whole = saved(tmp_path, 5)
    weights = saved(tmp_path, 10) / "model.safetensors"
    weights.write_bytes(bytes(weights.stat().st_size))
    chosen, aside = checkpoints.choose(tmp_path, RECORD, "auto", anew=False)
    assert chosen is not None
    assert chosen.path == whole
    assert aside == [(weights.parent, "model.safetensors is damaged: its header is not JSON")]


def test_a_missing_file_is_a_flaw(tmp_path: Path) -> None:
    (saved(tmp_path, 5) / "nested" / "optimizer.pt").unlink()
    assert flaw_of(tmp_path) == "nested/optimizer.pt is missing"


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"files": [], "fingerprint": {}}', '{"files": {}, "fingerprint": [1]}', '"text"']
)
def test_a_seal_of_another_make_is_a_flaw(tmp_path: Path, content: str) -> None:
    (saved(tmp_path, 5) / checkpoints.SEAL).write_text(content)
    assert "was not written by stoker" in flaw_of(tmp_path)


@pytest.mark.parametrize("name", [checkpoints.SEAL, "model.safetensors"])
def test_a_checkpoint_that_cannot_be_read_is_not_taken_for_a_broken_one(tmp_path: Path, name: str) -> None:
    saved(tmp_path, 5)
    file = saved(tmp_path, 10) / name
    file.unlink()
    # Stands in for a network file system that fails for a moment; it fails for root too.
    file.symlink_to(file)
    with pytest.raises(OSError, match=name):
        checkpoints.choose(tmp_path, RECORD, "auto", anew=False)
    assert checkpoints.newest_step(tmp_path) == 5


def test_a_file_that_fails_while_it_is_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: Path) -> str:
        raise OSError(errno.EIO, "Input/output error", str(path))

    saved(tmp_path, 5)
    monkeypatch.setattr(checkpoints, "damage_found_in", failing)
    with pytest.raises(OSError, match="Input/output error"):
        checkpoints.choose(tmp_path, RECORD, "auto", anew=False)


def test_an_output_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.symlink_to(output)
    with pytest.raises(OSError, match="output"):
        checkpoints.choose(output, RECORD, "auto", anew=False)
    with pytest.raises(OSError, match="output"):
        checkpoints.finished_manifest(output, RECORD, {"steps": 10})
    assert checkpoints.newest_step(output) == 0


def test_a_seal_can_be_renewed(tmp_path: Path) -> None:
    folder = saved(tmp_path, 5)
    checkpoints.seal(folder, 5, MINE)
    assert flaw_of(tmp_path) == ""
    assert checkpoints.SEAL not in json.loads((folder / checkpoints.SEAL).read_text())["files"]


def test_steps_are_compared_as_numbers_and_strangers_ignored(tmp_path: Path) -> None:
    saved(tmp_path, 9)
    saved(tmp_path, 10)
    (tmp_path / "checkpoint-final").mkdir()
    (tmp_path / "checkpoint-11").write_text("a file")
    (tmp_path / "set-aside-checkpoint-12-1").mkdir()
    assert [checkpoint.step for checkpoint in checkpoints.read_checkpoints(tmp_path)] == [10, 9]
    assert checkpoints.newest_step(tmp_path) == 10


def test_no_folder_is_no_checkpoint(tmp_path: Path) -> None:
    assert checkpoints.choose(tmp_path / "missing", RECORD, "auto", anew=False) == (None, [])


def test_the_newest_complete_one_is_chosen_and_broken_ones_set_aside(tmp_path: Path) -> None:
    good = saved(tmp_path, 5)
    broken = saved(tmp_path, 10, sealed=False)
    chosen, aside = checkpoints.choose(tmp_path, RECORD, "auto", anew=False)
    assert chosen is not None
    assert chosen.path == good
    assert aside == [(broken, "the save did not finish")]


def test_setting_aside_hides_it_from_trainers_and_never_overwrites(tmp_path: Path) -> None:
    names = [checkpoints.set_aside(saved(tmp_path, 10, sealed=False)).name for _ in range(2)]
    assert names == ["set-aside-checkpoint-10-1", "set-aside-checkpoint-10-2"]
    assert checkpoints.read_checkpoints(tmp_path) == []


def test_starting_anew_sets_all_checkpoints_aside(tmp_path: Path) -> None:
    folder = saved(tmp_path, 5)
    assert checkpoints.choose(tmp_path, RECORD, "never", anew=True) == (None, [(folder, "STOKER_RESUME=never")])


def test_a_job_starts_anew_once_and_its_restarts_go_on(tmp_path: Path) -> None:
    output = tmp_path / "output"
    assert checkpoints.starts_anew(tmp_path, output, "never", "job", attempt=0)
    # Until it is on record: a first attempt may end before it comes to that.
    assert checkpoints.starts_anew(tmp_path, output, "never", "job", attempt=1)
    checkpoints.record_anew(tmp_path, output, "job")
    assert not checkpoints.starts_anew(tmp_path, output, "never", "job", attempt=1)
    assert checkpoints.starts_anew(tmp_path, output, "never", "the next job", attempt=0)


def test_another_job_in_the_same_workspace_does_not_have_this_one_start_anew_again(tmp_path: Path) -> None:
    checkpoints.record_anew(tmp_path, tmp_path / "output", "job")
    checkpoints.record_anew(tmp_path, tmp_path / "another", "another job")
    assert not checkpoints.starts_anew(tmp_path, tmp_path / "output", "never", "job", attempt=1)


def test_a_record_that_cannot_be_read_does_not_have_a_job_start_anew_again(tmp_path: Path) -> None:
    checkpoints.record_anew(tmp_path, tmp_path / "output", "job")
    (record,) = (tmp_path / ".stoker").iterdir()
    record.unlink()
    record.symlink_to(record)
    with pytest.raises(OSError, match=record.name):
        checkpoints.starts_anew(tmp_path, tmp_path / "output", "never", "job", attempt=1)


def test_without_an_id_of_the_job_the_first_attempt_starts_anew(tmp_path: Path) -> None:
    anew = [checkpoints.starts_anew(tmp_path, tmp_path / "output", "never", "", attempt) for attempt in (0, 1)]
    assert anew == [True, False]


@pytest.mark.parametrize("resume", ["auto", "require"])
def test_other_runs_never_start_anew(tmp_path: Path, resume: str) -> None:
    assert not checkpoints.starts_anew(tmp_path, tmp_path / "output", resume, "job", attempt=0)


def test_an_earlier_output_is_moved_aside_whole(tmp_path: Path) -> None:
    for name in ("adapter_model.safetensors", "mine.txt"):
        (tmp_path / name).touch()
    for _ in range(2):
        (tmp_path / "adapter_model.safetensors").touch()
        files = [{"path": "adapter_model.safetensors"}, {"path": "gone"}]
        (tmp_path / MANIFEST).write_text(json.dumps({"files": files}))
        checkpoints.retire_output(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["earlier-output-1", "earlier-output-2", "mine.txt"]
    moved = [MANIFEST, "adapter_model.safetensors"]
    assert sorted(path.name for path in (tmp_path / "earlier-output-1").iterdir()) == sorted(moved)


def test_the_metrics_of_an_earlier_output_stay_to_be_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text('{"step": 5}\n')
    (tmp_path / MANIFEST).write_text(json.dumps({"files": [{"path": METRICS}]}))
    checkpoints.retire_output(tmp_path)
    for folder in (tmp_path, tmp_path / "earlier-output-1"):
        assert (folder / METRICS).read_text() == '{"step": 5}\n'


def test_where_nothing_has_finished_nothing_is_moved(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    checkpoints.retire_output(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]


def test_require_fails_without_a_complete_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path, 5, sealed=False)
    with pytest.raises(RunError, match="has no complete checkpoint") as refused:
        checkpoints.choose(tmp_path, RECORD, "require", anew=False)
    assert refused.value.code is ExitCode.CONFIG


def test_another_runs_checkpoint_is_refused_naming_each_difference(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    other = {"method": "dpo", "model": {"model_name_or_path": "/n"}, "world_size": 2}
    with pytest.raises(RunError) as refused:
        checkpoints.choose(tmp_path, {"fingerprint": other}, "auto", anew=False)
    assert refused.value.code is ExitCode.CONFIG
    assert "method was sft, now dpo; model.model_name_or_path was /m, now /n" in refused.value.message
    assert "world_size" not in refused.value.message
    assert "STOKER_RESUME=never" in refused.value.message


def finished(output: Path, budget: dict[str, float]) -> None:
    (output / MANIFEST).write_text(json.dumps({"fingerprint": MINE, "budget": budget, "steps": 10}))


@pytest.mark.parametrize(
    ("done", "asked", "is_done"),
    [
        ({"steps": 10}, {"steps": 10}, True),
        ({"steps": 10}, {"steps": 5}, True),
        ({"steps": 10}, {"steps": 20}, False),
        ({"steps": 10}, {"epochs": 2}, False),
        ({"epochs": 3}, {"epochs": 3}, True),
    ],
    ids=["the same", "fewer steps", "more steps", "another unit", "epochs"],
)
def test_a_run_is_finished_unless_more_is_asked_for(
    tmp_path: Path, done: dict[str, float], asked: dict[str, float], is_done: bool
) -> None:
    finished(tmp_path, done)
    assert (checkpoints.finished_manifest(tmp_path, RECORD, asked) is not None) == is_done


def test_without_a_manifest_nothing_is_finished(tmp_path: Path) -> None:
    assert checkpoints.finished_manifest(tmp_path, RECORD, {}) is None


def test_another_runs_finished_output_is_refused(tmp_path: Path) -> None:
    finished(tmp_path, {})
    with pytest.raises(RunError, match=r"the finished output in .* belongs to another run: world_size was 2, now 4"):
        checkpoints.finished_manifest(tmp_path, {"fingerprint": {**MINE, "world_size": 4}}, {})


@pytest.mark.parametrize("files", ["5", "null", "[1]", "[{}]", '[{"path": "nested/file"}, {"path": []}]'])
def test_a_manifest_of_another_make_is_moved_aside_alone(tmp_path: Path, files: str) -> None:
    (tmp_path / "nested").mkdir()
    (tmp_path / "nested" / "file").touch()
    (tmp_path / MANIFEST).write_text(f'{{"files": {files}}}')
    checkpoints.retire_output(tmp_path)
    assert not (tmp_path / MANIFEST).exists()
    assert (tmp_path / "nested" / "file").exists()


@pytest.mark.parametrize("content", ["[]", "{}", '{"fingerprint": {}}', '{"fingerprint": null, "budget": {}}'])
def test_a_manifest_of_another_make_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(RunError, match="was not written by stoker"):
        checkpoints.finished_manifest(tmp_path, RECORD, {})
