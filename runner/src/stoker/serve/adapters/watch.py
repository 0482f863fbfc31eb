"""Keeps one replica's adapters as they are published: looks, decides, acts, and reports."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FrameType
from urllib.parse import urlsplit

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say
from stoker.serve.adapters.decide import Load, decide
from stoker.serve.adapters.endpoints import Endpoints
from stoker.serve.adapters.files import BaseModel, read_base_model
from stoker.serve.adapters.findings import Findings
from stoker.serve.adapters.replica import Replica
from stoker.serve.adapters.settings import Settings
from stoker.serve.adapters.state import State
from stoker.serve.adapters.wanted import UnreadableError, Wanted
from stoker.serve.vllm import Server, ServerError


class Watch:
    """One replica's adapters.

    Args:
        settings: what they are.
        server: the replica's vLLM.
        model: the replica's base model.
        clock: seconds since the epoch.

    Attributes:
        state: what the last look found.
    """

    def __init__(
        self, settings: Settings, server: Server, model: BaseModel, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings, self._server, self._clock = settings, server, clock
        self._findings = Findings()
        self._wanted = Wanted(settings, model, self._findings)
        self._replica = Replica(settings, server, self._findings, clock)
        self._told = ""
        self.state = State()

    def look(self) -> State:
        """Compare what is published with what is loaded, load and unload, and return what there is then."""
        now = self._clock()
        try:
            loaded = self._loaded()
        except ServerError as error:
            if self.state.up:
                self._findings.server_ended(now)
            self._tell(f"the model does not answer: {error}")
            self.state = replace(self.state, up=False, settled=False, time=now)
            return self.state
        try:
            wanted = self._wanted.read(now, loaded)
        except UnreadableError as error:  # change nothing
            self._tell(f"{error.where}: {error}")
            problems = {**self.state.problems, error.where: str(error)}
            self.state = replace(self.state, up=True, loaded=loaded, problems=problems, time=now)
            return self.state
        self._told = ""
        self._act(wanted, loaded, now)
        self.state = self._seen(wanted, loaded, now)
        return self.state

    def _loaded(self) -> dict[str, str]:
        """Return the folder of each adapter that the server has, by name.

        Raises:
            ServerError: the server or its model does not answer.
        """
        served = self._server.models()
        if not self.state.up:
            self._server.answers(self._settings.model_name)
            self._findings.server_restarted()
            self._replica.restarted()
        return {name: root for name, (root, is_adapter) in served.items() if is_adapter}

    def _act(self, wanted: Mapping[str, str], loaded: dict[str, str], now: float) -> None:
        """Load and unload, and keep `loaded` up to date."""
        fixed = self._settings.fixed
        for action in decide(wanted, loaded, fixed | self._replica.others(loaded)):
            if isinstance(action, Load):
                self._replica.load(action, self._wanted.published.get(action.name, 0.0), loaded, now)
            else:
                self._replica.unload(action.name, loaded)
        self._replica.measure([*wanted, *(fixed & set(loaded))], loaded, now)
        for one in self._settings.adapters:
            if one.name not in loaded:
                self._findings.note(one.name, str(one.path), "vLLM started without it", now)

    def _seen(self, wanted: Mapping[str, str], loaded: Mapping[str, str], now: float) -> State:
        missing = tuple(sorted({*wanted, *(one.name for one in self._settings.adapters)} - set(loaded)))
        return State(
            up=True,
            settled=self.state.settled or not missing,
            time=now,
            loaded=loaded,
            missing=missing,
            # Problems of versions that newer ones have replaced no longer matter.
            problems=self._findings.problems({*wanted, *self._wanted.unfit, *self._settings.fixed}),
            effects={name: value for name, value in self._replica.effects.items() if name in loaded},
            delays={name: value for name, value in self._replica.delays.items() if name in loaded},
        )

    def _tell(self, text: str) -> None:
        """Print what keeps the watch from its work, once and not with each look."""
        if text != self._told:
            say(text)
        self._told = text


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or an IPv6 address that is none
        return False


def run(settings: Settings, address: str, listen: tuple[str, int], interval: float) -> int:
    """Watch until SIGTERM.

    Args:
        settings: what the adapters are.
        address: the replica's vLLM, such as `http://127.0.0.1:8000`.
        listen: host and port for /readyz, /adapters and /metrics.
        interval: seconds between two looks.

    Raises:
        RunError: the address is wrong (64), the settings or the model are wrong (78, 66), or the port is taken (78).
    """
    if not _is_address(address):
        raise RunError(
            ExitCode.USAGE, f"--server {address!r} is not an address: write one such as http://127.0.0.1:8000"
        )
    watch = Watch(settings, Server(address), read_base_model(settings.model, settings.source, settings.revision))
    stop = threading.Event()

    def stopped(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, stopped)
    signal.signal(signal.SIGINT, stopped)
    try:
        web = Endpoints(listen, lambda: watch.state)
    except OSError as error:
        raise RunError(
            ExitCode.CONFIG,
            f"cannot listen on port {listen[1]} of {listen[0] or 'this machine'} ({error.strerror}): "
            "give a --host of this machine and a free --port",
        ) from error
    threading.Thread(target=web.serve_forever, daemon=True).start()
    say(f"watching {settings.folder or settings.listed or 'the server'}; state on port {listen[1]}, /adapters")
    while not stop.is_set():
        watch.look()
        stop.wait(interval)
    web.shutdown()
    return 0
