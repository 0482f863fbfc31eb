"""Where samplers are now: the places that their addresses stand for."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

from stoker.rollouts.addresses import Address
from stoker.rollouts.connections import Place


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
            error = problem if isinstance(problem, OSError) else OSError(f"it is not a host name: {problem}")
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, sorted(found), error)

    threading.Thread(target=ask, name="lookup", daemon=True).start()
    return await answer


def _named(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
