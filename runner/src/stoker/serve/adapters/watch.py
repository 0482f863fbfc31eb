"""Keeps one replica's adapters as they are published: looks, decides, acts, and reports."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say
from stoker.serve.adapters import check
from stoker.serve.adapters.decide import Action, Load, Unload, decide
from stoker.serve.adapters.endpoints import Endpoints
from stoker.serve.adapters.files import BaseModel, read_base_model
from stoker.serve.adapters.findings import Findings
from stoker.serve.adapters.replica import ReplicaServer
from stoker.serve.adapters.settings import Settings
from stoker.serve.adapters.state import ReplicaState
from stoker.serve.adapters.versions import named
from stoker.serve.adapters.wanted import UnreadableError, Wanted
from stoker.serve.fleet.desired import Desired
from stoker.serve.fleet.member import Member
from stoker.serve.fleet.weights import ReplicaWeights
from stoker.serve.slices.reloads import Reloads
from stoker.serve.vllm import Server, ServerError
from stoker.serve.web import port_errors
from stoker.serve.weights import workers
from stoker.serve.weights.watch import WeightsWatch


class Watch:
    """One replica's adapters. Several threads may look.

    Args:
        settings: what they are.
        server: the replica's vLLM.
        model: the replica's base model.
        clock: seconds since the epoch.
        reloads: what tells whether the engine runs where it takes turns at its device; None where it does not.

    Attributes:
        state: what the last look found.
        unfinished: the last look has left something to unload.
    """

    def __init__(
        self,
        settings: Settings,
        server: Server,
        model: BaseModel,
        clock: Callable[[], float] = time.time,
        reloads: Reloads | None = None,
    ) -> None:
        self._settings, self._server, self._clock, self._reloads = settings, server, clock, reloads
        self._findings = Findings()
        self._wanted = Wanted(settings, model, self._findings)
        self._replica = ReplicaServer(settings, server, self._findings, clock)
        weights = ReplicaWeights(server.patient(workers.SECONDS), model) if settings.takes_weights else None
        self._member = Member(settings.fleet, server, weights) if settings.fleet else None
        self._said = ""
        self.unfinished = False
        self._looking = threading.Lock()  # held by the one who looks, and while anything found is changed
        self._asking = threading.Lock()
        self._asked = 0  # how many looks were asked for
        self._answered = 0  # how many of these the looks so far have answered
        self._told: set[str] = set()
        self._wanted_names: tuple[str, ...] = ()  # what the last look wanted
        self.state = ReplicaState(server=_described(settings, model))

    def look(self) -> ReplicaState:
        """Look at once, then measure the effect of adapters that are new, and return what there is then."""
        with self._looking:
            asked, names = self._news()
            self.state = self._look(names)
            self._answered = asked
        self._measure()
        return self.state

    def look_at_once(self, told: Iterable[str] = (), generation: int = 0) -> ReplicaState:
        """Load what is published and not loaded yet, and return what there is then.

        What is no longer published is unloaded by the next look: a server that is busy takes its time for that too.
        Those who ask while somebody looks share the next look.

        Args:
            told: names of versions that were published just now, as far as the caller knows.
            generation: of the fleet's desired state, as far as the caller knows.
        """
        with self._asking:
            self._asked += 1
            mine = self._asked
            self._told.update(told)
            if self._member:
                self._member.tell(generation)
        with self._looking:
            if self._answered < mine:
                asked, names = self._news()
                self.state = self._look(names, unload=False)
                self._answered = asked
            return self.state

    def sees(self, name: str) -> bool:
        """Return whether the folder of versions has one for a name, as far as this replica sees it."""
        version = named(self._settings.folder, f"{name}:1") if self._settings.folder else None
        try:
            return version is not None and version.path.parent.is_dir()
        except OSError:  # the file system does not answer
            return False

    def _news(self) -> tuple[int, frozenset[str]]:
        """Return how many looks were asked for until now, and the names that were told."""
        with self._asking:
            names = frozenset(self._told)
            self._told.clear()
            return self._asked, names

    def _look(self, told: Collection[str], *, unload: bool = True) -> ReplicaState:
        """Compare what is published with what is loaded, load and unload, and return what there is then."""
        now = self._clock()
        try:
            loaded = self._loaded()
        except ServerError as error:
            if self.state.up:
                self._findings.server_ended(now)
            self._say(f"the model does not answer: {error}")
            return replace(self.state, up=False, settled=False, time=now)
        if self._member:
            self._member.read()
            if outdated := self._member.outdated():  # loading others may take minutes, and probes come meanwhile
                self.state = replace(self.state, held=outdated)
        newest = self._member.newest if self._member else Desired()
        try:
            wanted = self._wanted.read(now, loaded, told, newest.adapters, newest.stamps)
        except UnreadableError as error:  # change nothing
            self._say(f"{error.where}: {error}")
            problems = {**self.state.problems, error.where: str(error)}
            return replace(self.state, up=True, loaded=loaded, problems=problems, time=now)
        self._said = ""
        self._act(wanted, loaded, now, unload=unload)
        return self._seen(wanted, loaded, now)

    def _loaded(self) -> dict[str, str]:
        """Return the folder of each adapter that the server has, by name.

        Raises:
            ServerError: the server or its model does not answer.
        """
        served = self._server.models()
        if not self.state.up:
            # One that is paused answers when it is resumed.
            if not (self._member and self._server.is_paused()):
                self._server.answers(self._settings.model_name)
            self._findings.server_restarted()
            self._replica.restarted()
            if self._member:
                self._member.restarted()
        return {name: root for name, (root, is_adapter) in served.items() if is_adapter}

    def _act(self, wanted: Mapping[str, str], loaded: dict[str, str], now: float, *, unload: bool) -> None:
        """Load and unload, and keep `loaded` up to date."""
        self.unfinished = False
        fixed = self._settings.fixed
        self._replica.forget_delays(self._wanted.published)
        actions = decide(wanted, loaded, fixed | self._replica.others(loaded))
        for action in actions:
            if isinstance(action, Unload) and not unload and action.name not in wanted:
                self.unfinished = True
            elif not self._do(action, loaded, now):
                break
        if self._reloads and not actions:
            self._reloads.needs_no_turn()
        for one in self._settings.adapters:
            if one.name not in loaded:
                self._findings.note(one.name, str(one.path), "vLLM started without it", now)

    def _do(self, action: Action, loaded: dict[str, str], now: float) -> bool:
        """Load or unload an adapter; return False if that must wait for the engine's turn."""
        try:
            with self._reloads.in_turn() if self._reloads else nullcontext(True) as may:
                if not may:
                    return False
                if isinstance(action, Load):
                    self._replica.load(action, self._wanted.published.get(action.name, 0.0), loaded, now)
                else:
                    self._replica.unload(action.name, loaded)
        except OSError as error:
            path = action.path if isinstance(action, Load) else loaded[action.name]
            self._findings.note(action.name, path, f"{error.filename} cannot be written: {error.strerror}", now)
            return False
        return True

    def _measure(self) -> None:
        """Measure effects without keeping anybody from looking: a busy server takes its time."""
        with self._looking:
            loaded, now = self.state.loaded, self.state.time
            probed = dict.fromkeys([*self._wanted_names, *(self._settings.fixed & set(loaded))])
            # Their run compares each sample with what the trainer computes.
            for name in [*self._wanted.live, *(self._member.newest.adapters if self._member else ())]:
                probed.pop(name, None)
            if (self._member and self._member.newest.paused) or (self._reloads and not self._reloads.runs()):
                return
            names = self._replica.unmeasured(probed, loaded, now) if self.state.up else []
        for name in names:
            found = self._replica.measure(name)
            with self._looking:
                if self.state.loaded.get(name) == loaded[name]:  # else it has changed meanwhile
                    self._replica.measured(name, loaded[name], found, now)
                    effects = self._effects(self.state.loaded)
                    self.state = replace(self.state, problems=self._problems(), effects=effects)

    def _seen(self, wanted: Mapping[str, str], loaded: Mapping[str, str], now: float) -> ReplicaState:
        self._wanted_names = tuple(wanted)
        missing = tuple(sorted({*wanted, *(one.name for one in self._settings.adapters)} - set(loaded)))
        held = None
        if self._member:
            fixed = self._settings.fixed | self._replica.others(loaded)
            held = self._member.apply(loaded, {*loaded} - {*wanted} - fixed, self._problems())
        return ReplicaState(
            server=self.state.server,
            up=True,
            settled=self.state.settled or not missing,
            time=now,
            loaded=loaded,
            missing=missing,
            problems=self._problems(),
            effects=self._effects(loaded),
            delays={name: value for name, value in self._replica.delays.items() if name in loaded},
            held=held,
        )

    def _problems(self) -> dict[str, str]:
        """Return what is wrong. Problems of versions that newer ones have replaced no longer matter."""
        return self._findings.problems({*self._wanted_names, *self._wanted.unfit, *self._settings.fixed})

    def _effects(self, loaded: Collection[str]) -> dict[str, float]:
        return {name: value for name, value in self._replica.effects.items() if name in loaded}

    def _say(self, text: str) -> None:
        """Print what keeps the watch from its work, once and not with each look."""
        if text != self._said:
            say(text)
        self._said = text


