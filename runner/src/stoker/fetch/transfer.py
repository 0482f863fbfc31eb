"""Fetches files, several at once, with retries, verification and progress lines."""

from __future__ import annotations

import queue
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say
from stoker.fetch.selection import File, Selection
from stoker.fetch.source import FileSource, Unavailable
from stoker.fetch.target import Staging, mismatch

T = TypeVar("T")

# Between tries. A try that made progress starts the count again.
WAITS_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)
_AT_ONCE = 4
_PROGRESS_SECONDS = 10.0
# A file that arrives broken this often is broken in the source.
_BROKEN_TRIES = 3
# What OpenSSL says of a certificate, and what to do: its crypto/x509/x509_txt.c, and Python's names of hosts.
_CERTIFICATES = {
    "has expired": "renew the certificate of the server, or of the proxy",
    "not yet valid": "set the clock of the node, or use the certificate later",
    "mismatch": "ask the server by a name that its certificate has, or give it one for this name",
}
_UNKNOWN_AUTHORITY = (
    "add the authority that signed the certificate of the server, or of the proxy, to the bundle of `outbound.caBundle`"
)


def persist(what: str, action: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
    """Try until it works.

    Args:
        what: name for the messages.
        action: raises Unavailable if another try may help.
        progress: grows while bytes arrive, which starts the count again.

    Raises:
        RunError: no try worked (69), the server's certificate is refused (78), or another try cannot help.
    """
    tries, seen = 0, progress()
    while True:
        try:
            return action()
        except Unavailable as error:
            if remedy := _remedy_for_a_certificate(error):
                raise RunError(ExitCode.CONFIG, f"{what}: {error}: {remedy}") from error
            now = progress()
            tries, seen = (tries + 1, seen) if now <= seen else (1, now)
            if tries > len(WAITS_SECONDS):
                raise RunError(
                    ExitCode.UNAVAILABLE, f"{what}: {error} (gave up after {len(WAITS_SECONDS) + 1} tries)"
                ) from error
            wait = WAITS_SECONDS[tries - 1]
            say(f"{what}: {error}; trying again in {wait:.0f} s")
            time.sleep(wait)


def _remedy_for_a_certificate(error: BaseException) -> str:
    """Return what to do about a server's certificate; empty if none was refused."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(cause):
            said = str(cause)
            return next((remedy for words, remedy in _CERTIFICATES.items() if words in said), _UNKNOWN_AUTHORITY)
        cause = cause.__cause__ or cause.__context__
    return ""


class Transfer:
    """Fetches the files of a selection into a staging folder.

    Args:
        source: where they come from.
        selection: the files.
        staging: where they go.
    """

    def __init__(self, source: FileSource, selection: Selection, staging: Staging) -> None:
        self._source = source
        self._selection = selection
        self._staging = staging
        self._todo: queue.SimpleQueue[File] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Fetch every missing file.

        Raises:
            RunError: a file cannot be fetched.
            OSError: this machine's disk fails.
        """
        missing = [file for file in self._selection.files if not self._staging.has(file)]
        for file in sorted(missing, key=lambda file: file.size, reverse=True):
            self._todo.put(file)
        # Daemons: a failure or a stop ends the program at once. The next attempt continues with what they wrote.
        for _ in range(min(_AT_ONCE, len(missing))):
            threading.Thread(target=self._work, daemon=True).start()
        meter = _Meter(self._selection.bytes, self._staging)
        for _ in missing:
            while True:
                try:
                    failure = self._done.get(timeout=_PROGRESS_SECONDS)
                    break
                except queue.Empty:
                    meter.tell()
            if failure is not None:
                raise failure

    def _work(self) -> None:
        while True:
            try:
                file = self._todo.get_nowait()
            except queue.Empty:
                return
            try:
                self._bring(file)
                self._done.put(None)
            except BaseException as failure:  # noqa: BLE001 - raised again by the thread that waits
                self._done.put(failure)
                return

    def _bring(self, file: File) -> None:
        for _ in range(_BROKEN_TRIES):
            fetched = persist(
                file.path, lambda: self._source.fetch(file, self._staging.unfinished), self._staging.bytes
            )
            wrong = mismatch(file, fetched)
            if wrong is None or (fetched.stat().st_size == file.size and not self._is_digest(file)):
                self._staging.take(file, fetched)
                return
            say(f"{file.path}: {wrong}; fetching it again")
            fetched.unlink()
        raise RunError(
            ExitCode.BAD_DATA,
            f"{file.path} of {self._source.request.uri} is broken: {wrong}, {_BROKEN_TRIES} times in a row; "
            "upload the file again",
        )

    def _is_digest(self, file: File) -> bool:
        return persist(file.path, lambda: self._source.is_digest(file))


class _Meter:
    """Prints the progress of a transfer."""

    def __init__(self, total: int, staging: Staging) -> None:
        self._total = total
        self._staging = staging
        self._at, self._bytes = time.monotonic(), staging.bytes()

    def tell(self) -> None:
        """Print one line."""
        now, there = time.monotonic(), self._staging.bytes()
        speed = max(0.0, (there - self._bytes) / max(now - self._at, 1e-3))
        self._at, self._bytes = now, there
        there = min(there, self._total)
        left = f", {(self._total - there) / speed:.0f} s left" if speed else ""
        share = 100 * there // max(self._total, 1)
        say(f"{human(there)} of {human(self._total)} ({share} %), {human(int(speed))}/s{left}")


def human(count: int) -> str:
    """Return a number of bytes as people read it."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def listing(files: Sequence[File]) -> str:
    """Return files and sizes, a line each."""
    return "\n".join(f"  {human(file.size):>9}  {file.path}" for file in files)
