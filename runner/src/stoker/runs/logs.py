"""Logs of all pods of a run as one: in the order of their times, each line with its role and rank in front."""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from stoker.contract.words import say, timestamp
from stoker.runs.client import Client
from stoker.runs.errors import ClusterError, NotFoundError, ObjectRefusedError, UnreachableError
from stoker.runs.kinds import PODS
from stoker.runs.read import read_run
from stoker.runs.run import Pod, Run, State, moment, part, rows

_EARLIEST = datetime.min.replace(tzinfo=UTC)
# How long a follower waits before it looks for new pods, and before it asks again for a log that broke off.
_LOOK_SECONDS, _AGAIN_SECONDS = 2.0, 2.0
# How long the logs of a run that is over may be silent before they are left, and how long to wait for each line.
_LAST_SECONDS, _POLL_SECONDS = 10.0, 0.1
_GIVE_UP = 30


@dataclass(frozen=True, slots=True)
class LogSource:
    """One container's log.

    Attributes:
        pod: the pod's name.
        container: its container.
        label: what lines begin with, such as `node-0` or `sampler-1/vllm`.
    """

    pod: str
    container: str
    label: str


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log.

    Attributes:
        source: where it comes from.
        stamp: the time in front of it, as the cluster wrote it.
        text: the line.
    """

    source: LogSource
    stamp: str
    text: str

    @property
    def time(self) -> datetime:
        """When it was written, for sorting."""
        try:
            return datetime.fromisoformat(self.stamp)
        except ValueError:
            return _EARLIEST


def sources_of(pods: Iterable[Pod], roles: Iterable[str] = ()) -> list[LogSource]:
    """Return the logs of pods.

    Args:
        pods: the pods.
        roles: only logs of these, such as `node`, `node-0` or `sampler-0/vllm`; none for all.
    """
    wanted = set(roles)
    return [
        LogSource(pod.name, container, pod.label if len(pod.containers) == 1 else f"{pod.label}/{container}")
        for pod in pods
        for container in pod.containers
        if not wanted or wanted & {pod.role, pod.label, f"{pod.label}/{container}"}
    ]


def line_of(source: LogSource, raw: bytes) -> LogLine:
    """Return a line of a log that was asked for with times."""
    stamp, _, text = raw.decode("utf-8", "replace").partition(" ")
    # A progress bar rewrites its line: only what is left of it counts.
    return LogLine(source, stamp, text.rstrip("\r").rpartition("\r")[2])


def merged(logs: Iterable[Iterator[LogLine]]) -> Iterator[LogLine]:
    """Yield the lines of several logs in the order of their times; each log keeps its own order."""
    return heapq.merge(*(_rising(log) for log in logs), key=lambda line: line.time)


def shown(line: LogLine, width: int, times: bool = False) -> str:
    """Return a line as a person reads it.

    Args:
        line: the line.
        width: of the longest label.
        times: True to have the time in front.
    """
    return (f"{line.stamp} " if times else "") + f"{line.source.label:<{width}} | {line.text}"


def facts_of(line: LogLine) -> dict[str, str]:
    """Return a line as JSON shows it."""
    source = line.source
    told = {"time": line.stamp, "label": source.label, "pod": source.pod, "container": source.container}
    return {**told, "text": line.text}


def past(client: Client, name: str, roles: tuple[str, ...], tail: int | None) -> Iterator[LogLine]:
    """Yield what the pods of a run have written.

    Args:
        client: the cluster.
        name: the run.
        roles: only of these pods.
        tail: so many last lines of each container; None for all.

    Raises:
        ClusterError: the run cannot be read.
    """
    run = read_run(client, name, needs_pods=True).run
    return merged(_read(client, source, tail) for source in sources_of(run.pods, roles))


def follow(
    client: Client,
    name: str,
    roles: tuple[str, ...],
    tail: int | None,
    show: Callable[[LogLine], None],
    tell: Callable[[Run], None],
) -> State:
    """Show what the pods of a run write, over restarts, until it has ended or is stopped; return its state.

    Args:
        client: the cluster.
        name: the run.
        roles: only of these pods.
        tail: so many last lines of each container that there is already; None for all.
        show: called with each line.
        tell: called with the run whenever its state or reason is another one.

    Raises:
        ClusterError: the run cannot be read.
    """
    lines: queue.Queue[LogLine] = queue.Queue()
    readers: dict[LogSource, threading.Thread] = {}
    failures, first, told = 0, True, ("", "")
    while True:
        try:
            run = read_run(client, name, needs_pods=True).run
            failures = 0
        except UnreachableError:
            failures += 1
            if failures > _GIVE_UP:
                raise
        else:
            found = sources_of(run.pods, roles)
            if first and run.pods and not found:
                status = f"`stoker status {name}{client.options}`"
                say(f"{name} has no pod {' or '.join(roles)} yet: {status} lists its pods")
            for source in found:
                if source not in readers:
                    # Of pods that come later nothing has been shown yet.
                    wanted = (client, source, tail if first else None, lines.put)
                    readers[source] = threading.Thread(target=_follow_one, args=wanted, daemon=True)
                    readers[source].start()
            first = False
            over = run.state.ended or run.state is State.STOPPED
            if over:
                _show_last(lines, readers.values(), moment(run.ended) or datetime.now(UTC), show)
            if told != (run.state, run.reason):
                told = (run.state, run.reason)
                tell(run)
            if over:
                return run.state
        _show_for(_LOOK_SECONDS, lines, show)


def _show_for(seconds: float, lines: queue.Queue[LogLine], show: Callable[[LogLine], None]) -> None:
    """Show the lines that come within so many seconds."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        with suppress(queue.Empty):
            show(lines.get(timeout=left))


