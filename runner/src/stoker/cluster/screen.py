"""What a user of `stoker local` sees: the lines of all nodes, and on a terminal one line below them that lives.

Elsewhere each line is printed as it comes. On a terminal, a line that several nodes print is shown once, and progress
is not printed again and again. The living line is rich's; without rich, the terminal gets plain lines too.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from stoker.contract.variables import PROGRESS_SECONDS
from stoker.contract.words import write_line

Show = Callable[[str, str], None]
"""Takes the title of a process and a line of its output."""

# How long a line waits for other nodes to print it too.
_MERGE_SECONDS = 0.4
_PROGRESS = re.compile(r"\[stoker\] (step \d+ of \d+ \(.*)")
_NODE = re.compile(r"node-(\d+)")


def show_plainly(title: str, line: str) -> None:
    """Print a line with the title of its process."""
    write_line(sys.stdout, f"[{title}] {line}")


@dataclass(slots=True)
class _Waiting:
    """A line that other nodes may print too."""

    line: str
    titles: list[str]
    since: float


class Merged:
    """Shows a line that several nodes print as one, and keeps the order of each node's lines.

    Args:
        nodes: how many nodes there are.
        show: shows a line that nobody else will print.
    """

    def __init__(self, nodes: int, show: Show) -> None:
        self._nodes = nodes
        self._show = show
        self._waiting: deque[_Waiting] = deque()
        self._lock = threading.Lock()

    def add(self, title: str, line: str, now: float) -> None:
        """Take a line of a process.

        Args:
            title: of the process.
            line: the line.
            now: seconds of a clock that never goes back.
        """
        with self._lock:
            self._flush(now)
            same = self._printed_by_others(title, line) if _NODE.fullmatch(title) else None
            if same is None:
                self._waiting.append(_Waiting(line, [title], now))
            else:
                same.titles.append(title)
            self._flush(now)

    def flush(self, now: float) -> None:
        """Show the lines that have waited long enough, and those that all nodes have printed."""
        with self._lock:
            self._flush(now)

    def _printed_by_others(self, title: str, line: str) -> _Waiting | None:
        """Return the same line of other nodes, if it comes after all lines of this one."""
        found = None
        for waiting in reversed(self._waiting):
            if title in waiting.titles:
                break
            if waiting.line == line and _NODE.fullmatch(waiting.titles[0]):
                found = waiting
        return found

    def _flush(self, now: float) -> None:
        while self._waiting:
            first = self._waiting[0]
            alone = not _NODE.fullmatch(first.titles[0])
            if not (alone or len(first.titles) == self._nodes or now - first.since >= _MERGE_SECONDS):
                return
            self._waiting.popleft()
            self._show(_together(first.titles), first.line)


def _together(titles: list[str]) -> str:
    """Return one title for several nodes, for example `node-0,1`."""
    if len(titles) == 1:
        return titles[0]
    return "node-" + ",".join(str(rank) for rank in sorted(int(title.removeprefix("node-")) for title in titles))


@contextmanager
def screen(name: str, nodes: int, environ: Mapping[str, str]) -> Iterator[tuple[Show, dict[str, str]]]:
    """Yield what shows lines while the body runs, and variables that the nodes need for it.

    Args:
        name: the run.
        nodes: how many nodes it has.
        environ: the environment, which says what the terminal can do.
    """
    if not (sys.stdout.isatty() and sys.stderr.isatty()) or environ.get("TERM") == "dumb":
        yield show_plainly, {}
        return
    try:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        yield show_plainly, {}
        return

    def living(progress: str) -> Text:
        return Text(f"{name}: {progress}", no_wrap=True, overflow="ellipsis", style="bold")

    merged, ended, last = Merged(nodes, show_plainly), threading.Event(), "starting"

    def show(title: str, line: str) -> None:
        nonlocal last
        if title == "node-0" and (progress := _PROGRESS.fullmatch(line)):
            last = progress[1]
            live.update(living(last))
        else:
            merged.add(title, line, time.monotonic())

    def flush() -> None:
        while not ended.wait(_MERGE_SECONDS / 2):
            merged.flush(time.monotonic())

    # Whatever is printed meanwhile, by anybody in this process, comes above the line.
    with Live(living(last), console=Console(stderr=True, highlight=False), refresh_per_second=4) as live:
        flusher = threading.Thread(target=flush, daemon=True)
        flusher.start()
        try:
            yield show, {PROGRESS_SECONDS: "1"}
        finally:
            ended.set()
            flusher.join()
            merged.flush(float("inf"))
