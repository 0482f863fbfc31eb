"""Keeps one replica's adapters as they are published: looks, decides, acts, and says what it has."""

from __future__ import annotations

import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType

import yaml

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say
from stoker.serve.adapters import check
from stoker.serve.adapters.decide import Load, decide, newest
from stoker.serve.adapters.files import BaseModel, read_adapter, read_model
from stoker.serve.adapters.prepare import room
from stoker.serve.adapters.settings import Settings, declared
from stoker.serve.adapters.state import State
from stoker.serve.adapters.versions import Version, read_published
from stoker.serve.vllm import Server, ServerError

# An adapter that could not be served is looked at again: a shared file system may lag, a server may recover.
_RETRY_SECONDS = 30.0
# So long may a folder that one container of a pod sees be missing for the other.
_LAG_SECONDS = 60.0
# Without any effect the two runs differ by the arithmetic's own noise, which is measured; this much is always allowed.
_NOISE_NATS = 1e-4
_NOISE_FACTOR = 4.0
# A server that ends so soon after it was asked for an adapter, and so often, is not asked for that one again.
_BLAME_SECONDS = 30.0
_DEATHS = 2


@dataclass(frozen=True, slots=True)
class _Finding:
    """What was found of an adapter.

    Attributes:
        time: when.
        path: the folder that was looked at.
        problem: what is wrong with it; empty if it can be served.
    """

    time: float
    path: str
    problem: str


