"""Where samplers are: addresses as a user writes them, and the places that they stand for now."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts.connections import Place

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


async def places_of(address: Address) -> dict[Place, str]:
    """Return the places that an address stands for now, with a name for each.

    A name that stands for one place keeps its name when that place moves, as a pod does that is replaced.

    Raises:
        OSError: the name is not known now.
    """
    found = await _looked_up(address)
    if set(found) == {"::1", "127.0.0.1"}:  # one machine, under the two addresses that `localhost` has
        found = ["127.0.0.1"]
    return {
        Place(address.host, address.port, ip, address.tls, address.watcher): _named(
            ip if len(found) > 1 else address.host, address.port
        )
        for ip in found
    }


async def _looked_up(address: Address) -> list[str]:
    """Return the IP addresses of a host.

    A thread of its own looks it up, for which a process that ends does not wait, unlike for those of an executor.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def tell(found: list[str], error: OSError | None) -> None:
        if error is not None and not answer.done():
            answer.set_exception(error)
        elif not answer.done():
            answer.set_result(found)

    def ask() -> None:
        found, error = set[str](), None
        try:
            found = {str(entry[4][0]) for entry in socket.getaddrinfo(address.host, None, type=socket.SOCK_STREAM)}
        except (OSError, UnicodeError) as problem:  # a label that is too long is an error of encoding
            error = problem if isinstance(problem, OSError) else OSError(f"it is no name: {problem}")
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, sorted(found), error)

    threading.Thread(target=ask, name="lookup", daemon=True).start()
    return await answer


def listed(names: Iterable[str], most: int = 8) -> str:
    """Return names for a message, the first few of many."""
    names = [*names]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _named(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
