"""A small HTTP/1.1 client on asyncio: many requests to few servers that are known by their address.

A step asks its samplers some hundred times, and does so in the trainer's own process. There a request of this client
takes less than a tenth of a millisecond of Python's lock; one of the clients on PyPI took one and a half to two
milliseconds (httpx2 2.16), which is a quarter of a second for each step of 128 samples.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass

_HEAD_BYTES = 64 * 2**10
_BODY_BYTES = 256 * 2**20
_CONNECT_SECONDS = 5.0
# A node that is gone says nothing. The kernel finds out in about half a minute.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))


class LostError(Exception):
    """No answer came.

    Args:
        message: why.
        connected: False if there was not even a connection.
    """

    def __init__(self, message: str, *, connected: bool = True) -> None:
        super().__init__(message)
        self.connected = connected


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered.

    Attributes:
        status: of HTTP.
        body: as it came.
    """

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server listens.

    Attributes:
        host: its name, for TLS and the Host header.
        port: its port.
        address: the IP address to connect to.
        tls: True for https.
        watcher: the port at which it says what it serves; None if that is the same.
    """

    host: str
    port: int
    address: str
    tls: bool = False
    watcher: int | None = None


class Connections:
    """Connections to one server, kept for the next request. They belong to one event loop.

    Args:
        place: where it listens.
        key: sent as a bearer token; empty for none.

    Attributes:
        keyed: there is a key.
    """

    def __init__(self, place: Place, key: str = "") -> None:
        self._place, self.keyed = place, bool(key)
        host = f"[{place.host}]" if ":" in place.host else place.host
        self._headers = f"Host: {host}:{place.port}\r\n" + (f"Authorization: Bearer {key}\r\n" if key else "")
        self._tls = ssl.create_default_context() if place.tls else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    async def request(self, method: str, path: str, body: bytes = b"", *, seconds: float) -> Answer:
        """Send a request and return the answer.

        A connection that the server closed while it was idle is no loss: the request is sent again at once.

        Raises:
            LostError: no answer came in time, or something that is no answer.
        """
        head = f"{method} {path} HTTP/1.1\r\n{self._headers}Content-Length: {len(body)}\r\n"
        if body:
            head += "Content-Type: application/json\r\n"
        message = head.encode("latin-1") + b"\r\n" + body
        try:
            async with asyncio.timeout(seconds):
                while True:
                    connection, kept = await self._connection()
                    try:
                        answer = await connection.ask(message)
                    except _ClosedError as error:
                        self._drop(connection)
                        if not kept:
                            raise LostError("it closed the connection without an answer") from error
                    except BaseException:
                        self._drop(connection)
                        raise
                    else:
                        if connection.reusable:
                            self._idle.append(connection)
                        else:
                            self._drop(connection)
                        return answer
        except TimeoutError as error:
            raise LostError(f"no answer in {seconds:g} s") from error
        except OSError as error:
            raise LostError(error.strerror or str(error) or type(error).__name__) from error

    def close(self) -> None:
        """Close every connection. Requests under way end with a LostError."""
        for connection in self._open:
            connection.writer.transport.abort()
        self._open.clear()
        self._idle.clear()

    async def _connection(self) -> tuple[_Connection, bool]:
        """Return a connection, and whether it was used before."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # those of a loop that has ended cannot be used
            self._loop, self._idle, self._open = loop, [], set()
        while self._idle:
            connection = self._idle.pop()
            if not connection.reader.at_eof() and not connection.writer.is_closing():
                return connection, True
            self._drop(connection)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    self._place.address,
                    self._place.port,
                    limit=_HEAD_BYTES,
                    ssl=self._tls,
                    server_hostname=self._place.host if self._tls else None,
                )
        except TimeoutError as error:
            raise LostError(f"no connection in {_CONNECT_SECONDS:g} s", connected=False) from error
        except OSError as error:
            raise LostError(f"no connection: {error.strerror or error}", connected=False) from error
        found = writer.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            found.setsockopt(socket.IPPROTO_TCP, option, value)
        connection = _Connection(reader, writer)
        self._open.add(connection)
        return connection, False

    def _drop(self, connection: _Connection) -> None:
        self._open.discard(connection)
        # Not `close`, which waits until all is sent: a server that is asked no longer should learn it now.
        connection.writer.transport.abort()


class _ClosedError(Exception):
    """The server closed the connection before it answered anything."""


class _Connection:
    """One connection, for one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.reusable = False

    async def ask(self, message: bytes) -> Answer:
        self.reusable = False
        try:
            self.writer.write(message)
            await self.writer.drain()
            head = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise LostError("the answer ends inside its headers") from error
            raise _ClosedError from error
        except ConnectionError as error:
            raise _ClosedError from error
        except asyncio.LimitOverrunError as error:
            raise LostError("the answer's headers are too long") from error
        try:
            first, *lines = head.decode("latin-1").split("\r\n")
            version, status = first.split(" ")[:2]
            fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body, whole = await self._body(fields)
            self.reusable = whole and version == "HTTP/1.1" and "close" not in fields.get("connection", "").lower()
            return Answer(int(status), body)
        except ValueError as error:
            raise LostError("the answer is not HTTP") from error
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as error:
            raise LostError("the answer is incomplete") from error

    async def _body(self, fields: dict[str, str]) -> tuple[bytes, bool]:
        """Return the body, and whether the connection is ready for another request after it."""
        if "chunked" in fields.get("transfer-encoding", "").lower():
            return await self._chunks(), True
        if "content-length" in fields:
            return await self.reader.readexactly(_allowed(int(fields["content-length"]))), True
        return await self.reader.read(_BODY_BYTES), False

    async def _chunks(self) -> bytes:
        chunks: list[bytes] = []
        total = 0
        while True:
            size = int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16)
            total = _allowed(total + size)
            if not size:
                while await self.reader.readuntil(b"\r\n") != b"\r\n":  # trailers
                    pass
                return b"".join(chunks)
            chunks.append(await self.reader.readexactly(size))
            await self.reader.readexactly(2)


def _allowed(size: int) -> int:
    if not 0 <= size <= _BODY_BYTES:
        raise ValueError(f"invalid length: {size} bytes")
    return size
