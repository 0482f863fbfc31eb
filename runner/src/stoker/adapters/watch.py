"""Keeps one replica's adapters as they are published: looks, decides, acts, and says what it has."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType

import yaml

from stoker.adapters import check
from stoker.adapters.decide import Load, decide, newest
from stoker.adapters.files import Model, read_adapter, read_model
from stoker.adapters.prepare import room
from stoker.adapters.server import Server, ServerError
from stoker.adapters.settings import Settings, declared
from stoker.adapters.state import State
from stoker.adapters.versions import Version, read_published
from stoker.exits import ExitCode, RunError
from stoker.report import say

# An adapter that could not be served is looked at again: a shared file system may lag, a server may recover.
_RETRY_SECONDS = 30.0
# So long may a folder that one container of a pod sees be missing for the other.
_LAG_SECONDS = 60.0
# Without any effect the two runs differ by the arithmetic's own noise, which is measured; this much is always allowed.
_NOISE_NATS = 1e-4
_NOISE_FACTOR = 4.0


class Watch:
    """One replica's adapters.

    Args:
        settings: what they are.
        server: the replica's vLLM.
        model: what its base model is.
        clock: seconds since the epoch.
    """

    def __init__(
        self, settings: Settings, server: Server, model: Model, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings, self._server, self._model, self._clock = settings, server, model, clock
        self._limit = room(settings, []) if settings.changes else 0
        self._fixed = {settings.model_name, *(one.name for one in settings.adapters)}
        self._judged: dict[str, tuple[float, str]] = {}  # name → when, and what is wrong with it
        self._unfit: set[str] = set()  # names that would be served if they could be
        self._effects: dict[str, float] = {}
        self._delays: dict[str, float] = {}
        self._published: dict[str, float] = {}
        self._started = clock()
        self.state = State()

    def look(self) -> State:
        """Compare what is published with what is loaded, bring the two together, and return what there is then."""
        now = self._clock()
        try:
            served = self._server.models()
            if not self.state.up:
                self._server.answers(self._settings.model_name)
                self._forget()
        except ServerError as error:
            if self.state.up:
                say(f"the model does not answer: {error}")
            self.state = replace(self.state, up=False, settled=False, time=now)
            return self.state
        loaded = {name: root for name, (root, is_adapter) in served.items() if is_adapter}
        wanted = self._wanted(now)
        if wanted is None:  # the folder cannot be read: leave everything as it is
            self.state = replace(self.state, up=True, loaded=loaded, time=now)
            return self.state
        for action in decide(wanted, loaded, self._fixed):
            if isinstance(action, Load):
                self._load(action, loaded, now)
            else:
                self._unload(action.name, loaded)
        for name in [*wanted, *(self._fixed & set(loaded))]:
            if name in loaded and name not in self._effects:
                self._look_for_effect(name)
        for one in self._settings.adapters:
            if one.name not in loaded:
                self._judge(one.name, "vLLM was started without it", now)
        # What was wrong with a version that newer ones have replaced is of no interest any more.
        asked = {*wanted, *self._unfit, *self._fixed}
        missing = tuple(sorted({*wanted, *(one.name for one in self._settings.adapters)} - set(loaded)))
        self.state = State(
            up=True,
            settled=self.state.settled or not missing,
            time=now,
            loaded=loaded,
            missing=missing,
            problems={name: text for name, (_, text) in sorted(self._judged.items()) if text and name in asked},
            effects={name: value for name, value in self._effects.items() if name in loaded},
            delays={name: value for name, value in self._delays.items() if name in loaded},
        )
        return self.state

    def _forget(self) -> None:
        """Start over with a server that has started over."""
        self._judged.clear()
        self._effects.clear()

    def _wanted(self, now: float) -> dict[str, str] | None:
        """Return the folder of each adapter that should be served and can be, by name; None where nobody can tell."""
        try:
            versions = read_published(self._settings.folder) if self._settings.folder else []
            listed = self._listed()
        except OSError as error:
            say(f"what is published cannot be read: {error}")
            return None
        except RunError as error:
            say(error.message)
            return None
        there = {version.name for version in versions} | set(listed)
        for name in [name for name in self._judged if name not in there and name not in self._fixed]:
            del self._judged[name]
        # Checking reads whole files: only versions that would be served are, newest first.
        unfit: set[str] = set()
        while True:
            wanted = newest(versions, self._settings.keep, unfit)
            found = {name for name, path in wanted.items() if not self._fits(name, Path(path), now)}
            if not found:
                break
            unfit |= found
        self._unfit = unfit
        for version in versions:
            self._published.setdefault(version.name, _published_at(version, now))
        fit = {name: path for name, path in listed.items() if self._fits(name, Path(path), now)}
        self._unfit |= listed.keys() - fit.keys()
        return wanted | fit

    def _listed(self) -> dict[str, str]:
        path = self._settings.listed
        if path is None:
            return {}
        try:
            entries = yaml.safe_load(path.read_text())
        except FileNotFoundError:  # an optional ConfigMap that nobody has made yet
            return {}
        except yaml.YAMLError as error:
            raise RunError(ExitCode.CONFIG, f"{path} is no YAML: {error}") from error
        return {one.name: str(one.path) for one in declared(entries or (), str(path))}

    def _fits(self, name: str, path: Path, now: float) -> bool:
        """Return whether an adapter can be served, by the last look at it or a new one."""
        when, text = self._judged.get(name, (0.0, ""))
        if name in self._judged and (not text or now - when < _RETRY_SECONDS or name in self.state.loaded):
            return not text or name in self.state.loaded
        try:
            found = check.problems(
                read_adapter(path), self._model, self._limit, require_manifest=self._settings.require_manifest
            )
        except (OSError, ValueError) as error:
            found = [f"{path} cannot be read: {error}"]
        self._judge(name, "; ".join(found), now)
        return not found

    def _judge(self, name: str, problem: str, now: float) -> None:
        if problem and self._judged.get(name, (0.0, ""))[1] != problem:
            say(f"adapter {name} is not served: {problem}")
        self._judged[name] = (now, problem)

    def _load(self, action: Load, loaded: dict[str, str], now: float) -> None:
        try:
            self._server.load(action.name, action.path)
        except ServerError as error:
            # 404: the folder is there for this container and not yet for the server; the next look tries again.
            if error.status != 404 or now - self._judged[action.name][0] > _LAG_SECONDS:
                self._judge(action.name, f"vLLM refused it: {error}", now)
            return
        loaded[action.name] = action.path
        published = self._published.get(action.name, 0.0)
        if published >= self._started:
            self._delays.setdefault(action.name, round(max(self._clock() - published, 0.0), 3))
        say(f"adapter {action.name} is served from {action.path}")

    def _unload(self, name: str, loaded: dict[str, str]) -> None:
        try:
            self._server.unload(name)
        except ServerError as error:
            if error.status != 404:
                say(f"adapter {name} could not be taken away: {error}")
                return
        loaded.pop(name, None)
        self._effects.pop(name, None)
        say(f"adapter {name} is no longer served")

    def _look_for_effect(self, name: str) -> None:
        """Compare an adapter's log-probabilities with the base model's: the same ones mean that it does nothing."""
        try:
            base = self._server.log_probabilities(self._settings.model_name)
            noise = _distance(base, self._server.log_probabilities(self._settings.model_name))
            self._effects[name] = _distance(base, self._server.log_probabilities(name))
        except ServerError as error:
            say(f"the effect of adapter {name} is not known: {error}")
            return
        if self._effects[name] <= max(_NOISE_NATS, _NOISE_FACTOR * noise):
            text = "it has no effect: every log-probability is the base model's (wrong module names, or never trained)"
            say(f"adapter {name}: {text}")
            self._judged[name] = (self._clock(), text)


def _distance(one: list[float], other: list[float]) -> float:
    return max((abs(a - b) for a, b in zip(one, other, strict=True)), default=0.0)


def _published_at(version: Version, now: float) -> float:
    try:
        return version.path.stat().st_ctime  # a rename is the last change of a folder's inode
    except OSError:
        return now


def run(settings: Settings, address: str, listen: tuple[str, int], interval: float) -> int:
    """Watch until SIGTERM.

    Args:
        settings: what the adapters are.
        address: the replica's vLLM, such as `http://127.0.0.1:8000`.
        listen: host and port for /readyz, /adapters and /metrics.
        interval: seconds between two looks.

    Raises:
        RunError: the settings or the model are wrong (78, 66).
    """
    watch = Watch(settings, Server(address), read_model(settings.model, settings.source, settings.revision))
    stop = threading.Event()

    def stopped(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, stopped)
    signal.signal(signal.SIGINT, stopped)
    web = ThreadingHTTPServer(listen, _handler(watch))
    threading.Thread(target=web.serve_forever, daemon=True).start()
    say(f"watching {settings.folder or settings.listed or 'the server'}; state at {listen[0]}:{listen[1]}/adapters")
    while not stop.is_set():
        watch.look()
        stop.wait(interval)
    web.shutdown()
    return 0


def _handler(watch: Watch) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers probes, Prometheus and people."""

        def do_GET(self) -> None:
            state = watch.state
            answers = {
                "/healthz": (200, "text/plain", "ok\n"),
                "/readyz": (200 if state.ready else 503, "application/json", state.to_json()),
                "/adapters": (200, "application/json", state.to_json()),
                "/metrics": (200, "text/plain; version=0.0.4", state.metrics()),
            }
            code, kind, text = answers.get(self.path, (404, "text/plain", "no such path\n"))
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a probe comes every second."""

    return Handler
