"""A plan knows what an earlier attempt left: defaults that have changed since do not stop it."""

from __future__ import annotations

import errno
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runner.tests.plan.models import QWEN_8B
from runner.tests.samples import pod, saved

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import write_json
from stoker.contract.manifest import MANIFEST
from stoker.fetch.selection import RECORD
from stoker.fetch.target import recorded_content
from stoker.node import launch
from stoker.node.planning import plan_from
from stoker.plan.facts import Facts
from stoker.plan.plan import Plan
from stoker.rank import checkpoints, worker
from stoker.rank.checkpoints import SEAL, choose, record_anew


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    """A pod with a known GPU, on which the recipe packs, and a model in its workspace."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN_8B))
    told = {
        "STOKER_ACCELERATOR": "nvidia",
        "STOKER_WORKSPACE": str(tmp_path),
        "STOKER_JOB_ID": "job",
        "STOKER_ARG_MODEL_NAME_OR_PATH": str(tmp_path / "model"),
        "STOKER_ARG_USE_PEFT": "true",
        "STOKER_ARG_PER_DEVICE_TRAIN_BATCH_SIZE": "2",
    }
    return replace(pod(told, devices=("nvidia0",)), cuda_generation=9, device_bytes=141 * 2**30)


def is_packed(plan: Plan) -> bool:
    return plan.fixed["packing"] is True


def left_by(plan: Plan, *without: str) -> dict[str, Any]:
    """Return the record that a run of a plan leaves, as if its runner had not recorded some settings."""
    fixed = {name: value for name, value in plan.fixed.items() if name not in without}
    return {**plan.record, "fixed": fixed}


def test_a_run_that_begins_is_packed(facts: Facts) -> None:
    assert is_packed(plan_from(facts, []))


@pytest.mark.parametrize("without", [(), ("packing",)], ids=["recorded", "not recorded"])
def test_a_run_that_began_before_it_was_packed_resumes(facts: Facts, tmp_path: Path, without: tuple[str, ...]) -> None:
    before = plan_from(replace(facts, cuda_generation=None), [])
    assert not is_packed(before)
    checkpoint = saved(tmp_path / "output", 2, record=left_by(before, *without))
    plan = plan_from(facts, [])
    assert not is_packed(plan)
    found, _ = choose(Path(plan.output_dir), plan.record, plan.resume, anew=False)
    assert found is not None
    assert found.path == checkpoint


def test_a_run_that_began_packed_stays_packed(facts: Facts, tmp_path: Path) -> None:
    saved(tmp_path / "output", 2, record=left_by(plan_from(facts, [])))
    assert is_packed(plan_from(facts, []))


def test_a_finished_run_counts_as_well(facts: Facts, tmp_path: Path) -> None:
    before = plan_from(replace(facts, cuda_generation=None), [])
    (tmp_path / "output").mkdir()
    write_json(tmp_path / "output" / MANIFEST, left_by(before))
    assert not is_packed(plan_from(facts, []))


def test_what_the_user_writes_wins_over_what_was(facts: Facts, tmp_path: Path) -> None:
    saved(tmp_path / "output", 2, record=left_by(plan_from(replace(facts, cuda_generation=None), [])))
    assert is_packed(plan_from(facts, ["--packing"]))


def test_a_run_that_starts_anew_follows_nothing(facts: Facts, tmp_path: Path) -> None:
    saved(tmp_path / "output", 2, record=left_by(plan_from(replace(facts, cuda_generation=None), [])))
    anew = replace(facts, env={**facts.env, "STOKER_RESUME": "never"})
    assert is_packed(plan_from(anew, []))


def broken(file: Path) -> Path:
    """Return a file whose read fails, as on a network file system that fails for a moment; for root too."""
    file.unlink(missing_ok=True)
    file.parent.mkdir(exist_ok=True)
    file.symlink_to(file)
    return file


@pytest.mark.parametrize("name", ["", MANIFEST, f"checkpoint-4/{SEAL}", "checkpoint-4/model.safetensors"])
def test_what_cannot_be_read_is_tried_again_because_other_pods_may_read_it(
    facts: Facts, tmp_path: Path, name: str
) -> None:
    output = tmp_path / "output"
    if name.startswith("checkpoint"):
        # The one before it says something else than this one might.
        for step, generation in ((2, 9), (4, None)):
            saved(output, step, record=left_by(plan_from(replace(facts, cuda_generation=generation), ["--packing"])))
    file = broken(output / name if name else output)
    with pytest.raises(RunError) as refused:
        plan_from(facts, [])
    assert refused.value.code is ExitCode.UNAVAILABLE
    assert refused.value.message.startswith(f"{file} cannot be read (Too many levels of symbolic links), and the plan ")


def test_an_old_checkpoint_that_cannot_be_read_is_not_needed(facts: Facts, tmp_path: Path) -> None:
    saved(tmp_path / "output", 4, record=left_by(plan_from(replace(facts, cuda_generation=None), [])))
    broken(saved(tmp_path / "output", 2) / SEAL)
    assert not is_packed(plan_from(facts, []))


def test_a_record_of_starting_anew_that_cannot_be_read_is_tried_again(facts: Facts, tmp_path: Path) -> None:
    record_anew(tmp_path, tmp_path / "output", "job")
    (record,) = (tmp_path / ".stoker").iterdir()
    broken(record)
    with pytest.raises(RunError) as refused:
        plan_from(replace(facts, env={**facts.env, "STOKER_RESUME": "never"}), [])
    assert refused.value.code is ExitCode.UNAVAILABLE


def test_what_may_not_be_read_is_78(facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(output: Path) -> None:
        # Root may read every file.
        raise PermissionError(errno.EACCES, "Permission denied", str(output))

    monkeypatch.setattr(checkpoints, "former_settings", refusing)
    with pytest.raises(RunError, match="give it to GID 0 with group read and write") as refused:
        plan_from(facts, [])
    assert refused.value.code is ExitCode.CONFIG


def test_a_workspace_that_is_no_folder_is_left_to_the_check_of_folders(facts: Facts, tmp_path: Path) -> None:
    (tmp_path / "output").touch()
    for resume in ("auto", "never"):
        assert is_packed(plan_from(replace(facts, env={**facts.env, "STOKER_RESUME": resume}), []))


def fetched(folder: Path, digest: str = "sha256:ab", **more: str) -> None:
    """Leave what an initializer records of a data set with one file."""
    folder.mkdir(exist_ok=True)
    file = {"path": "train.jsonl", "bytes": 9, "tag": "t", "digest": digest, **more}
    write_json(folder / RECORD, {"uri": "s3://b/d", "files": [file], "time": str(time.time_ns())})


@pytest.fixture
def fetched_facts(facts: Facts, tmp_path: Path) -> Facts:
    """A pod whose data set was fetched, and is a folder of it."""
    fetched(tmp_path / "dataset")
    return replace(facts, env={**facts.env, "STOKER_ARG_DATASET_NAME": str(tmp_path / "dataset" / "chats")})


def test_a_data_set_that_was_replaced_is_another_run(fetched_facts: Facts, tmp_path: Path) -> None:
    before = plan_from(fetched_facts, ["--max_steps", "5"])
    output = tmp_path / "output"
    saved(output, 5, record=left_by(before))
    write_json(output / MANIFEST, {**left_by(before), "budget": before.budget, "steps": 5})

    fetched(tmp_path / "dataset", tag="another time")
    again = plan_from(fetched_facts, ["--max_steps", "5"])
    assert again.record == before.record
    assert launch._already_finished(again) is not None

    fetched(tmp_path / "dataset", digest="sha256:cd")
    now = plan_from(fetched_facts, ["--max_steps", "5"])
    for refuse in (launch._already_finished, lambda plan: choose(output, plan.record, plan.resume, anew=False)):
        with pytest.raises(RunError, match=r": content of the data set was \w{12}, now \w{12}\.") as refused:
            refuse(now)
        assert refused.value.code is ExitCode.CONFIG
    anew = plan_from(replace(fetched_facts, env={**fetched_facts.env, "STOKER_RESUME": "never"}), ["--max_steps", "5"])
    assert launch._already_finished(anew) is None


def test_what_is_written_for_people_is_no_content(tmp_path: Path) -> None:
    def content(*files: tuple[str, str], is_model: bool = True) -> str:
        told = [{"path": path, "bytes": 9, "tag": "t", "digest": digest} for path, digest in files]
        write_json(tmp_path / RECORD, {"uri": "hf://a/b", "files": told})
        return recorded_content(tmp_path, is_model)

    weights = ("model.safetensors", "sha256:ab")
    first = content(weights, ("README.md", "git:1"), ("LICENSE", "git:2"), (".gitattributes", "git:3"))
    assert content(weights, ("README.md", "git:9"), ("LICENSE.txt", "git:8")) == first != ""
    assert content(("model.safetensors", "sha256:cd")) != first
    for data in ("licenses.json", "data/license_plates.parquet", "licence-train.jsonl", "docs/a.md", "vocab.txt"):
        assert content(weights, (data, "git:1")) != first, data


def test_a_data_sets_card_may_say_which_files_are_its_rows(tmp_path: Path) -> None:
    def content(card: str) -> str:
        told = [{"path": path, "bytes": 9, "tag": "t", "digest": card} for path in ("README.md", "LICENSE")]
        told.append({"path": "rows.jsonl", "bytes": 9, "tag": "t", "digest": "git:1"})
        write_json(tmp_path / RECORD, {"uri": "hf://a/b", "files": told})
        return recorded_content(tmp_path, is_model=False)

    assert content("git:2") != content("git:3")


def test_a_mixture_that_was_replaced_is_another_run(facts: Facts, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        f"datasets:\n- path: {tmp_path}/chats\n- path: {tmp_path}/sums/more\n- path: owner/name\n"
    )
    args = ["--config", str(tmp_path / "config.yaml")]
    for name in ("chats", "sums"):
        fetched(tmp_path / name)
    before = plan_from(facts, args)
    assert [check.path for check in before.checks if check.what == "data set"] == [
        f"{tmp_path}/chats",
        f"{tmp_path}/sums/more",
    ]
    saved(tmp_path / "output", 5, record=left_by(before))
    fetched(tmp_path / "sums", digest="sha256:cd")
    now = plan_from(facts, args)
    with pytest.raises(RunError, match=r": content of the data set was \w{12}, now \w{12}, \w{12}\. To resume it, let"):
        choose(tmp_path / "output", now.record, now.resume, anew=False)


def test_content_that_was_not_recorded_is_not_compared(fetched_facts: Facts, tmp_path: Path) -> None:
    before = plan_from(fetched_facts, [])
    saved(tmp_path / "output", 2, record=left_by(before, "content of the data set"))
    assert choose(tmp_path / "output", before.record, before.resume, anew=False)[0] is not None
    for content in ("{", "[]", '{"files": [1]}', '{"files": []}'):
        (tmp_path / "dataset" / RECORD).write_text(content)
        assert "content of the data set" not in plan_from(fetched_facts, []).fixed


@pytest.mark.parametrize("late", [0, 1])
def test_a_late_pod_plans_as_the_first_one_that_looked_for_a_finished_run(
    facts: Facts, tmp_path: Path, late: int
) -> None:
    """A finished run without packing and without checkpoints is to train on, and one of two pods starts late."""
    before = plan_from(replace(facts, cuda_generation=None), ["--max_steps", "5"])
    (tmp_path / "output").mkdir()
    write_json(tmp_path / "output" / MANIFEST, {**left_by(before), "budget": before.budget, "steps": 5})
    hashes = []
    for node in (1 - late, late):
        plan = plan_from(replace(facts, env={**facts.env, "PET_NODE_RANK": str(node)}), ["--max_steps", "9"])
        assert plan.world.node_rank == node
        assert not is_packed(plan)
        assert launch._already_finished(plan) is None
        hashes.append(plan.hash)
    assert hashes[0] == hashes[1]
    # Rank 0 chooses after all nodes have met.
    assert worker._choose_checkpoint(plan) is None
    assert not (tmp_path / "output" / MANIFEST).exists()
    assert (tmp_path / "output" / "earlier-output-1" / MANIFEST).exists()


def test_an_incomplete_checkpoint_is_not_followed(facts: Facts, tmp_path: Path) -> None:
    saved(tmp_path / "output", 2, sealed=False)
    assert is_packed(plan_from(facts, []))