class Watch:
    """One replica's adapters.

    Args:
        settings: what they are.
        server: the replica's vLLM.
        model: what its base model is.
        clock: seconds since the epoch.
    """

    def __init__(
        self, settings: Settings, server: Server, model: BaseModel, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings, self._server, self._model, self._clock = settings, server, model, clock
        self._limit = room(settings, []) if settings.changes else 0
        self._fixed = {settings.model_name, *(one.name for one in settings.adapters)}
        self._judged: dict[str, _Finding] = {}
        self._unfit: set[str] = set()  # names that would be served if they could be
        self._effects: dict[str, float] = {}
        self._probed: dict[str, float] = {}  # when an adapter's effect was last looked for
        self._mine: set[str] = set()  # names that were loaded here
        self._suspect = ("", 0.0)  # the adapter that the server last failed at, and when
        self._deaths: dict[str, int] = {}  # how often the server ended after that
        self._told = ""
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
                self._blame(now)
            self._tell(f"the model does not answer: {error}")
            self.state = replace(self.state, up=False, settled=False, time=now)
            return self.state
        loaded = {name: root for name, (root, is_adapter) in served.items() if is_adapter}
        try:
            wanted = self._wanted(now, loaded)
        except _UnreadableError as error:  # leave everything as it is
            self._tell(f"{error.where}: {error}")
            problems = {**self.state.problems, error.where: str(error)}
            self.state = replace(self.state, up=True, loaded=loaded, problems=problems, time=now)
            return self.state
        self._told = ""
        for action in decide(wanted, loaded, self._fixed | self._others(loaded)):
            if isinstance(action, Load):
                self._load(action, loaded, now)
            else:
                self._unload(action.name, loaded)
        for name in [*wanted, *(self._fixed & set(loaded))]:
            if name in loaded and name not in self._effects and now - self._probed.get(name, 0.0) >= _RETRY_SECONDS:
                self._look_for_effect(name, loaded[name], now)
        for one in self._settings.adapters:
            if one.name not in loaded:
                self._judge(one.name, str(one.path), "vLLM was started without it", now)
        # What was wrong with a version that newer ones have replaced is of no interest any more.
        asked = {*wanted, *self._unfit, *self._fixed}
        missing = tuple(sorted({*wanted, *(one.name for one in self._settings.adapters)} - set(loaded)))
        self.state = State(
            up=True,
            settled=self.state.settled or not missing,
            time=now,
            loaded=loaded,
            missing=missing,
            problems={name: one.problem for name, one in sorted(self._judged.items()) if one.problem and name in asked},
            effects={name: value for name, value in self._effects.items() if name in loaded},
            delays={name: value for name, value in self._delays.items() if name in loaded},
        )
        return self.state

    def _forget(self) -> None:
        """Start over with a server that has started over."""
        self._judged.clear()
        self._effects.clear()
        self._probed.clear()

    def _tell(self, text: str) -> None:
        """Say what keeps the watch from its work, once and not with each look."""
        if text != self._told:
            say(text)
        self._told = text

    def _blame(self, now: float) -> None:
        """Remember which adapter the server was asked for just before it ended."""
        name, when = self._suspect
        if name and now - when <= _BLAME_SECONDS:
            self._deaths[name] = self._deaths.get(name, 0) + 1
        self._suspect = ("", 0.0)

    def _others(self, loaded: Mapping[str, str]) -> set[str]:
        """Return the names that somebody else has loaded and may keep, where others may load any."""
        if not self._settings.others:
            return set()
        published = self._settings.folder
        return {
            name
            for name, path in loaded.items()
            if name not in self._mine and not (published and Path(path).is_relative_to(published))
        }

    def _wanted(self, now: float, loaded: Mapping[str, str]) -> dict[str, str]:
        """Return the folder of each adapter that should be served and can be, by name.

        Raises:
            _UnreadableError: nobody can tell.
        """
        versions = []
        if self._settings.folder:
            try:
                versions = read_published(self._settings.folder)
            except OSError as error:
                raise _UnreadableError(str(self._settings.folder), f"cannot be read: {error}") from error
        listed = self._listed()
        there = {version.name for version in versions} | set(listed)
        for name in [name for name in self._judged if name not in there and name not in self._fixed]:
            del self._judged[name]
            self._deaths.pop(name, None)
        # Checking reads whole files: only versions that would be served are, newest first.
        unfit: set[str] = set()
        while True:
            wanted = newest(versions, self._settings.keep, unfit)
            found = {name for name, path in wanted.items() if not self._fits(name, path, now, loaded)}
            if not found:
                break
            unfit |= found
        self._unfit = unfit
        for version in versions:
            self._published.setdefault(version.name, _published_at(version, now))
        for name, path in listed.items():
            if self._fits(name, path, now, loaded):
                wanted[name] = path
            else:
                self._unfit.add(name)
                if name in loaded:  # it is to come from another folder, which is no good: the old one stays
                    wanted[name] = loaded[name]
        return wanted

    def _listed(self) -> dict[str, str]:
        path = self._settings.listed
        if path is None:
            return {}
        try:
            return {one.name: str(one.path) for one in declared(yaml.safe_load(path.read_text()) or (), str(path))}
        except FileNotFoundError:  # an optional ConfigMap that nobody has made yet
            return {}
        except (OSError, TypeError, ValueError, yaml.YAMLError) as error:
            raise _UnreadableError(str(path), f"cannot be read: {error}") from error
        except RunError as error:
            raise _UnreadableError(str(path), error.message) from error

    def _fits(self, name: str, path: str, now: float, loaded: Mapping[str, str]) -> bool:
        """Return whether an adapter can be served, by the last look at it or a new one."""
        if self._deaths.get(name, 0) >= _DEATHS:
            self._judge(name, path, f"vLLM ended {_DEATHS} times after it was asked for it; take it back", now)
            return False
        known = self._judged.get(name)
        if known and known.path == path:
            if not known.problem or loaded.get(name) == path:
                return True
            if now - known.time < _RETRY_SECONDS:
                return False
        try:
            found = check.problems(
                read_adapter(Path(path)), self._model, self._limit, require_manifest=self._settings.require_manifest
            )
        except (OSError, ValueError) as error:
            found = [f"{path} cannot be read: {error}"]
        self._judge(name, path, "; ".join(found), now)
        return not found

    def _judge(self, name: str, path: str, problem: str, now: float) -> None:
        known = self._judged.get(name)
        if problem and (known is None or known.problem != problem):
            say(f"adapter {name}: {problem}")
        self._judged[name] = _Finding(now, path, problem)

    def _load(self, action: Load, loaded: dict[str, str], now: float) -> None:
        try:
            self._server.load(action.name, action.path)
        except ServerError as error:
            self._failed(action.name, error, now)
            # No answer: it may be loaded yet. 404: the folder is there for this container and not yet for the server.
            # The next look tells.
            lags = error.status == 404 and now - self._judged[action.name].time <= _LAG_SECONDS
            if error.status and not lags:
                self._judge(action.name, action.path, f"vLLM refused it: {error}", now)
            return
        loaded[action.name] = action.path
        self._mine.add(action.name)
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
        self._probed.pop(name, None)
        self._mine.discard(name)
        say(f"adapter {name} is no longer served")

    def _failed(self, name: str, error: ServerError, now: float) -> None:
        """Remember an adapter that the server itself failed at: if it ends now, that may be why."""
        if error.status == 0 or error.status >= 500:
            self._suspect = (name, now)

    def _look_for_effect(self, name: str, path: str, now: float) -> None:
        """Compare an adapter's log-probabilities with the base model's: the same ones mean that it does nothing."""
        self._probed[name] = now
        try:
            base = self._server.log_probabilities(self._settings.model_name)
            noise = _distance(base, self._server.log_probabilities(self._settings.model_name))
            self._effects[name] = _distance(base, self._server.log_probabilities(name))
        except ServerError as error:
            self._failed(name, error, now)
            self._judge(name, path, f"its effect is not known: {error}", now)
            return
        text = ""
        if math.isnan(self._effects[name]):
            text = "its log-probabilities are no numbers: its training went wrong"
        elif self._effects[name] <= max(_NOISE_NATS, _NOISE_FACTOR * noise):
            text = "it has no effect: every log-probability is the base model's (wrong module names, or never trained)"
        self._judge(name, path, text, now)


class _UnreadableError(Exception):
    """What is published cannot be read.

    Args:
        where: the folder or file.
        message: why.
    """

    def __init__(self, where: str, message: str) -> None:
        super().__init__(message)
        self.where = where


def _distance(one: list[float], other: list[float]) -> float:
    """Return the largest difference; NaN if any is, which `max` alone may not see."""
    distances = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return math.nan if any(map(math.isnan, distances)) else max(distances, default=0.0)


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
        RunError: the address is none (64), the settings or the model are wrong (78, 66), or the port is taken (78).
    """
    if not address.startswith(("http://", "https://")):
        raise RunError(ExitCode.USAGE, f"--server {address!r} is no address: write one such as http://127.0.0.1:8000")
    watch = Watch(settings, Server(address), read_model(settings.model, settings.source, settings.revision))
    stop = threading.Event()

    def stopped(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, stopped)
    signal.signal(signal.SIGINT, stopped)
    try:
        web = _Web(listen, _handler(watch))
    except OSError as error:
        raise RunError(
            ExitCode.CONFIG,
            f"port {listen[1]} of {listen[0] or 'this machine'} cannot be listened at ({error.strerror}): "
            "give a --host of this machine and a free --port",
        ) from error
    threading.Thread(target=web.serve_forever, daemon=True).start()
    say(f"watching {settings.folder or settings.listed or 'the server'}; state at port {listen[1]}, /adapters")
    while not stop.is_set():
        watch.look()
        stop.wait(interval)
    web.shutdown()
    return 0


class _Web(ThreadingHTTPServer):
    """A web server at IPv6 and IPv4 alike where the machine has both: a pod may have either."""

    def __init__(self, listen: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        host, port = listen
        if ":" in host or (not host and socket.has_dualstack_ipv6()):
            self.address_family = socket.AF_INET6
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


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
