"""Messages between a run and the process of its rewards: JSON after its length. JSON, because pickle runs code."""

from __future__ import annotations

import asyncio
import json
import os
import select
import struct
import time
from typing import Any

_LENGTH = struct.Struct(">I")


def packed(message: Any) -> bytes:
    """Return a message as it is sent.

    Raises:
        TypeError: a value has no JSON form, such as an image.
    """
    body = json.dumps(message, default=_plain).encode()
    return _LENGTH.pack(len(body)) + body


async def received(reader: asyncio.StreamReader) -> Any:
    """Return the next message; None if the other side is gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return json.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def received_now(descriptor: int, seconds: float) -> Any:
    """Return the next message of a blocking descriptor; None if the other side is gone.

    Raises:
        TimeoutError: it did not come in that time.
    """
    end = time.monotonic() + seconds
    head = _read(descriptor, _LENGTH.size, end)
    if head is None:
        return None
    body = _read(descriptor, _LENGTH.unpack(head)[0], end)
    return None if body is None else json.loads(body)


def _read(descriptor: int, length: int, end: float) -> bytes | None:
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    data = b""
    while len(data) < length:
        if not ready.poll(max(0.0, end - time.monotonic()) * 1000):
            raise TimeoutError
        more = os.read(descriptor, length - len(data))
        if not more:
            return None
        data += more
    return data


def _plain(value: Any) -> Any:
    """Return the JSON form of a number or an array of numpy or torch."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")
