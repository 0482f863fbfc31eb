"""How workers (`pytest -n 3`) share the suites.

One worker runs all that needs the cluster; the others run the rest meanwhile. A test that measures time is marked
`alone`: no other test runs beside it. These tests come last, so that the workers wait for each other only once.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cluster.artifacts import cache_root
from cluster.errors import CANNOT_RUN_HERE, OK, ClusterError
from cluster.provider import choose
from stoker.plan.devices import visible_devices

NEED_THE_CLUSTER = ("tests/cluster/tests/test_live.py", "tests/e2e/")


ALONE = "stoker/alone"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put tests that run alone at the end; on a machine without a GPU, skip each test that needs one by its name."""
    items.sort(key=_alone)
    assert config.cache is not None
    config.cache.set(ALONE, [item.nodeid for item in items if _alone(item)])  # the scheduler does not see marks
    if not visible_devices("nvidia", os.environ, Path("/dev")):
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU on this machine (/dev/nvidia0)"))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out whole modules, whose fixtures are made once.

    All that needs the cluster is one piece of work, and so is all that runs alone.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def schedule(self) -> None:
            assert config.cache is not None
            self.alone = frozenset(config.cache.get(ALONE, ()))
            super().schedule()

        def _split_scope(self, nodeid: str) -> str:
            if nodeid in self.alone:
                return "alone"
            return "cluster" if nodeid.startswith(NEED_THE_CLUSTER) else nodeid.partition("::")[0]

    config.option.loadscopereorder = False  # the order of the command line
    return Scheduler(config, log)


class ClusterStart:
    """The start of the cluster in a process of its own, and its end once no test needs it any more.

    Args:
        needing: the tests that need it.
        turns: the folder in which tests take turns.

    Raises:
        ClusterError: this machine has no cluster to start; the tests say why.
    """

    log = cache_root() / "cluster-start.log"

    def __init__(self, needing: set[str], turns: Path) -> None:
        self._needing = needing
        self._turns = turns
        self._ending: Future[None] | None = None
        self._provider = choose()
        self._was_up = all(health.healthy for health in self._provider.status())
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "e2e.ahead"],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def failed(self) -> bool:
        """Whether it ended by itself and without a cluster that could have been started here."""
        return self._process.poll() not in (None, OK, CANNOT_RUN_HERE)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Begin to stop after the last of the tests that need the cluster, while others run on."""
        if nodeid in self._needing:
            self._needing.remove(nodeid)
            if not self._needing:
                self._ending = ThreadPoolExecutor(1).submit(self._stop)

    def end(self) -> None:
        """Stop it if it has not ended, and the cluster unless that was up before."""
        if self._ending:
            self._ending.result()
        else:
            self._stop()

    def _stop(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)  # with the builds that it waits for
        if self._process.wait() != CANNOT_RUN_HERE and not self._was_up:
            with _turn(self._turns, alone=False):
                self._provider.down()


_START = pytest.StashKey[ClusterStart | None]()


def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Start the cluster as soon as it is known that a test needs it."""
    stash = node.config.stash
    needing = {name for name in ids if name.startswith(NEED_THE_CLUSTER)}
    if _START not in stash and needing:
        try:
            assert node.config.cache is not None
            stash[_START] = start = ClusterStart(needing, node.config.cache.mkdir("turns"))
            node.config.pluginmanager.register(start)
        except ClusterError:
            stash[_START] = None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop what was started."""
    if start := session.config.stash.get(_START, None):
        start.end()


_MEASURED = "measured"


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Takes a line about what a test has measured, to be shown at the end: workers do not show what tests print."""
    return lambda line: record_property(_MEASURED, line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show what tests have measured, and what a start has printed that failed."""
    reports = [one for some in terminalreporter.stats.values() for one in some if isinstance(one, pytest.TestReport)]
    # The reports of a test's set-up, call and tear-down each have what was told until then.
    lines = dict.fromkeys(line for one in reports for name, line in one.user_properties if name == _MEASURED)
    if lines:
        terminalreporter.section("measured")
    for line in lines:
        terminalreporter.write_line(str(line))
    start = config.stash.get(_START, None)
    if start and start.failed:
        terminalreporter.section("start of the cluster, beside the tests")
        terminalreporter.write_line(start.log.read_text(errors="replace")[-5000:])


_TURN = pytest.StashKey[ExitStack]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Let a test that is marked `alone` wait for those that run, and others wait for it."""
    assert item.config.cache is not None
    stash = item.config.stash
    if _TURN not in stash:
        stash[_TURN] = _turn(item.config.cache.mkdir("turns"), _alone(item))
    try:
        return (yield)
    finally:
        # Several in a row wait only once.
        if nextitem is None or not (_alone(item) and _alone(nextitem)):
            stash[_TURN].close()
            del stash[_TURN]


def _alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


def _turn(folder: Path, alone: bool) -> ExitStack:
    """Wait for the turn of a test; closing what this returns ends it."""
    held = ExitStack()
    running = held.enter_context((folder / "running").open("w"))
    with (folder / "next").open("w") as following:
        fcntl.flock(following, fcntl.LOCK_EX)  # who waits to be alone lets nobody pass
        fcntl.flock(running, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    return held
