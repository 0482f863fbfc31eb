"""Which files bring a replica to the newest version, and how they come and go."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from stoker.contract.exits import ExitCode, RunError
from stoker.serve.adapters import live
from stoker.serve.weights import files, workers
from stoker.serve.weights.files import WeightsFile


def test_what_vllm_loads_names_the_same_files() -> None:
    # It imports torch, so it is read here, not imported.
    code = ast.parse(Path(workers.__file__).with_name("in_vllm.py").read_text())
    values = {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in code.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
    }
    assert values["(_CHECKSUMS, _TENSORS)"] == (files.CHECKSUMS, files.TENSORS)


def listed(*names: str) -> list[WeightsFile]:
    """Return files of these names."""
    found = []
    for name in names:
        version, _, earlier = name[1:].partition("-")
        found.append(WeightsFile(int(version), int(earlier) if earlier else None, Path("/run") / name))
    return found


@pytest.mark.parametrize(
    ("there", "held", "bad", "way"),
    [
        ("", None, "", ""),
        ("w0", None, "", "w0"),
        ("w0", 0, "", ""),
        ("w0 d1-0 d2-1", None, "", "w0 d1-0 d2-1"),
        ("w0 d1-0 d2-1", 0, "", "d1-0 d2-1"),
        ("w0 d1-0 d2-1", 1, "", "d2-1"),
        ("w0 d1-0 d2-1", 2, "", ""),
        # A version that nobody had time for is left out.
        ("w0 d4-0 d9-4", 0, "", "d4-0 d9-4"),
        # Differences are smaller than whole weights, but what a late replica takes begins as late as possible.
        ("w0 d1-0 w2 d2-1 d3-2", 1, "", "d2-1 d3-2"),
        ("w0 d1-0 w2 d2-1 d3-2", None, "", "w2 d3-2"),
        # What is damaged is gone around, or as far as it goes.
        ("w0 d1-0 d2-1 d3-2", 1, "d2-1", ""),
        ("w0 d1-0 d2-1 d3-2", None, "d2-1", "w0 d1-0"),
        ("w0 d1-0 d2-1 w2 d3-2", 1, "d2-1", "w2 d3-2"),
        ("w0 d1-0 w2", 1, "w2", ""),
        # The first files are gone, and with them the way from an old version.
        ("w5 d6-5", 2, "", "w5 d6-5"),
        # A version is never left for an older one.
        ("w0 d1-0", 7, "", ""),
    ],
)
def test_the_way_to_the_newest_version(there: str, held: int | None, bad: str, way: str) -> None:
    found = files.route(listed(*there.split()), held, bad.split())
    assert [file.path.name for file in found] == way.split()


def fill(draft: Path) -> None:
    (draft / files.TENSORS).write_text("x")


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        # As safetensors has it.
        ValueError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
    ids=["python", "safetensors"],
)
def test_a_version_appears_whole(tmp_path: Path, error: Exception) -> None:
    def fails(draft: Path) -> None:
        fill(draft)
        raise error

    run = tmp_path / "run"
    assert files.read(run) == []
    with pytest.raises(RunError, match="is full") as caught:
        files.place(run, 0, None, fails)
    assert caught.value.code is ExitCode.CONFIG
    assert [*run.iterdir()] == []
    assert files.place(run, 0, None, fill).path == run / "w0"
    assert files.place(run, 3, 0, fill).path == run / "d3-0"
    (run / "d03-0").mkdir()
    assert {(file.version, file.earlier) for file in files.read(run)} == {(0, None), (3, 0)}


def test_a_replica_that_nobody_told_follows_the_run_that_wrote_last(tmp_path: Path) -> None:
    assert files.newest_run(tmp_path) == ""
    for run in ("a-a0", "a-a1"):
        files.place(tmp_path / run, 0, None, fill)
        os.utime(tmp_path / run)
    assert files.newest_run(tmp_path) == "a-a1"


def test_an_attempt_removes_the_weights_of_the_one_before(tmp_path: Path) -> None:
    first = live.claim(tmp_path, "run", "job")
    files.place(tmp_path / first, 0, None, fill)
    files.place(tmp_path / first, 1, 0, fill)
    second = live.claim(tmp_path, "run", "job")
    assert second != first
    assert files.read(tmp_path / first) == []
