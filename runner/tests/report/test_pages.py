"""Pages of runs: whole, alone, without secrets, and unmoved by what runs and models write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from runner.tests.report.hostile import TEXTS, group, read_page, titles, write_run

from browser.debian import NoChromiumError
from browser.page import Page, browsing
from stoker.commands.main import main
from stoker.report.write import compare, write_report

SECRET = "hf_" + "a1B2" * 8
RL = [
    {
        "step": step, "loss": 0.5 / step, "learning_rate": 1e-5, "grad_norm": 1.0, "tokens_per_second": 900.0,
        "peak_memory_gib": 1.5, "reward": step / 10, "rewards/short/mean": step / 10, "staleness/mean": 1.0,
        "staleness/max": 2.0, "sampling/ratio/mean": 1.01, "rollout/wait_seconds": 0.1, "staleness/histogram": [4, 4],
        "guard/error": None, **({"eval_loss": 1.0, "eval_runtime": 3.0, "eval_entropy": 2.0} if step % 5 == 0 else {}),
    }
    for step in range(1, 11)
]  # fmt: skip


def test_a_report_shows_what_is_known_of_a_run(tmp_path: Path) -> None:
    write_run(tmp_path, RL, [group(step, "1+1=", "2", "3") for step in range(10)])
    facts = {"method": "grpo_async", "base_model": {"name_or_path": "/workspace/model"}, "seconds": 61.2, "steps": 10}
    assert write_report(tmp_path, facts)
    root, _ = read_page((tmp_path / "report.html").read_text())
    assert titles(root) == [
        "Loss", "Reward", "Rewards by function", "Learning rate", "Gradient norm", "Tokens per second",
        "Peak memory (GiB)", "Staleness of samples (steps)", "Ratio of probabilities, trainer to samplers",
        "Time waited (s)", "Evaluation: entropy",
    ]  # fmt: skip
    text = " ".join(root.itertext())
    assert all(word in text for word in ("grpo_async", "/workspace/model", "1:01 min", "eval_loss", "staleness 1"))
    # The first and the last samples, and some between.
    steps = [int(found) for found in re.findall(r"Step (\d+)", text)]
    assert (steps[0], steps[-1], len(steps)) == (0, 9, 8)
    # Both schemes of colours, and every figure is told to those who do not see it.
    assert "prefers-color-scheme: dark" in text
    pictures = [found for found in root.iter("svg") if found.get("role") == "img"]
    assert len(pictures) == len(titles(root))
    assert all(picture.get("aria-label") for picture in pictures)


def test_a_page_needs_no_network(tmp_path: Path) -> None:
    write_run(tmp_path, RL)
    assert write_report(tmp_path, {"method": "sft"})
    compare([tmp_path, write_run(tmp_path / "other", RL)], tmp_path / "both.html")
    for name in ("report.html", "both.html"):
        text = (tmp_path / name).read_text()
        read_page(text)
        assert not re.search(r"https?:|//[a-z]|@import|url\(|<script", text, re.IGNORECASE)
        assert "default-src 'none'" in text


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    lines = [{"step": step, "loss": 1.0, **{f"eval_{text}": 1.0 for text in TEXTS}} for step in (1, 2)]
    samples = [group(step, text, text, *TEXTS) for step, text in enumerate(TEXTS)]
    write_run(tmp_path / TEXTS[7], lines, samples)
    facts = {"method": TEXTS[0], "base_model": {"name_or_path": TEXTS[1]}, "versions": {TEXTS[2]: TEXTS[3]}}
    assert write_report(tmp_path / TEXTS[7], facts)
    root, _ = read_page((tmp_path / TEXTS[7] / "report.html").read_text(encoding="utf-8"))
    shown = "".join(root.itertext())
    # As they were written, but for what no page may hold.
    for text in (*TEXTS[:6], TEXTS[7]):
        assert text in shown
    assert "\u202e" not in shown
    assert "\x1b" not in shown
    compare([tmp_path / TEXTS[7], write_run(tmp_path / "<b>&", lines)], tmp_path / "both.html")
    read_page((tmp_path / "both.html").read_text())


def test_secrets_are_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "a secret of this machine")
    told = f"token {SECRET}, a secret of this machine, and postgres://me:hunter22@db/x"
    write_run(tmp_path, [{"step": 1, "loss": 1.0, f"rewards/{SECRET}/mean": 1.0}], [group(0, told, told)])
    assert write_report(tmp_path, {"method": "sft", "base_model": {"name_or_path": told}, "image_version": SECRET})
    text = (tmp_path / "report.html").read_text()
    for secret in (SECRET, "a secret of this machine", "hunter22"):
        assert secret not in text
    assert text.count("(not shown)") > 5


@pytest.mark.parametrize(
    "text",
    [
        "", "\n\n", "null\n", "[]\n", '{"step": "1"}\n', '{"step": -1, "loss": 1}\n', '{"step": 1, "loss": NaN}\n',
        '{"step": 1, "loss": 1e999}\n', '{"step": 1, "loss": true}\n', '{"step": 1, "loss": [1]}\n', "\xff\n",
        '{"step": 1, "loss": 1' + "0" * 400 + "}\n", "[" * 100_000, '{"step": 1, "lo',
    ],
)  # fmt: skip
def test_what_is_no_metric_is_left_out(tmp_path: Path, text: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(text, encoding="latin-1")
    assert not write_report(tmp_path, {})
    assert not (tmp_path / "report.html").exists()
    # What is good stays, whatever stands beside it.
    with path.open("a") as stream:
        stream.write('\n{"step": 7, "loss": 0.25}\n{"step": 7, "loss": 3}\n{"step": 8, "lo')
    assert write_report(tmp_path, {})
    root, _ = read_page((tmp_path / "report.html").read_text())
    (row,) = ([cell.text for cell in row] for row in root.iter("tr") if row[0].text == "loss")
    assert row == ["loss", "0.25", "0.25", "0.25", "0.25"]


def test_facts_of_any_kind_are_shown_or_left_out(tmp_path: Path) -> None:
    write_run(tmp_path, RL, [{"step": 1, "samples": [5, {}, {"rewards": [None], "version": "x", "text": [1]}]}])
    values: tuple[object, ...] = (None, [], {}, "", 5, -1.5, "x" * 9999)
    for odd in values:
        names = ("method", "base_model", "framework", "steps", "world_size", "seconds", "time", "versions")
        assert write_report(tmp_path, dict.fromkeys(names, odd))
        read_page((tmp_path / "report.html").read_text())


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A browser."""
    try:
        with browsing() as found:
            yield found
    except NoChromiumError as error:
        pytest.skip(str(error))


