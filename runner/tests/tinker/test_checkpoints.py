"""Names of checkpoints never lead out of the run's folder, and a checkpoint appears whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.tinker.checkpoints import WEIGHTS, CheckpointPath, Checkpoints, checked_name, checkpoint_at
from stoker.tinker.refusals import RefusedError

HERE = CheckpointPath("s1-1:train:0", WEIGHTS, "000010")


def test_a_name_is_what_was_saved(tmp_path: Path) -> None:
    table = Checkpoints(tmp_path)
    table.save(HERE, lambda folder: (folder / "file").touch())
    assert checkpoint_at(HERE.uri) == HERE
    assert [path.name for path in table.find(checkpoint_at(HERE.uri)).iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "../../etc/passwd", "a\0b", "a b", "ä", "x" * 129, "a\n"])
def test_a_name_that_could_leave_the_folder_is_refused(name: str) -> None:
    with pytest.raises(RefusedError, match="is not a checkpoint's name"):
        checked_name(name)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "/etc/passwd",
        "tinker://",
        "tinker://../weights/a",
        "tinker://a/weights",
        "tinker://a/other/b",
        "tinker://a/weights/b/../../c",
        "tinker://a/weights/..",
        "tinker://a/weights/..%2f..",
        "file://a/weights/b",
    ],
)
def test_a_path_that_is_none_is_refused(uri: str) -> None:
    with pytest.raises(RefusedError):
        checkpoint_at(uri)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    (outside / HERE.name).mkdir(parents=True)
    (inside / HERE.run).mkdir(parents=True)
    (inside / HERE.run / WEIGHTS).symlink_to(outside)
    with pytest.raises(RefusedError, match="leads out of the run's folder"):
        Checkpoints(inside).find(HERE)
    with pytest.raises(RefusedError, match="leads out of the run's folder"):
        Checkpoints(inside).save(HERE, lambda folder: (folder / "file").touch())


def test_a_checkpoint_is_replaced_only_if_asked(tmp_path: Path) -> None:
    table = Checkpoints(tmp_path)
    table.save(HERE, lambda folder: (folder / "first").touch())
    with pytest.raises(RefusedError, match="overwrite=True"):
        table.save(HERE, lambda folder: (folder / "second").touch())
    table.save(HERE, lambda folder: (folder / "third").touch(), overwrite=True)
    assert [path.name for path in table.find(HERE).iterdir()] == ["third"]
    assert [path.name for path in table.find(HERE).parent.iterdir()] == [HERE.name]


def test_what_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError(28, "No space left on device")

    table = Checkpoints(tmp_path)
    with pytest.raises(OSError, match="No space"):
        table.save(HERE, fail)
    with pytest.raises(RefusedError, match="does not exist") as caught:
        table.find(HERE)
    assert caught.value.status == 404
    assert not list((tmp_path / HERE.run / WEIGHTS).iterdir())
