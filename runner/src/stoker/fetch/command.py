"""What `stoker fetch` does: from the environment to the target folder."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.packages import not_installed
from stoker.contract.variables import kept_variables, termination_log_of, unknown_variables, workspace_of
from stoker.contract.words import say, write_termination_message
from stoker.fetch.request import FetchRequest, kind_of, request_of
from stoker.fetch.selection import Selection, select
from stoker.fetch.source import INSTALL, FileSource
from stoker.fetch.target import Target
from stoker.fetch.transfer import Transfer, human, listing, persist

# Files need little space besides their bytes; this much must stay free.
_SPARE_BYTES = 32 * 2**20
_STOPPED = "stopped by a signal; the next attempt continues with the files fetched so far"


class _Stopped(BaseException):
    """A signal asked to stop. Not an `Exception`: clients swallow some of those."""


def run(given: str | None, dry_run: bool) -> None:
    """Fetch a model or a data set, as its initializer does.

    Args:
        given: `model` or `dataset`; None to take it from the pod's host name.
        dry_run: only print what would be fetched.

    Raises:
        RunError: the fetch failed; the code tells why.
    """
    try:
        if problems := unknown_variables(kept_variables(os.environ)):
            raise RunError(ExitCode.USAGE, "\n".join(problems))
        kind = kind_of(given, socket.gethostname())
        request = request_of(kind, os.environ, workspace_of(os.environ))
        if request is None:
            say(f"STORAGE_URI is empty: no {kind} to fetch")
            return
        signal.signal(signal.SIGTERM, _stop)
        os.umask(0o002)
        if dry_run:
            print(describe(request, source_of(request)))
        else:
            _fetch(request)
    except (RunError, _Stopped) as ended:
        error = ended if isinstance(ended, RunError) else RunError(ExitCode.STOPPED, _STOPPED)
        write_termination_message(termination_log_of(os.environ), f"{error.code.meaning}: {error.message}")
        raise error from None


def source_of(request: FetchRequest) -> FileSource:
    """Return the source that a request names, and import its client library.

    Raises:
        RunError: the library is not installed (78), or access fails (66, 69).
    """
    try:
        if request.scheme == "hf":
            from stoker.fetch.hub import Hub

            return Hub(request)
        if request.scheme == "file":
            from stoker.fetch.folder import Folder

            return Folder(request)
        from stoker.fetch.objects import Objects

        # This may assume a role, from a server that may not answer.
        return persist(request.uri, lambda: Objects(request))
    except ImportError as error:
        raise RunError(ExitCode.CONFIG, not_installed(request.uri, INSTALL, error.name)) from error


def describe(request: FetchRequest, source: FileSource) -> str:
    """Return what would be fetched, as text.

    Raises:
        RunError: the source cannot be listed.
    """
    selection = _listed(request, source)
    target = Target(request)
    record = target.described(selection, source.revision)
    known = target.record()
    state = "up to date" if known and _same(known, record) else "empty" if target.is_empty() else "has other files"
    lines = [
        f"{request.kind}     {request.uri}" + (f" at {source.revision}" if source.revision else ""),
        f"target    {request.target} ({state})",
        f"fetched   {len(selection.files)} files, {human(selection.bytes)}",
        listing(selection.files),
        f"skipped   {len(selection.ignored)} files",
        *(f"  {path}: {why}" for path, why in sorted(selection.ignored.items())),
    ]
    return "\n".join(lines)


def _fetch(request: FetchRequest) -> None:
    target = Target(request)
    with target.locked(), _disk_errors(request):
        known = target.record()
        if known and request.job_id and known.get("job_id") == request.job_id and _asked_alike(known, request):
            # A restart: the input must not change between attempts, nor need a network.
            say(f"{request.target} is there: {_named(known)}, fetched for this job")
            return
        source = source_of(request)
        selection = _listed(request, source)
        record = target.described(selection, source.revision)
        if known and _same(known, record):
            target.adopt(known, record)
            say(f"{request.target} is there: {_named(known)}, nothing to fetch")
            return
        if not target.is_empty() and not request.replace:
            raise RunError(ExitCode.CONFIG, _refusal(request, known, record))
        staging = target.staging(record)
        source.tidy(staging.unfinished)
        _check_space(request, selection, staging.bytes())
        say(
            f"fetching {_named(record)} into {request.target}: {len(selection.files)} files, "
            f"{human(selection.bytes)}; {len(selection.ignored)} skipped (see stoker fetch --dry-run)"
        )
        Transfer(source, selection, staging).run()
        target.publish(staging, record)
    say(f"{request.target} is there: {_named(record)}")


def _listed(request: FetchRequest, source: FileSource) -> Selection:
    return select(request, persist(f"the files of {request.uri}", source.files))


def _same(known: dict[str, Any], record: dict[str, Any]) -> bool:
    return bool(known.get("uri") == record["uri"] and known["files"] == record["files"])


def _asked_alike(known: dict[str, Any], request: FetchRequest) -> bool:
    ignore = None if request.ignore is None else list(request.ignore)
    # Records of earlier versions have no endpoint: an object store is asked then.
    asked_before = known.get("uri"), known.get("ignore"), known.get("endpoint", "")
    return asked_before == (request.uri, ignore, request.endpoint)


def _named(record: dict[str, Any]) -> str:
    return str(record["uri"]) + (f" at {record['revision']}" if record.get("revision") else "")


def _refusal(request: FetchRequest, known: dict[str, Any] | None, record: dict[str, Any]) -> str:
    if known is None:
        what = "files that this command did not fetch, or not completely"
    elif known["uri"] != request.uri:
        what = _named(known)
    elif known.get("revision") != record["revision"]:
        what = f"revision {known.get('revision')} of it, while the source is now at {record['revision']}"
    elif known.get("endpoint", record["endpoint"]) != record["endpoint"]:
        what = f"other files of it: ENDPOINT was {known['endpoint']} and is now {record['endpoint']}"
    else:
        what = "other files of it: the source or IGNORE_PATTERNS has changed"
    return f"{request.target} is for {request.uri}, but has {what}. {request.fields.another}"


def _check_space(request: FetchRequest, selection: Selection, there: int) -> None:
    free, needed = shutil.disk_usage(request.target.parent).free, selection.bytes - there + _SPARE_BYTES
    if needed > free:
        raise RunError(
            ExitCode.CONFIG,
            f"{request.uri} needs {human(needed)} more, but the volume at {request.target.parent} has {human(free)} "
            f"free: {request.fields.space}",
        )


@contextmanager
def _disk_errors(request: FetchRequest) -> Iterator[None]:
    """Turn errors of the workspace's disk into messages."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise RunError(
            ExitCode.CONFIG,
            f"{error.filename or request.target} cannot be written: {error.strerror or error}"
            + (f": {request.fields.space}" if full else ""),
        ) from error


def _stop(number: int, frame: FrameType | None) -> None:
    # Once: a second signal must not interrupt the handling of this one.
    signal.signal(number, signal.SIG_IGN)
    raise _Stopped