def _described(settings: Settings, model: BaseModel) -> dict[str, str | int | None]:
    """Return what a trainer has to know of a sampler before it relies on it."""
    return {
        **_base(settings, model),
        "max_loras": settings.max_loras,
        "max_rank": check.snapped(settings.max_rank) if settings.max_rank else None,
    }


def _base(settings: Settings, model: BaseModel) -> dict[str, str | int | None]:
    return {
        "model": settings.model_name,
        "source": model.source,
        "revision": model.revision,
        "fingerprint": model.fingerprint,
    }


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or an IPv6 address that is none
        return False


def run(settings: Settings, address: str, listen: tuple[str, int], interval: float, slices: Path | None = None) -> int:
    """Watch until SIGTERM.

    Args:
        settings: what the adapters are.
        address: the replica's vLLM, such as `http://127.0.0.1:8000`.
        listen: host and port for /readyz, /adapters and /metrics.
        interval: seconds between two looks.
        slices: folder of `stoker slice run`, in whose turns something is loaded; None where the replica takes none.

    Raises:
        RunError: the address is wrong (64), the settings or the model are wrong (78, 66), or the port is taken (78).
    """
    if not _is_address(address):
        raise RunError(
            ExitCode.USAGE, f"--server {address!r} is not an address: write one such as http://127.0.0.1:8000"
        )
    model = read_base_model(settings.model, settings.source, settings.revision)
    watch: Watch | WeightsWatch
    reloads = None if slices is None else Reloads(slices)
    if settings.weights is None:
        watch = Watch(settings, Server(address), model, reloads=reloads)
    else:
        patient, described = Server(address, workers.SECONDS), _base(settings, model)
        watch = WeightsWatch(settings.weights, settings.model_name, patient, described, reloads=reloads)
    stop, wake = threading.Event(), threading.Event()

    def stopped(_signal: int, _frame: FrameType | None) -> None:
        stop.set()
        wake.set()

    def look(told: Iterable[str], generation: int) -> ReplicaState:
        state = watch.look_at_once(told, generation)
        if watch.unfinished:
            wake.set()
        return state

    signal.signal(signal.SIGTERM, stopped)
    signal.signal(signal.SIGINT, stopped)
    with port_errors(*listen):
        web = Endpoints(listen, lambda: watch.state, look, watch.sees)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    watched = settings.weights or settings.folder or settings.listed or "the server"
    say(f"watching {watched}; state on port {listen[1]}, /adapters")
    while not stop.is_set():
        wake.clear()
        watch.look()
        wake.wait(interval)
    web.shutdown()
    return 0
