"""Shows Prometheus a node and its run, from what the runner knows anyway: the training processes are not asked."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from stoker.contract.metrics import METRICS
from stoker.contract.secrets import hide
from stoker.contract.words import say
from stoker.plan.plan import Plan
from stoker.rank.pulse import PHASES, Beat
from stoker.serve.web import Handler, WebServer

# What is read of the metrics file: its newest lines. More names than this are not shown.
_BYTES = 64 * 2**10
_NAMES = 200
_KIND = "text/plain; version=0.0.4"


class Exposition:
    """What Prometheus is shown of this node, and by the first node of the run.

    Args:
        plan: the run.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._numbers = _Numbers(Path(plan.output_dir) / METRICS) if plan.world.node_rank == 0 else None
        self._beats: Mapping[int, Beat] = {}
        self._beat_at = time.time()

    def see(self, beats: Mapping[int, Beat]) -> None:
        """Take the newest beat of each rank of this node."""
        if beats != self._beats:
            self._beats, self._beat_at = dict(beats), time.time()

    def text(self) -> str:
        """Return it in Prometheus' text format."""
        plan, beats = self._plan, self._beats
        lines = [
            *_gauge("stoker_run_restarts", "Restarts of the run before this attempt.", {"": plan.attempt}),
            *_gauge("stoker_run_world_size", "Processes that train.", {"": plan.world.size}),
        ]
        if beats:
            slowest = min(beats.values(), key=lambda beat: beat.count)
            lines += [
                *_gauge("stoker_node_step", "Steps that every rank of this node has done.",
                        {"": min(beat.step for beat in beats.values())}),
                *_gauge("stoker_node_last_beat_timestamp_seconds",
                        "When a rank of this node last showed a sign of life, such as a sub-step.",
                        {"": self._beat_at}),
                *_gauge("stoker_node_phase", "What the slowest rank of this node does.",
                        {_label("phase", phase): float(phase == slowest.phase) for phase in PHASES}),
            ]  # fmt: skip
        if self._numbers is not None:
            numbers = self._numbers.newest()
            lines += _gauge(
                "stoker_run_metric", "The newest value of each of the run's metrics.",
                {_label("metric", hide(name)): value for name, value in numbers.items()},
            )  # fmt: skip
        return "\n".join(lines) + "\n"


class _Numbers:
    """The newest value of each metric in a run's metrics file, which others write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, float] = {}

    def newest(self) -> dict[str, float]:
        try:
            with self._path.open("rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - _BYTES))
                text = stream.read(_BYTES)
        except OSError:
            return self._known
        known = dict(self._known)
        for line in text.splitlines():
            known |= _numbers_in(line)
        self._known = dict(list(known.items())[:_NAMES])
        return self._known


def _numbers_in(line: bytes) -> dict[str, float]:
    """Return the numbers of a line; a null stands for one that is not finite. Half a line has none."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(told, dict):
        return {}
    return {
        name: math.nan if value is None else float(value)
        for name, value in told.items()
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300)
    }


def _gauge(name: str, what: str, values: Mapping[str, float]) -> list[str]:
    lines = [f"{name}{{{label}}} {_number(value)}" if label else f"{name} {_number(value)}"
             for label, value in values.items()]  # fmt: skip
    return [f"# HELP {name} {what}", f"# TYPE {name} gauge", *lines] if lines else []


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else repr(float(value))


def _label(name: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    # A lone surrogate cannot be sent.
    return f'{name}="{escaped.encode("utf-8", "replace").decode()}"'


@contextmanager
def exposed(plan: Plan, environ: Mapping[str, str]) -> Iterator[Exposition]:
    """Answer Prometheus at the plan's port while the body runs. A port that is taken costs the numbers, not the run.

    Args:
        plan: the run.
        environ: the environment; outside Kubernetes, only this machine is answered.
    """
    exposition = Exposition(plan)

    class MetricsHandler(Handler):
        def get(self) -> None:
            if self.path == "/metrics":
                self.answer(200, _KIND, exposition.text())
            else:
                self.answer(404, "text/plain", "no such path: ask for /metrics\n")

    host = "" if "KUBERNETES_SERVICE_HOST" in environ else "127.0.0.1"
    try:
        server = WebServer((host, plan.metrics_port), MetricsHandler)
    except OSError as error:
        say(f"metrics are not shown: port {plan.metrics_port} cannot be used ({error.strerror}); the run goes on")
        yield exposition
        return
    server.daemon_threads = True
    Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    try:
        yield exposition
    finally:
        server.shutdown()
        server.server_close()
