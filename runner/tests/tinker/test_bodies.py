"""Bodies of requests: bounded as they come and as they are unpacked."""

from __future__ import annotations

import gzip
import io
import zlib

import pytest

from stoker.tinker.bodies import LARGEST, read_body, unpacked
from stoker.tinker.refusals import RefusedError


def read(body: bytes, **headers: str) -> bytes:
    """Return a body that comes with these headers."""
    return read_body({name.replace("_", "-"): value for name, value in headers.items()}, io.BytesIO(body))


def test_a_body_is_read_however_it_comes() -> None:
    assert read(b"abcdef", content_length="3") == b"abc"
    assert read(b"") == b""
    assert read(b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\ntrailer: 1\r\n\r\nnext", transfer_encoding="chunked") == b"abcde"
    packed = gzip.compress(b"abc")
    assert read(packed, content_length=str(len(packed)), content_encoding="gzip") == b"abc"
    assert unpacked(zlib.compress(b"abc"), "deflate") == b"abc"


def test_a_packed_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = gzip.compress(bytes(LARGEST + 1), compresslevel=1)
    assert len(bomb) < LARGEST // 100
    with pytest.raises(RefusedError, match="send fewer rows") as caught:
        unpacked(bomb, "gzip")
    assert caught.value.status == 413


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {"content_length": str(LARGEST + 1)}, 413),
        (b"", {"content_length": "9" * 5000}, 413),
        (b"", {"content_length": "-1"}, 400),
        (b"", {"content_length": "many"}, 400),
        (b"ab", {"content_length": "3"}, 400),
        (b"2000001\r\n", {"transfer_encoding": "chunked"}, 413),
        (b"xyz\r\n", {"transfer_encoding": "chunked"}, 400),
        (b"123456789\r\n", {"transfer_encoding": "chunked"}, 400),
        (b"5\r\nab", {"transfer_encoding": "chunked"}, 400),
        (b"2\r\nabXX\r\n0\r\n\r\n", {"transfer_encoding": "chunked"}, 400),
        (b"0\r\n" + b"a: b\r\n" * 200, {"transfer_encoding": "chunked"}, 400),
        (b"abc", {"content_length": "3", "content_encoding": "zstd"}, 415),
        (b"abc", {"content_length": "3", "content_encoding": "gzip"}, 400),
        # Without a time in its header: all workers must give the case the same name.
        (gzip.compress(b"abc", mtime=0)[:-4], {"content_length": "19", "content_encoding": "gzip"}, 400),
    ],
)
def test_a_body_that_is_wrong_is_refused(body: bytes, headers: dict[str, str], status: int) -> None:
    with pytest.raises(RefusedError, match=": ") as caught:
        read(body, **headers)
    assert caught.value.status == status
