"""The client keeps connections, asks again where one was only idle, and makes sense of whatever comes back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from stoker.rollouts.connections import Answer, Connections, LostError, Place

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers each request with the next bytes of a list; None closes the connection instead."""

    def __init__(self, *answers: bytes | None, end: bool = False) -> None:
        self.answers, self.end = [*answers], end
        self.connections = 0
        self.heads: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while self.answers:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            self.heads.append(head.decode())
            answer = self.answers.pop(0)
            if answer is None:
                break
            writer.write(answer)
            if self.end:
                break
        writer.close()


@asynccontextmanager
async def serving(server: Server, key: str = "") -> AsyncIterator[Connections]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    connections = Connections(Place("name", server.port, "127.0.0.1"), key)
    try:
        yield connections
    finally:
        connections.close()
        listening.close()


def run(server: Server, count: int = 1, key: str = "", seconds: float = 5) -> list[Answer]:
    async def ask() -> list[Answer]:
        async with serving(server, key) as connections:
            return [await connections.request("GET", "/x", seconds=seconds) for _ in range(count)]

    return asyncio.run(ask())


def test_a_connection_serves_many_requests() -> None:
    server = Server(*[OK] * 3)
    assert run(server, 3, key="k") == [Answer(200, b"ok")] * 3
    assert server.connections == 1
    assert "GET /x HTTP/1.1\r\nHost: name:" in server.heads[0]
    assert "Authorization: Bearer k\r\n" in server.heads[0]


def test_a_connection_that_was_closed_while_idle_is_no_loss() -> None:
    server = Server(OK, None, OK)
    assert run(server, 2) == [Answer(200, b"ok")] * 2
    assert (server.connections, len(server.heads)) == (2, 3)


def test_a_connection_that_ends_without_an_answer_is_a_loss() -> None:
    with pytest.raises(LostError, match="closed the connection without an answer") as lost:
        run(Server(None))
    assert lost.value.connected


@pytest.mark.parametrize(
    ("raw", "body", "kept"),
    [
        (OK, b"ok", True),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n1;x\r\no\r\n1\r\nk\r\n0\r\nA: b\r\n\r\n",
            b"ok",
            True,
        ),
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
        (b"HTTP/1.1 500\r\nContent-Length: 0\r\n\r\n", b"", True),
    ],
)
def test_answers_of_every_form_are_read(raw: bytes, body: bytes, kept: bool) -> None:
    server = Server(raw, OK)
    assert [answer.body for answer in run(server, 2)] == [body, b"ok"]
    assert server.connections == (1 if kept else 2)


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    assert run(Server(b"HTTP/1.1 200 OK\r\n\r\nok", end=True)) == [Answer(200, b"ok")]


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\xff\x00\xff\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A" * 70000 + b": 1\r\n\r\n",
        b"HTTP/1.1 200",
    ],
    ids=lambda raw: repr(raw[:60]),
)
def test_what_is_no_answer_is_a_loss(raw: bytes) -> None:
    with pytest.raises(LostError):
        run(Server(raw, end=True))


def test_nobody_there_is_a_loss_without_a_connection() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(LostError, match="no connection") as lost:
        asyncio.run(Connections(Place("name", port, "127.0.0.1")).request("GET", "/", seconds=5))
    assert not lost.value.connected


def test_a_server_that_says_nothing_is_a_loss_after_a_while() -> None:
    with pytest.raises(LostError, match=r"no answer in 0.1 s"):
        run(Server(b"", OK), seconds=0.1)


@pytest.mark.parametrize("end", [Connections.close, None])
def test_a_request_that_nobody_waits_for_any_more_closes_its_connection(
    end: Callable[[Connections], None] | None,
) -> None:
    """So that the server stops writing the answer."""

    async def ask() -> bytes:
        closed: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            try:
                closed.set_result(await reader.read())
            except ConnectionError:
                closed.set_result(b"")

        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        connections = Connections(Place("name", listening.sockets[0].getsockname()[1], "127.0.0.1"))
        task = asyncio.create_task(connections.request("GET", "/", seconds=60))
        await asyncio.sleep(0.05)
        if end is None:
            task.cancel()
        else:
            end(connections)
        with pytest.raises((LostError, asyncio.CancelledError)):
            await task
        listening.close()
        return await asyncio.wait_for(closed, 2)

    assert asyncio.run(ask()) == b""
