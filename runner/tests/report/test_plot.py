"""`stoker plot`: several runs in one page or picture, and one line where it cannot."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from runner.tests.report.hostile import read_page, titles, write_run

from stoker.commands.main import main
from stoker.report.figures import figures_between
from stoker.report.runs import read_run
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
    assert titles(root) == ["Loss"]
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
        (("--to", "x.png", "tokens"), 65, "a picture shows no metric of tokens: wait until the loss is logged"),
        (("--to", "x.svg", "run"), 64, "--to x.svg is neither a page nor a picture: let it end in .html or .png"),
        (("--to", "missing/x.html", "run"), 0, ""),
        (("--to", "afile/x.html", "run"), 64, "afile is a file: name a folder"),
        (("--to", "afile/below/x.html", "run"), 64, "afile is a file: name a folder"),
        ((), 64, "missing argument"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run_in(tmp_path / "run", 1.0)
    run_in(tmp_path / "empty")
    (tmp_path / "afile").touch()
    write_run(tmp_path / "tokens" / "output", [{"step": 1, "num_tokens": 5}])
    done = plot(*words)
    assert done.exit_code == code, done.output
    if code:
        (line,) = done.output.splitlines()
        assert line.startswith("stoker: error: ")
        assert said in line


def test_a_run_has_one_colour_in_all_figures(tmp_path: Path) -> None:
    runs = [run_in(tmp_path / "first", 3.0, 2.0)]
    for name in ("second", "third"):
        lines = [{"step": step, "loss": 1.0, "grad_norm": 1.0} for step in (1, 2)]
        runs.append(write_run(tmp_path / name / "output", lines))
    target = tmp_path / "all.html"
    assert plot("--to", target, *runs).exit_code == 0
    root, _ = read_page(target.read_text())
    drawn = {}
    for figure in root.iter("figure"):
        styles = [path.get("class", "") for path in figure.iter("path")]
        drawn["".join(figure[0].itertext())] = [style for style in styles if style.startswith("s")]
    # Each line is in the picture and in the legend.
    assert drawn == {"Loss": ["s0", "s1", "s2"] * 2, "Gradient norm": ["s1", "s2"] * 2}
    assert plot("--to", tmp_path / "all.png", *runs).exit_code == 0
    picture = imread(tmp_path / "all.png")[:, :, :3]
    right = picture[:, picture.shape[1] // 2 :]
    assert [(abs(right - to_rgb(f"C{number}")).max(axis=2) < 0.01).any() for number in range(3)] == [False, True, True]


def test_no_two_lines_of_a_figure_look_the_same(tmp_path: Path) -> None:
    runs = {}
    for number in range(10):
        run = read_run(run_in(tmp_path / f"{number}", 2.0, 1.0))
        assert run is not None
        runs[f"{number}"] = replace(run, curves={"reward": run.curves["loss"], **(run.curves if number else {})})
    reward, loss = sorted(figures_between(runs), key=lambda figure: figure.title, reverse=True)
    assert [series.label for series in reward.series] == [str(number) for number in range(8)]
    assert [(series.label, series.style) for series in loss.series][-1] == ("8", 0)
    assert (reward.left_out, loss.left_out) == (2, 1)


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