def looks_right(page: Page, path: Path, width: int, dark: bool) -> None:
    """Show a page: it complains of nothing, asks nobody, and all curves can be seen without scrolling sideways."""
    del page.console[:], page.requests[:]
    page.open(path.as_uri(), width, dark)
    page.picture(path.with_suffix(".png"))
    assert page.console == []
    assert page.requests == [path.as_uri()]
    assert path.with_suffix(".png").stat().st_size > 10_000
    assert page.run("document.documentElement.scrollWidth") <= width
    curves = "[...document.querySelectorAll('svg[role=img]')]"
    assert page.run(f"{curves}.length > 0 && {curves}.every((one) => one.getBoundingClientRect().width > 100)")


@pytest.mark.full  # fetches Chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_a_browser_shows_a_run_and_a_comparison_of_runs(page: Page, tmp_path: Path, width: int, dark: bool) -> None:
    runs = [tmp_path / name / "output" for name in ("first", "a-run-whose-name-is-as-long-as-kubernetes-allows-for-it")]
    for run in runs:
        write_run(run, RL, [group(0, text, *TEXTS) for text in TEXTS])
        assert write_report(run, {"method": "grpo_async"})
    looks_right(page, runs[0] / "report.html", width, dark)
    both = tmp_path / "both.html"
    done = CliRunner().invoke(main, ["plot", "--to", str(both), *(str(run.parent) for run in runs)])
    assert done.exit_code == 0, done.output
    looks_right(page, both, width, dark)


def test_the_template_is_in_the_package() -> None:
    import stoker.report

    (folder,) = stoker.report.__path__
    assert json.dumps((Path(folder) / "page.html").read_text()).count("$body") == 1
