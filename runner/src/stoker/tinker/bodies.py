"""Reads a request's body, and no more of it than is allowed, neither as it comes nor unpacked."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Protocol

from stoker.tinker.refusals import RefusedError

LARGEST = 32 * 2**20
"""Bytes of a body, as it comes and unpacked. The client's largest request has about 5 MB."""

_CHUNK_LINE = 128
_UNPACK = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_TOO_LARGE = f"the body has more than {LARGEST} bytes: send fewer rows in a request"


class Stream(Protocol):
    """Where a body comes from."""

    def read(self, size: int, /) -> bytes:
        """Return so many bytes, fewer only at the end."""
        ...

    def readline(self, size: int, /) -> bytes:
        """Return a line, at most so many bytes of it."""
        ...


def read_body(headers: Mapping[str, str], stream: Stream) -> bytes:
    """Return a request's body, unpacked.

    Args:
        headers: with names in lower case.
        stream: what follows the headers.

    Raises:
        RefusedError: it is too large, packed in an unknown way, or cut.
    """
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = _chunks(stream)
    else:
        size = headers.get("content-length", "0")
        if not (size.isascii() and size.isdigit()):
            raise RefusedError("Content-Length is not a number: send the body's length")
        if len(size) > len(str(LARGEST)) or int(size) > LARGEST:
            raise RefusedError(_TOO_LARGE, 413)
        body = stream.read(int(size))
        if len(body) < int(size):
            raise RefusedError("the body ends early: send it again")
    return unpacked(body, headers.get("content-encoding", "").strip().lower())


def unpacked(body: bytes, encoding: str) -> bytes:
    """Return what was packed; never more than is allowed comes into being.

    Raises:
        RefusedError: it is too large, packed in an unknown way, or damaged.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in _UNPACK:
        raise RefusedError(
            f"the body is packed as {encoding!r}: send it as it is (this endpoint's client/config says so), or as gzip",
            415,
        )
    unpack = zlib.decompressobj(_UNPACK[encoding])
    try:
        found = unpack.decompress(body, LARGEST + 1)
    except zlib.error as error:
        raise RefusedError(f"the body is not {encoding}: {error}") from error
    if len(found) > LARGEST:
        raise RefusedError(_TOO_LARGE, 413)
    if not unpack.eof or unpack.unused_data:
        raise RefusedError(f"the body is not one whole {encoding} stream: send it again")
    return found


def _chunks(stream: Stream) -> bytes:
    found: list[bytes] = []
    total = 0
    while True:
        line = stream.readline(_CHUNK_LINE).split(b";")[0].strip()
        if not line or len(line) > 8 or not all(byte in b"0123456789abcdefABCDEF" for byte in line):
            raise RefusedError("the body's chunks cannot be read: send it with Content-Length")
        size = int(line, 16)
        total += size
        if total > LARGEST:
            raise RefusedError(_TOO_LARGE, 413)
        if not size:
            for _ in range(_CHUNK_LINE):  # trailers
                if stream.readline(LARGEST) in (b"\r\n", b"\n", b""):
                    return b"".join(found)
            raise RefusedError("the body's chunks have too many trailers: send it with Content-Length")
        chunk = stream.read(size)
        if len(chunk) < size or stream.readline(_CHUNK_LINE).strip():
            raise RefusedError("the body ends early: send it again")
        found.append(chunk)
