"""Replicas of a fleet in one process: a stand-in for vLLM each, and the real watch with its endpoints."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from runner.tests.serve.adapters.samples import BASE, make_adapter, make_model
from runner.tests.serve.adapters.stand_in import Vllm, serving

from stoker.serve.adapters.endpoints import Endpoints
from stoker.serve.adapters.files import read_base_model
from stoker.serve.adapters.settings import Settings
from stoker.serve.adapters.watch import Watch
from stoker.serve.fleet.control import Control
from stoker.serve.fleet.log import Log
from stoker.serve.fleet.replicas import Replicas
from stoker.serve.vllm import Server


def wait_for(what: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Member:
    """A replica.

    Attributes:
        vllm: its server.
        watch: its watcher.
        name: its address.
    """

    def __init__(self, vllm: Vllm, watch: Watch, name: str) -> None:
        self.vllm, self.watch, self.name = vllm, watch, name


class Members:
    """A fleet.

    Args:
        folder: of published versions.
        stack: ends what runs.
        rank: room for adapters; without it, replicas take whole weights.

    Attributes:
        folder: of published versions.
        all: the replicas that run.
        listed: addresses that requests reach.
    """

    def __init__(self, folder: Path, stack: ExitStack, rank: int | None = 8) -> None:
        self.folder, self._stack, self._rank = folder, stack, rank
        self.all: list[Member] = []
        self.listed: set[str] = set()
        self._model = make_model(folder.parent / "model")
        self.log = Log(folder / ".fleet-test")

    def start(self, count: int = 1, *, looks: bool = True) -> list[Member]:
        """Start replicas; those that have looked are listed."""
        return [self._start(looks=looks) for _ in range(count)]

    def _start(self, *, looks: bool) -> Member:
        vllm = self._stack.enter_context(serving(Vllm()))
        published = self.folder if self._rank else None
        settings = Settings(
            self._model, "tiny", BASE, folder=published, max_rank=self._rank, max_cpu_loras=64, fleet=self.log.folder
        )
        watch = Watch(settings, Server(vllm.address, 5), read_base_model(self._model, BASE))
        wake, stop = threading.Event(), threading.Event()

        def look(told: object, generation: int) -> object:
            state = watch.look_at_once(told, generation)  # type: ignore[arg-type]
            if watch.unfinished:
                wake.set()
            return state

        def run() -> None:
            while not stop.is_set():
                if wake.wait(0.2):
                    wake.clear()
                    watch.look()

        web = Endpoints(("127.0.0.1", 0), lambda: watch.state, look, watch.sees)  # type: ignore[arg-type]
        for work in (lambda: web.serve_forever(0.01), run):
            threading.Thread(target=work, daemon=True).start()
        for undo in (web.server_close, web.shutdown, stop.set):
            self._stack.callback(undo)
        member = Member(vllm, watch, f"127.0.0.1:{web.server_port}")
        self.all.append(member)
        if looks:
            watch.look()
            self.listed.add(member.name)
        return member

    def control(self, timeout: float = 60.0) -> Control:
        """Return a process that answers calls."""
        replicas = Replicas(lambda: {*self.listed}, lambda: {one.name for one in self.all}, None)
        return Control(self.log, replicas, timeout)

    def adapter(self, name: str) -> str:
        """Return the folder of an adapter that no run of ours made."""
        folder = make_adapter(self.folder.parent / "trainer" / name)
        (folder / "stoker.json").unlink()
        return str(folder)


@contextmanager
def members_in(folder: Path, rank: int | None = 8) -> Iterator[Members]:
    """Have a fleet that publishes to a folder; one that takes whole weights without a rank."""
    with ExitStack() as stack:
        yield Members(folder / "adapters", stack, rank)
