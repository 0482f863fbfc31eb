"""What is found in claims, however they are filled."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from runner.tests.board.objects import claims, lines
from runner.tests.report.hostile import write_run

from stoker.board import sources
from stoker.board.serve import sources as named
from stoker.board.sources import OutsideError, ResultFolder, RunFolder, adapters_in, check, find, read_report


def found(root: Path, name: str = "claim") -> list[RunFolder]:
    left, problem = find(ResultFolder(name, "ml", root))
    assert problem == ""
    return left


def test_runs_are_found_up_to_three_folders_deep(tmp_path: Path) -> None:
    for path in ("a/output", "team/b/output", "c", "x/y/z/too-deep"):
        write_run(tmp_path / path, lines(3))
    for path in ("a/output/checkpoint-3", "a/output/below", ".hidden/output", "checkpoint-9"):
        write_run(tmp_path / path, lines(1))
    left = found(tmp_path)
    assert sorted((one.path, one.run) for one in left) == [("a/output", "a"), ("c", "c"), ("team/b/output", "b")]
    assert all(one.last["step"] == 3 for one in left)


def test_a_claim_that_is_a_workspace_or_an_output_folder_is_its_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "workspace/output", lines(3))
    (tmp_path / "workspace/model").mkdir()
    write_run(tmp_path / "fetched", lines(3))
    assert [one.run for one in found(tmp_path / "workspace", "initializer-tune")] == ["tune"]
    assert [one.run for one in found(tmp_path / "fetched", "tune")] == ["tune"]


def test_published_adapters_are_no_runs(tmp_path: Path) -> None:
    folder = claims(tmp_path)["adapters"]
    assert find(ResultFolder("adapters", "ml", folder)) == ([], "")
    source = ResultFolder("adapters", "ml", folder)
    assert adapters_in(source, "live") == ["tone-1", "tone-2"]
    assert adapters_in(source, "none") == []
    assert adapters_in(source, "no\0name") == []
    part = ResultFolder("adapters", "ml", folder / "live", "live")
    assert adapters_in(part, "live") == ["tone-1", "tone-2"]
    assert adapters_in(part, "other") is None
    other = folder.rename(tmp_path / "other")
    folder.mkdir()
    (folder / "live").symlink_to(other / "live")
    assert adapters_in(source, "live") == []


def test_the_newest_number_of_each_metric_counts(tmp_path: Path) -> None:
    told: list[dict[str, float | None]] = [
        {"step": 1, "loss": 3.0, "eval_loss": 2.5},
        {"step": 2, "loss": 2.0},
        {"step": 3, "loss": None},
    ]
    folder = write_run(tmp_path / "output", told)
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('[1]\n{"step": 1e999, "loss": true}\n{"step": 4, "lo')  # the last line is being written
    (left,) = found(tmp_path)
    assert left.last == {"step": 3, "loss": 2.0, "eval_loss": 2.5}


def test_too_many_folders_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_MOST_FOLDERS", 20)
    for number in range(30):
        (tmp_path / f"{number:02}").mkdir()
    left, problem = find(ResultFolder("wide", "ml", tmp_path))
    assert left == []
    assert problem == "wide has more than 20 folders: name one further down, with fewer"


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    output = write_run(tmp_path / "claim/output", lines(3))
    os.mkfifo(output / "report.html")
    os.mkfifo(output / "stoker.json")
    (left,) = found(tmp_path / "claim")
    assert (left.facts, left.reported) == ({}, False)
    with pytest.raises(OutsideError, match=r"report\.html of claim is not a report file"):
        read_report(left)
    os.mkfifo(output / "evaluation.json")
    with pytest.raises(OutsideError, match=r"evaluation\.json of claim is not an evaluation file"):
        check(left)
    (tmp_path / "claim/pipe/output").mkdir(parents=True)
    os.mkfifo(tmp_path / "claim/pipe/output/metrics.jsonl")
    assert len(found(tmp_path / "claim")) == 1


def test_a_report_behind_a_folder_that_became_a_link_is_not_read(tmp_path: Path) -> None:
    output = write_run(tmp_path / "claim/a/output", lines(3))
    (output / "report.html").write_text("ours")
    (left,) = found(tmp_path / "claim")
    assert read_report(left) == b"ours"
    other = write_run(tmp_path / "other/output", lines(3))
    (other / "report.html").write_text("a secret")
    (tmp_path / "claim/a").rename(tmp_path / "claim/b")
    (tmp_path / "claim/a").symlink_to(tmp_path / "other")
    with pytest.raises(OSError):  # noqa: PT011 - Linux says ELOOP or ENOTDIR
        read_report(left)
    with pytest.raises(OutsideError, match="leads out of it"):
        check(left)


def test_links_within_a_claim_are_fine(tmp_path: Path) -> None:
    output = write_run(tmp_path / "output", lines(3))
    (tmp_path / "kept.json").write_text(json.dumps({"x": 1}))
    (output / "evaluation.json").symlink_to("../kept.json")
    check(found(tmp_path)[0])


def test_a_folder_whose_name_is_no_text_is_left_out(tmp_path: Path) -> None:
    for name in (b"\xff", b"a"):
        write_run(tmp_path / os.fsdecode(name) / "output", lines(1))
    assert [one.run for one in found(tmp_path)] == ["a"]


def test_names_say_which_namespace_a_folder_belongs_to(tmp_path: Path) -> None:
    given = [f"other/claim={tmp_path}", f"other/part/a/b={tmp_path}", f"mine={tmp_path}", str(tmp_path)]
    told = [(source.name, source.namespace, source.below) for source in named(given, "ml")]
    assert told == [("claim", "other", ""), ("part", "other", "a/b"), ("mine", "ml", ""), (tmp_path.name, "ml", "")]
