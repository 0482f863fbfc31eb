"""What a user of `stoker local` sees: nodes' lines merged, and on a terminal one line that lives."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker.cluster.screen import Merged

TALKER = """
import os, sys, time
from stoker.cluster.screen import screen
from stoker.contract.words import say
with screen("tune", 2, os.environ) as (show, told):
    print("told", told, flush=True)
    for step in (1, 50, 100):
        show("node-0", f"[stoker] step {step} of 100 ({step} %), loss 1.5")
        time.sleep(0.4)
    for node in ("node-0", "node-1"):
        show(node, "a word of both")
    show("node-1", "a word of one")
    say("attempt 0: 2 nodes ended with 0")
"""


def merged(*said: tuple[str, str, float], nodes: int = 2) -> list[str]:
    """Return what is shown of lines with their times, and then of the rest."""
    shown: list[str] = []
    merging = Merged(nodes, lambda title, line: shown.append(f"{title}: {line}"))
    for title, line, now in said:
        merging.add(title, line, now)
    merging.flush(float("inf"))
    return shown


def test_a_line_of_several_nodes_is_shown_once() -> None:
    assert merged(("node-0", "a", 0), ("node-1", "a", 0.1), ("node-1", "b", 0.2)) == ["node-0,1: a", "node-1: b"]
    assert merged(("node-2", "a", 0), ("node-0", "a", 0), ("node-1", "a", 0), nodes=3) == ["node-0,1,2: a"]


def test_a_line_waits_for_others_only_a_moment() -> None:
    assert merged(("node-0", "a", 0), ("node-1", "a", 5)) == ["node-0: a", "node-1: a"]


def test_the_lines_of_a_node_keep_their_order() -> None:
    said = [("node-0", "a", 0), ("node-1", "b", 0), ("node-0", "b", 0), ("node-1", "a", 0), ("node-0", "a", 0)]
    shown = merged(*[(title, line, float(now)) for title, line, now in said])
    for node in "01":
        own = [line for title, line, _ in said if title == f"node-{node}"]
        seen = [entry.partition(": ")[2] for entry in shown if node in entry.partition(": ")[0]]
        assert seen == own


def test_nobody_else_is_taken_for_a_node() -> None:
    lines = [("sampler-0", "a", 0.0), ("sampler-1", "a", 0.0), ("node-0", "a", 0.0)]
    assert merged(*lines) == ["sampler-0: a", "sampler-1: a", "node-0: a"]
    # A node that repeats itself does so on the screen.
    assert merged(("node-0", "a", 0), ("node-0", "a", 0)) == ["node-0: a", "node-0: a"]


def talk(columns: int, **environ: str) -> str:
    """Return what the talker writes to a terminal of so many columns."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TALKER],
        stdin=its, stdout=its, stderr=its,
        env={
            **os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": str(columns), "TERM": "xterm", **environ,
        },
    )  # fmt: skip
    os.close(its)
    seen = b""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and select.select([ours], [], [], 60)[0]:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # its end is closed
            break
        seen += piece
    os.close(ours)
    assert process.wait(120) == 0, seen
    return seen.decode()


def test_a_terminal_has_one_line_that_lives_below_the_others() -> None:
    seen = talk(80)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    assert "STOKER_PROGRESS_SECONDS" in plain
    assert "tune: step 100 of 100 (100 %), loss 1.5" in plain
    assert "[stoker] step" not in plain  # it does not scroll
    assert plain.count("a word of both") == 1
    assert "[node-0,1] a word of both" in plain
    assert plain.index("[node-1] a word of one") > plain.index("[node-0,1] a word of both")
    assert "[stoker] attempt 0: 2 nodes ended with 0" in plain
    # The living line is the last one, and stays.
    assert plain.rstrip().splitlines()[-1].strip().startswith("tune: step 100")


def test_a_narrow_terminal_cuts_the_living_line() -> None:
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", talk(20))
    assert "tune: step 100 of 1…" in plain


@pytest.mark.parametrize("how", ["pipe", "dumb"])
def test_elsewhere_each_line_is_printed_as_it_comes(how: str, tmp_path: Path) -> None:
    if how == "dumb":
        text = talk(80, TERM="dumb").replace("\r\n", "\n")
    else:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", TALKER], capture_output=True, text=True, check=True, env=env)
        text = done.stdout
    assert "\x1b" not in text
    assert "told {}" in text
    lines = [line for line in text.splitlines() if line.startswith("[node-")]
    assert lines == [
        *(f"[node-0] [stoker] step {step} of 100 ({step} %), loss 1.5" for step in (1, 50, 100)),
        "[node-0] a word of both", "[node-1] a word of both", "[node-1] a word of one",
    ]  # fmt: skip
