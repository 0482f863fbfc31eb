"""`stoker plot`: several runs in one page or picture, and one line where it cannot."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from runner.tests.report.hostile import read_page, write_run

from stoker.commands.main import main
from stoker.report.write import labelled


def plot(*words: object) -> Result:
    return CliRunner().invoke(main, ["plot", *map(str, words)])


def run_in(folder: Path, *losses: float) -> Path:
    return write_run(folder / "output", [{"step": step + 1, "loss": loss} for step, loss in enumerate(losses)])


def test_runs_are_compared_in_one_page(tmp_path: Path) -> None:
    first, second = run_in(tmp_path / "first", 3.0, 2.0), run_in(tmp_path / "second", 3.0, 1.0)
    (second / "stoker.json").write_text(json.dumps({"method": "dpo", "seconds": 5, "steps": 2}))
    target = tmp_path / "both.html"
    # A workspace, and a file of metrics.
    done = plot("--to", target, first.parent, second / "metrics.jsonl")
    assert (done.exit_code, done.output) == (0, f"written: {target}\n")
    again = plot("--to", target, "--output", "json", first.parent, second)
    assert json.loads(again.output) == {"written": str(target)}
    root, _ = read_page(target.read_text())
    assert ["".join(found.itertext()) for found in root.iter("figcaption")] == ["Loss"]
    assert ["".join(found.itertext()) for found in root.iter("li")] == ["first", "second"]
    rows = [[cell.text for cell in row] for row in root.iter("tr")]
    assert rows[1:] == [["first", "–", "–", "–", "–", "2"], ["second", "dpo", "–", "2", "0:05 min", "1"]]


def test_one_run_gets_its_report(tmp_path: Path) -> None:
    target = tmp_path / "one.html"
    assert plot("--to", target, run_in(tmp_path / "run", 3.0, 2.0)).exit_code == 0
    assert "Training report" in target.read_text()


def test_labels_are_as_short_as_they_can_be(tmp_path: Path) -> None:
    folders = [run_in(tmp_path / name, 1.0) for name in ("a/run", "b/run", "c")]
    assert [*labelled(folders)] == ["a/run", "b/run", f"{tmp_path.name}/c"]
    assert [*labelled([folders[0], folders[0].parent])] == ["run"], "the same run once"
    (tmp_path / "output").symlink_to(folders[0])
    assert len(labelled([folders[0], tmp_path])) == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("none",), 66, "none has no metrics.jsonl: name the output folder of a run"),
        (("empty",), 65, "has no metrics yet: wait until the run has logged its first step"),
        (("--to", "x.svg", "run"), 64, "--to x.svg is neither a page nor a picture: let it end in .html or .png"),
        (("--to", "missing/x.html", "run"), 0, ""),
        ((), 64, "missing argument"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run_in(tmp_path / "run", 1.0)
    run_in(tmp_path / "empty")
    done = plot(*words)
    assert done.exit_code == code, done.output
    if code:
        (line,) = done.output.splitlines()
        assert line.startswith("stoker: error: ")
        assert said in line


def test_a_picture_without_matplotlib_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # importing it fails as if it were not there
    done = plot("--to", tmp_path / "x.png", run_in(tmp_path, 1.0))
    assert done.exit_code == 78
    assert done.output.count("pip install './runner[plot]'") == 1
    assert len(done.output.splitlines()) == 1


def test_a_picture_is_a_png(tmp_path: Path) -> None:
    runs = [run_in(tmp_path / name, 3.0, last) for name, last in (("a_$x^$", 2.0), ("_b", 1.0))]
    target = tmp_path / "x.png"
    assert plot("--to", target, *runs).exit_code == 0
    picture = imread(target)[:, :, :3]
    for number in range(len(runs)):  # a curve has hundreds of points of its colour
        assert (abs(picture - to_rgb(f"C{number}")).max(axis=2) < 0.01).sum() > 100
