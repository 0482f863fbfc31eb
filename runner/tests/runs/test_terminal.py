"""What a person sees on a real terminal, and that nobody else pays for it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from runner.tests.runs.api_server import Cluster, miss_second_look
from runner.tests.runs.objects import claim, ended, jobset, pod, progress, real_jobset, trainjob, unschedulable

SOURCE = Path(__file__).parents[2] / "src"
LONG = "a-run-whose-name-has-33-letters-x"
# What a terminal obeys and does not show.
CONTROLS = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


def on_terminal(words: list[str], **env: str) -> tuple[int, str]:
    """Run a command of `stoker` with a terminal as its output; return its exit code and what the terminal got."""
    ours, theirs = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    environment: Mapping[str, str] = {**plain, "PYTHONPATH": str(SOURCE), "TERM": "xterm-256color", **env}
    process = subprocess.Popen([sys.executable, "-m", "stoker", *words], stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    got = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # Linux' way to say that nobody writes any more
            break
        if not data:
            break
        got += data
    os.close(ours)
    return process.wait(), got.decode()


@pytest.fixture
def busy(cluster: Cluster, kubeconfig: Path) -> Cluster:
    """A cluster with a run that trains and one that waits."""
    cluster.add("trainjobs", trainjob(trainerStatus=progress(loss=1.5)), trainjob("wait-for-a-node"))
    cluster.add("jobsets", jobset(), jobset("wait-for-a-node"))
    cluster.add("pods", pod(), unschedulable("0/3 nodes are available: [x]", run="wait-for-a-node"))
    return cluster


@pytest.mark.parametrize(
    "words", [["runs"], ["runs", "-A"], ["top", "--times", "1"], ["status", LONG]], ids=["runs", "all", "top", "status"]
)
def test_a_narrow_terminal_gets_tables_that_fit_and_have_the_state(busy: Cluster, words: list[str]) -> None:
    busy.add("trainjobs", trainjob(LONG))
    busy.add("jobsets", jobset(LONG))
    busy.add("pods", pod(run=LONG))
    code, text = on_terminal(words, COLUMNS="40", NO_COLOR="1")
    assert code == 0
    lines = [line.rstrip() for line in re.sub(CONTROLS, "", text).splitlines()]
    assert max(map(len, lines)) <= 40
    row = "node-0" if words[0] == "status" else LONG[:16]
    assert any(row in line and "Running" in line for line in lines)
    assert not re.search(r"\x1b\[[\d;]*3\d", text), "a colour, in spite of NO_COLOR"


def test_a_terminal_gets_colours_and_what_pods_say_is_text(busy: Cluster) -> None:
    busy.add("pods", unschedulable("0/3 nodes are available: [x]\x1b[8m", run="wait-for-a-node"))
    code, text = on_terminal(["status", "wait-for-a-node"], COLUMNS="120")
    assert code == 0
    assert "0/3 nodes are available: [x]\N{REPLACEMENT CHARACTER}[8m" in text
    assert "\x1b[" in text


@pytest.mark.usefixtures("kubeconfig")
def test_a_narrow_terminal_gets_a_bar_for_each_file(cluster: Cluster, tmp_path: Path) -> None:
    output = tmp_path / "claim/output"
    output.mkdir(parents=True)
    (output / "adapter_model.safetensors").write_bytes(bytes(200_000))
    cluster.claim = tmp_path / "claim"
    cluster.add("trainjobs", trainjob(**ended("Complete", "AllJobsCompleted")))
    cluster.add("jobsets", real_jobset())
    cluster.add("persistentvolumeclaims", claim(phase="Bound"))
    code, text = on_terminal(["get", "tune", str(tmp_path / "out")], COLUMNS="40", NO_COLOR="1")
    assert code == 0, text
    assert (tmp_path / "out/adapter_model.safetensors").stat().st_size == 200_000
    bars = [line.rstrip() for line in re.split(r"[\r\n]+", re.sub(CONTROLS, "", text)) if "━" in line]
    assert any(line.startswith("1 of 1: adapter") and line.endswith(" 100%") for line in bars), text
    assert max(map(len, bars)) <= 40, bars
    assert not re.search(r"\x1b\[[\d;]*3\d", text), "a colour, in spite of NO_COLOR"


def test_top_is_a_view_of_its_own(busy: Cluster) -> None:
    code, text = on_terminal(["top", "--times", "1"], COLUMNS="100", LINES="20")
    assert code == 0
    assert "\x1b[?1049h" in text, "no screen of its own"
    assert "tune" in text


def test_top_says_what_has_no_room(busy: Cluster) -> None:
    busy.add("trainjobs", *(trainjob(f"run-{number}") for number in range(20)))
    code, text = on_terminal(["top", "--times", "1"], COLUMNS="100", LINES="10")
    assert code == 0
    # The heads, and this line itself, take two of the ten.
    assert "and 14 more" in text


def test_top_shows_that_the_cluster_is_gone(busy: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    miss_second_look(busy, monkeypatch)
    code, text = on_terminal(["top", "--times", "2", "--interval", "1"], COLUMNS="100", LINES="20")
    assert code == 0
    second = re.sub(CONTROLS, "", text.rpartition("\x1b[H")[2])
    assert re.search(r"this is \d+s old: the cluster at http://\S+ does not answer", second)
    assert "wait-for-a-node" in second


def test_nobody_else_imports_the_extras() -> None:
    program = "import sys, stoker.commands.main as _; print({'kubernetes', 'rich'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env={"PYTHONPATH": str(SOURCE)}
    )
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("shell", "words", "printed"),
    [
        ("bash", {"COMP_WORDS": "stoker expla", "COMP_CWORD": "1"}, "plain,explain\n"),
        ("zsh", {"COMP_WORDS": "stoker expla", "COMP_CWORD": "1"}, "plain\nexplain\nExplain why"),
        ("fish", {"COMP_WORDS": "stoker expla", "COMP_CWORD": "expla"}, "plain,explain\tExplain why"),
    ],
)
def test_the_shell_completes_commands(shell: str, words: dict[str, str], printed: str) -> None:
    def completed(how: str) -> str:
        program = "import sys; sys.argv = ['stoker']; from stoker.__main__ import main; main()"
        env = {"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"], "_STOKER_COMPLETE": f"{shell}_{how}", **words}
        done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, env=env)
        return done.stdout

    assert completed("complete").startswith(printed)
    assert f"_STOKER_COMPLETE={shell}_complete" in completed("source")
