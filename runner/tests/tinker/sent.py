"""Requests as the client writes them, without the client."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise

from stoker.tinker.wire import field, fields

Columns = Mapping[str, Sequence[float]]
_TYPES = {"f": 1, "q": 2}


def tensor(values: Sequence[float], letter: str = "", shape: Sequence[int] | None = None) -> bytes:
    """Return a Tensor; whole numbers are int64."""
    letter = letter or ("q" if all(isinstance(value, int) for value in values) else "f")
    data = array(letter, values).tobytes()
    lengths = [len(values)] if shape is None else shape
    return field(1, data) + field(3, _TYPES[letter]) + b"".join(field(4, length) for length in lengths)


def datum(tokens: Sequence[int], columns: Mapping[str, bytes]) -> bytes:
    """Return a Datum."""
    chunk = field(1, field(1, array("i", tokens).tobytes()))
    pairs = (field(2, field(1, name) + field(2, column)) for name, column in columns.items())
    return field(1, chunk) + b"".join(pairs)


def forward_backward(
    model_id: str,
    seq_id: int,
    loss: str,
    rows: Sequence[tuple[Sequence[int], Columns]],
    config: Mapping[str, float] | None = None,
    *,
    forward_only: bool = False,
) -> bytes:
    """Return a ForwardBackwardRequest."""
    data = [datum(tokens, {name: tensor(column) for name, column in columns.items()}) for tokens, columns in rows]
    return request(model_id, seq_id, loss, data, config, forward_only=forward_only)


def request(
    model_id: str,
    seq_id: int,
    loss: str,
    data: Sequence[bytes],
    config: Mapping[str, float] | None = None,
    *,
    forward_only: bool = False,
) -> bytes:
    """Return a ForwardBackwardRequest of rows that are written already."""
    config = config or {}
    return b"".join(
        (
            field(1, model_id),
            field(2, seq_id),
            *(field(3, row) for row in data),
            field(4, loss),
            *(field(5, field(1, name) + field(2, float(value))) for name, value in config.items()),
            *([field(6, 1)] if forward_only else []),
            *(field(7, field(1, name) + field(2, field(1, float(value)))) for name, value in config.items()),
        )
    )


def read_output(body: bytes) -> tuple[list[list[float]], dict[str, float]]:
    """Return the log-probabilities of each row, and the metrics, of a ForwardBackwardOutput."""
    rows: list[list[float]] = []
    metrics: dict[str, float] = {}
    for number, value in fields(body):
        assert isinstance(value, bytes)
        if number == 3:
            pair = dict(fields(value))
            metrics[bytes(pair[1]).decode()] = struct.unpack("<d", bytes(pair[2]))[0]
        elif number == 2:
            (entry,) = [inner for where, inner in fields(value) if where == 2]
            found = dict(fields(bytes(dict(fields(bytes(entry)))[2])))
            offsets = array("q", bytes(found[2]))
            data = bytes(found[1])
            rows += [array("f", data[a:b]).tolist() for a, b in pairwise(offsets)]
    return rows, metrics