def _show_last(
    lines: queue.Queue[LogLine],
    readers: Collection[threading.Thread],
    end: datetime,
    show: Callable[[LogLine], None],
) -> None:
    """Show the lines that still come after a run's end, until all logs are read or have been silent for long."""
    silent_since = time.monotonic()
    while any(reader.is_alive() for reader in readers) or not lines.empty():
        with suppress(queue.Empty):
            line = lines.get(timeout=_POLL_SECONDS)
            show(line)
            # A sampler may write on and on: what is newer than the end is not worth waiting for.
            if line.time <= end:
                silent_since = time.monotonic()
        if time.monotonic() - silent_since > _LAST_SECONDS:
            return


def _follow_one(client: Client, source: LogSource, tail: int | None, put: Callable[[LogLine], None]) -> None:
    """Put the lines of a container until it has ended. A log that breaks off goes on where it was."""
    # The last line's time, and how many lines have that time.
    last, stamp, at_last = _EARLIEST, "", 0
    # With `--tail 0`, a log that breaks off before its first line goes on from here: nothing older was asked for.
    begun = timestamp() if tail == 0 else ""
    since = ""
    while True:
        ended = _has_ended(client, source)
        try:
            again, repeats = at_last, bool(stamp)
            asked = client.log(source.pod, source.container, follow=not ended, since=since, tail=tail, timestamps=True)
            for raw in asked:
                line = line_of(source, raw)
                # The API server knows whole seconds only, so it begins with lines that were there before.
                if repeats and (line.time < last or (line.time == last and again > 0)):
                    again -= line.time == last
                    continue
                repeats = False
                # Stamps of stdout and stderr may go back by a little.
                if line.time >= last:
                    last, stamp, at_last = line.time, line.stamp, at_last + 1 if line.time == last else 1
                put(line)
            if ended:
                return
        except (NotFoundError, ObjectRefusedError) as error:
            # Its container has not started yet; or its pod is gone, or its log.
            if ended or isinstance(error, NotFoundError):
                return
        except UnreachableError:
            if not stamp:  # nothing has come yet, so what was asked for is still what is wanted
                threading.Event().wait(_AGAIN_SECONDS)
                continue
        except ClusterError as error:
            say(error.message)
            return
        since, tail = stamp or begun, None
        threading.Event().wait(_AGAIN_SECONDS)


def _has_ended(client: Client, source: LogSource) -> bool:
    """Return whether a container has ended for good; also if its pod is gone."""
    try:
        pod = client.find(PODS, source.pod)
    except ClusterError:
        return False
    if pod is None:
        return True
    status = part(pod, "status")
    if status.get("phase") in ("Succeeded", "Failed"):
        return True
    statuses = [*rows(status, "initContainerStatuses"), *rows(status, "containerStatuses")]
    restarts = part(pod, "spec").get("restartPolicy") != "Never"
    ended = next((one for one in statuses if one.get("name") == source.container), {})
    return bool(part(part(ended, "state"), "terminated")) and not restarts


def _read(client: Client, source: LogSource, tail: int | None) -> Iterator[LogLine]:
    try:
        for raw in client.log(source.pod, source.container, tail=tail, timestamps=True):
            yield line_of(source, raw)
    except UnreachableError as error:  # of a node that is gone, and the other logs may tell why
        say(f"the log of {source.pod}, container {source.container}, cannot be read: {error.message}")
    except (ObjectRefusedError, NotFoundError):
        return  # it has not started, or is gone: `stoker status` says so


def _rising(log: Iterator[LogLine]) -> Iterator[LogLine]:
    """Yield the lines of one log with times that never go back, so that merging keeps their order."""
    latest, stamp = _EARLIEST, ""
    for line in log:
        if line.time < latest:
            line = replace(line, stamp=stamp)
        latest, stamp = line.time, line.stamp
        yield line
