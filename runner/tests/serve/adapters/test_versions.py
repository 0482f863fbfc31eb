"""A published version is whole or not there, and never changes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from runner.tests.serve.adapters.samples import make_adapter

from stoker.contract.exits import ExitCode, RunError
from stoker.serve.adapters import versions
from stoker.serve.adapters.files import read_adapter
from stoker.serve.adapters.versions import publish, read_published, retract, retract_all
from stoker.serve.weights import files


def names(folder: Path) -> list[str]:
    return [version.name for version in read_published(folder)]


def fill(draft: Path) -> None:
    (draft / "file").write_text("text")


def test_versions_count_up(output: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapters"
    assert [publish(output, folder, "support").name for _ in range(2)] == ["support:1", "support:2"]
    assert publish(output, folder, "support", 10).name == "support:10"
    assert publish(output, folder, "policy").name == "policy:1"
    assert names(folder) == ["policy:1", "support:1", "support:2", "support:10"]


def test_a_version_holds_what_the_manifest_lists_and_nothing_else(output: Path, tmp_path: Path) -> None:
    (output / "checkpoint-5").mkdir()
    (output / "optimizer.pt").write_bytes(b"x")
    version = publish(output, tmp_path / "adapters", "support")
    assert {path.name for path in version.path.iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "stoker.json", "tokenizer.json",
    }  # fmt: skip
    assert read_adapter(version.path).damage == ()


def test_drafts_and_other_folders_are_no_versions(output: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapters"
    publish(output, folder, "support")
    for name in (".draft-x-1", "latest", "0", "01", "lost+found"):
        (folder / "support" / name).mkdir()
    (folder / "lost+found").mkdir()
    (folder / "README").touch()
    assert names(folder) == ["support:1"]


def test_a_folder_that_nobody_made_yet_has_no_version(tmp_path: Path) -> None:
    assert read_published(tmp_path / "none") == []


def test_publishers_at_the_same_time_get_numbers_of_their_own(output: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapters"
    with ThreadPoolExecutor(8) as pool:
        published = set(pool.map(lambda _: publish(output, folder, "support").name, range(8)))
    assert published == set(names(folder)) == {f"support:{number}" for number in range(1, 9)}


def test_a_version_that_exists_is_never_replaced(output: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapters"
    publish(output, folder, "support", 3)
    with pytest.raises(RunError, match="support:3 exists, and a version never changes") as ending:
        publish(output, folder, "support", 3)
    assert ending.value.code is ExitCode.CONFIG
    assert [path.name for path in (folder / "support").iterdir()] == ["3"]


def test_a_broken_output_is_not_published(output: Path, tmp_path: Path) -> None:
    (output / "adapter_model.safetensors").write_bytes(b"short")
    with pytest.raises(RunError) as ending:
        publish(output, tmp_path / "adapters", "support")
    assert ending.value.code is ExitCode.BAD_DATA
    assert not (tmp_path / "adapters").exists()


def test_a_run_that_has_not_finished_is_not_published(output: Path, tmp_path: Path) -> None:
    (output / "stoker.json").unlink()
    with pytest.raises(RunError, match="is missing: wait until the run has finished") as ending:
        publish(output, tmp_path / "adapters", "support")
    assert ending.value.code is ExitCode.NO_INPUT


@pytest.mark.parametrize(
    ("manifest", "message", "code"),
    [
        ({"status": "running"}, "stoker.json says the run is 'running', not 'finished'", ExitCode.NO_INPUT),
        ({"schemaVersion": 2}, "stoker.json has schemaVersion 2, but this Stoker reads 1", ExitCode.BAD_DATA),
        ({"files": None}, "stoker.json: files is None, not a list", ExitCode.BAD_DATA),
        ({"files": []}, "stoker.json does not list adapter_config.json", ExitCode.BAD_DATA),
    ],
)
def test_what_every_server_would_refuse_is_not_published(
    tmp_path: Path, manifest: dict[str, Any], message: str, code: ExitCode
) -> None:
    with pytest.raises(RunError) as ending:
        publish(make_adapter(tmp_path / "output", manifest=manifest), tmp_path / "adapters", "support")
    assert message in ending.value.message
    assert ending.value.code is code
    assert not (tmp_path / "adapters").exists()


@pytest.mark.parametrize("name", ["", "Support", "../x", "a/b", "a:1", ".hidden", "a\n", "a" * 64])
def test_a_name_that_is_none_is_refused(output: Path, tmp_path: Path, name: str) -> None:
    for act in (lambda: publish(output, tmp_path / "adapters", name), lambda: retract(tmp_path / "adapters", name, 1)):
        with pytest.raises(RunError, match="is wrong: use up to 63 small letters") as ending:
            act()
        assert ending.value.code is ExitCode.USAGE


@pytest.mark.parametrize("number", [0, -1, 10**18])
def test_a_number_that_no_server_looks_at_is_refused(output: Path, tmp_path: Path, number: int) -> None:
    with pytest.raises(RunError, match="is wrong: use a number from 1, with at most 18 digits") as ending:
        publish(output, tmp_path / "adapters", "support", number)
    assert ending.value.code is ExitCode.USAGE


def lose_answers(monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOENT) -> None:
    """Let every rename happen and fail: NFS asks again if the answer is lost (ENOENT), or gives up (others)."""
    rename = Path.rename

    def fail(folder: Path, path: Path) -> None:
        rename(folder, path)
        raise OSError(number, os.strerror(number), str(folder))

    monkeypatch.setattr(Path, "rename", fail)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EIO, errno.ETIMEDOUT], ids=["ENOENT", "EIO", "ETIMEDOUT"])
@pytest.mark.parametrize(
    ("place", "name"),
    [
        (lambda folder: versions.place(folder, "run", 3, fill), "3"),
        (lambda folder: versions.place(folder, "run", None, fill), "1"),
        (lambda folder: files.place(folder / "run", 3, None, fill), "w3"),
    ],
    ids=["number", "next number", "weights"],
)
def test_a_rename_whose_answer_was_lost_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Callable[[Path], Any], name: str, number: int
) -> None:
    lose_answers(monkeypatch, number)
    assert place(tmp_path).path == tmp_path / "run" / name
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == [name]
    assert (tmp_path / "run" / name / "file").read_text() == "text"


def test_a_version_is_removed_though_the_answer_to_a_rename_is_lost(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "adapters"
    publish(output, folder, "support")
    lose_answers(monkeypatch)
    retract(folder, "support", 1)
    assert [entry.name for entry in (folder / "support").iterdir() if entry.is_dir()] == []


def test_another_user_of_the_group_can_publish_the_next_version(output: Path, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        version = publish(output, tmp_path / "claim" / "adapters", "support")
    finally:
        os.umask(before)
    for folder in (version.path, *version.path.parents[:3]):
        assert folder.stat().st_mode & stat.S_IRWXG == stat.S_IRWXG, folder


def test_a_retracted_version_is_gone_and_its_number_is_not_missed(output: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapters"
    publish(output, folder, "support")
    publish(output, folder, "support")
    retract(folder, "support", 1)
    assert names(folder) == ["support:2"]
    with pytest.raises(RunError, match="has no version support:1"):
        retract(folder, "support", 1)


def test_all_versions_of_a_name_are_retracted_and_no_others(output: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapters"
    for name in ("support", "support", "other"):
        publish(output, folder, name)
    retract_all(folder, "support")
    assert [version.name for version in read_published(folder)] == ["other:1"]
    assert publish(output, folder, "support").number == 3
    for name, code in (("none", ExitCode.NO_INPUT), ("No Name", ExitCode.USAGE)):
        with pytest.raises(RunError) as ending:
            retract_all(folder, name)
        assert ending.value.code is code


def test_the_number_of_a_retracted_version_is_never_given_again(output: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapters"
    publish(output, folder, "support")
    retract(folder, "support", 1)
    assert names(folder) == []
    with pytest.raises(RunError, match="support:1 was retracted, and a version never changes") as ending:
        publish(output, folder, "support", 1)
    assert ending.value.code is ExitCode.CONFIG
    assert publish(output, folder, "support").name == "support:2"


def test_a_file_that_stayed_behind_is_not_missed(output: Path, tmp_path: Path) -> None:
    (output / "tokenizer.json").unlink()
    assert (publish(output, tmp_path / "adapters", "support").path / "stoker.json").exists()


def test_a_full_folder_is_named_and_keeps_no_draft(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, _target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source))  # as copyfile says it

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(
        RunError, match=r"adapters is full \(No space left on device\): enlarge it, or retract old versions"
    ) as ending:
        publish(output, tmp_path / "adapters", "support")
    assert ending.value.code is ExitCode.CONFIG
    assert list((tmp_path / "adapters" / "support").iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_named(output: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        RunError, match=r"file/support cannot be read or written \(Not a directory\): mount it"
    ) as ending:
        publish(output, tmp_path / "file", "support")
    assert ending.value.code is ExitCode.CONFIG
