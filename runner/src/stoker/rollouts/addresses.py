"""Where samplers are, as a user writes it. Pure; `stoker.rollouts.lookup` has the places that they stand for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from stoker.contract.exits import ExitCode, RunError

DEFAULT_PORT = 8000


@dataclass(frozen=True, slots=True)
class Address:
    """An address of samplers.

    Attributes:
        host: a name or an IP address. A name may stand for many samplers.
        port: their port.
        tls: True for https.
        watcher: the port of the watcher of their versions; None if a proxy has all at one port.
    """

    host: str
    port: int
    tls: bool = False
    watcher: int | None = None


def addresses_in(text: str) -> tuple[Address, ...]:
    """Return the addresses in a list with commas between them.

    An address may end in `;watcher=http://HOST:PORT` where no proxy stands before both parts of a sampler.

    Raises:
        RunError: 78, one is not an address, or there is none.
    """
    found = tuple(_address(word.strip()) for word in text.split(",") if word.strip())
    if not found:
        raise RunError(ExitCode.CONFIG, "--samplers is empty: name the samplers, such as http://sampler-0:8000")
    return tuple(dict.fromkeys(found))


def _address(word: str) -> Address:
    word, separate, watcher = word.partition(";watcher=")
    found = _plain(word)
    if not separate:
        return found
    other = _plain(watcher)
    if other.host != found.host or other.tls:
        raise RunError(
            ExitCode.CONFIG,
            f"--samplers names the watcher {watcher!r}: write http://{found.host}:PORT, on the same host",
        )
    return replace(found, watcher=other.port)


def _plain(word: str) -> Address:
    try:
        parts = urlsplit(word if "//" in word else f"http://{word}")
        port = parts.port if parts.port is not None else 443 if parts.scheme == "https" else DEFAULT_PORT
        good = parts.scheme in ("http", "https") and port != 0 and parts.path in ("", "/")
        if good and parts.hostname and not (parts.username or parts.password or parts.query or parts.fragment):
            return Address(parts.hostname, port, parts.scheme == "https")
    except ValueError:  # a port or an IPv6 address that is none
        pass
    raise RunError(
        ExitCode.CONFIG,
        f"--samplers {word!r} is not an address: write http://HOST:PORT, without a path, or a name that DNS knows",
    )


def listed(names: Iterable[str], most: int = 8) -> str:
    """Return names for a message, the first few of many."""
    names = [*names]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
