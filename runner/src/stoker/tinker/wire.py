"""The part of protobuf's wire format that the client's messages use. Pure.

The runner depends on click and PyYAML only, and the images have protobuf by chance.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_LONGEST_VARINT = 10


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field: an int, or bytes for a text, a message, an array or a fixed number.

    Raises:
        ValueError: the bytes are not a message.
    """
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in (_EIGHT, _FOUR):
            size = 8 if kind == _EIGHT else 4
        else:
            raise ValueError(f"field {number} has the unknown wire type {kind}")
        if number == 0 or size > end - at:
            raise ValueError(f"field {number} ends after the message")
        yield number, message[at : at + size]
        at += size


def field(number: int, value: int | bytes | float | str) -> bytes:
    """Return a field of a message: a whole number, a double, a text or bytes."""
    if isinstance(value, float):
        return _written(number << 3 | _EIGHT) + struct.pack("<d", value)
    if isinstance(value, int):
        return _written(number << 3 | _VARINT) + _written(value)
    data = value.encode() if isinstance(value, str) else value
    return _written(number << 3 | _BYTES) + _written(len(data)) + data


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_LONGEST_VARINT):
        if at + index >= len(message):
            raise ValueError("the message ends inside a number")
        byte = message[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("a number is longer than 64 bits")


def _written(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
