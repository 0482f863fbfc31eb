"""Only a checkpoint that every rank finished is resumed from, and only by the run it belongs to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker import checkpoints
from stoker.exits import ExitCode, RunError

MINE = {"method": "sft", "model": {"model_name_or_path": "/m"}, "world_size": 2}


def saved(output: Path, step: int, sealed: bool = True) -> Path:
    """Return a checkpoint as a trainer leaves it."""
    folder = output / f"checkpoint-{step}"
    (folder / "nested").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x" * 10)
    (folder / "nested" / "optimizer.pt").write_bytes(b"y" * 20)
    if sealed:
        checkpoints.seal(folder, step, MINE)
    return folder


def flaw_of(output: Path) -> str:
    (checkpoint,) = checkpoints.read_checkpoints(output)
    return checkpoint.flaw


def test_a_sealed_checkpoint_is_complete(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    assert flaw_of(tmp_path) == ""


def test_a_checkpoint_without_a_seal_was_not_saved_to_its_end(tmp_path: Path) -> None:
    saved(tmp_path, 5, sealed=False)
    assert flaw_of(tmp_path) == "it was not saved to its end"


def test_a_truncated_file_is_a_flaw(tmp_path: Path) -> None:
    (saved(tmp_path, 5) / "model.safetensors").write_bytes(b"x")
    assert flaw_of(tmp_path) == "model.safetensors has 1 bytes, not 10"


def test_a_missing_file_is_a_flaw(tmp_path: Path) -> None:
    (saved(tmp_path, 5) / "nested" / "optimizer.pt").unlink()
    assert flaw_of(tmp_path) == "nested/optimizer.pt is missing"


@pytest.mark.parametrize("content", ["[]", "{}", '{"files": [], "fingerprint": {}}', '"text"'])
def test_a_seal_of_another_make_is_a_flaw(tmp_path: Path, content: str) -> None:
    (saved(tmp_path, 5) / checkpoints.SEAL).write_text(content)
    assert "is not what this program writes" in flaw_of(tmp_path)


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
    assert checkpoints.choose(tmp_path / "missing", MINE, "auto", 0) == (None, [])


def test_the_newest_complete_one_is_chosen_and_broken_ones_set_aside(tmp_path: Path) -> None:
    good = saved(tmp_path, 5)
    broken = saved(tmp_path, 10, sealed=False)
    chosen, aside = checkpoints.choose(tmp_path, MINE, "auto", 0)
    assert chosen == good
    assert aside == [(broken, "it was not saved to its end")]


def test_setting_aside_hides_it_from_trainers_and_never_overwrites(tmp_path: Path) -> None:
    names = [checkpoints.set_aside(saved(tmp_path, 10, sealed=False)).name for _ in range(2)]
    assert names == ["set-aside-checkpoint-10-1", "set-aside-checkpoint-10-2"]
    assert checkpoints.read_checkpoints(tmp_path) == []


def test_never_starts_anew_once_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    folder = saved(tmp_path, 5)
    assert checkpoints.choose(tmp_path, MINE, "never", 0) == (None, [(folder, "STOKER_RESUME=never")])
    assert checkpoints.choose(tmp_path, MINE, "never", 1) == (folder, [])


def test_require_fails_without_a_complete_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path, 5, sealed=False)
    with pytest.raises(RunError, match="holds no complete checkpoint") as refused:
        checkpoints.choose(tmp_path, MINE, "require", 0)
    assert refused.value.code is ExitCode.CONFIG


def test_another_runs_checkpoint_is_refused_naming_each_difference(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    other = {"method": "dpo", "model": {"model_name_or_path": "/n"}, "world_size": 2}
    with pytest.raises(RunError) as refused:
        checkpoints.choose(tmp_path, other, "auto", 0)
    assert refused.value.code is ExitCode.CONFIG
    assert "method was sft, now dpo; model.model_name_or_path was /m, now /n" in refused.value.message
    assert "world_size" not in refused.value.message
    assert "STOKER_RESUME=never" in refused.value.message


def test_a_tuple_equals_the_list_it_is_read_back_as() -> None:
    checkpoints.refuse_other_run("x", {"targets": ["q", "v"]}, {"targets": ("q", "v")})


def finished(output: Path, budget: dict[str, float]) -> None:
    (output / checkpoints.MANIFEST).write_text(json.dumps({"fingerprint": MINE, "budget": budget, "steps": 10}))


@pytest.mark.parametrize(
    ("done", "asked", "is_done"),
    [
        ({"max_steps": 10}, {"max_steps": 10}, True),
        ({"max_steps": 10}, {"max_steps": 5}, True),
        ({"max_steps": 10}, {"max_steps": 20}, False),
        ({"max_steps": 10}, {"max_steps": -1, "num_train_epochs": 2}, False),
        ({}, {}, True),
        ({}, {"max_steps": 10}, False),
    ],
    ids=["the same", "fewer steps", "more steps", "epochs instead", "the trainer's default", "steps after the default"],
)
def test_a_run_is_finished_unless_more_is_asked_for(
    tmp_path: Path, done: dict[str, float], asked: dict[str, float], is_done: bool
) -> None:
    finished(tmp_path, done)
    assert (checkpoints.finished_manifest(tmp_path, MINE, asked) is not None) == is_done


def test_without_a_manifest_nothing_is_finished(tmp_path: Path) -> None:
    assert checkpoints.finished_manifest(tmp_path, MINE, {}) is None


def test_another_runs_finished_output_is_refused(tmp_path: Path) -> None:
    finished(tmp_path, {})
    with pytest.raises(RunError, match=r"the finished output in .* is of another run: world_size was 2, now 4"):
        checkpoints.finished_manifest(tmp_path, {**MINE, "world_size": 4}, {})


@pytest.mark.parametrize("content", ["[]", "{}", '{"fingerprint": {}}'])
def test_a_manifest_of_another_make_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / checkpoints.MANIFEST).write_text(content)
    with pytest.raises(RunError, match="is not what this program writes"):
        checkpoints.finished_manifest(tmp_path, MINE, {})
