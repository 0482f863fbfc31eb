"""The client's messages in protobuf, and what of them a trainer needs. Pure.

Field numbers are those of `tinker_public.proto` (tinker 0.38).
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from stoker.tinker.refusals import RefusedError
from stoker.tinker.wire import field, fields

_FLOAT32, _INT64, _INT32 = 1, 2, 3
# Format letters of `array`, by the number of a tensor's type.
_LETTERS = {_FLOAT32: "f", _INT64: "q", _INT32: "i"}

TARGETS = "target_tokens"
LOSSES: Mapping[str, tuple[frozenset[str], frozenset[str], frozenset[str]]] = {
    "cross_entropy": (frozenset(), frozenset({"weights"}), frozenset()),
    "importance_sampling": (frozenset({"logprobs", "advantages"}), frozenset(), frozenset()),
    "ppo": (
        frozenset({"logprobs", "advantages"}),
        frozenset(),
        frozenset({"clip_low_threshold", "clip_high_threshold"}),
    ),
}
"""Loss → the columns that it needs and those that it may have, beside the target tokens, and its settings."""


@dataclass(frozen=True, slots=True)
class Datum:
    """A row to learn from.

    Attributes:
        tokens: what the model reads.
        targets: for each of them the token whose probability counts.
        columns: numbers for each target, by name.
    """

    tokens: array[int]
    targets: array[int]
    columns: Mapping[str, array[float]]


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """A pass over rows.

    Attributes:
        model_id: the model.
        seq_id: the number of the request among those about the model.
        loss: its name.
        config: its settings.
        data: the rows.
        forward_only: no gradients are added.
    """

    model_id: str
    seq_id: int
    loss: str
    config: Mapping[str, float]
    data: tuple[Datum, ...]
    forward_only: bool


@dataclass(frozen=True, slots=True)
class Sampled:
    """An answer that was sampled.

    Attributes:
        tokens: without those of the prompt.
        logprobs: of each token.
        cut: it ended because it was as long as allowed.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    cut: bool


def read_forward_backward(body: bytes) -> ForwardBackward:
    """Read a ForwardBackwardRequest.

    Raises:
        RefusedError: it is none, or asks for what this endpoint does not have.
    """
    try:
        return _forward_backward(body)
    except (ValueError, struct.error) as error:
        raise RefusedError(
            f"the body is not a ForwardBackwardRequest ({error}): send what tinker 0.38's client sends"
        ) from error


def model_in(body: bytes) -> str:
    """Return whose gradients a ForwardBackwardRequest adds to, as far as it can be read; empty for nobody's."""
    model_id, forward_only = "", 0
    with suppress(ValueError):
        for number, value in fields(body):
            if number == 1:
                model_id = _text(value)
            elif number == 6:
                forward_only = _whole(value)
    return "" if forward_only else model_id


def refuse_sizes(request: ForwardBackward, vocabulary: int, context: int) -> None:
    """Refuse rows that the model cannot read.

    Raises:
        RefusedError: a row is too long, or a token is not one of the model's.
    """
    for number, datum in enumerate(request.data):
        if len(datum.tokens) > context:
            raise RefusedError(
                f"datum {number} has {len(datum.tokens)} tokens, and the model reads {context}: shorten it"
            )
        for name, tokens in (("model_input", datum.tokens), (TARGETS, datum.targets)):
            if min(tokens) < 0 or max(tokens) >= vocabulary:
                raise RefusedError(
                    f"datum {number}: {name} has a token that the model lacks: write numbers from 0 to {vocabulary - 1}"
                )


def forward_backward_output(logprobs: Sequence[Sequence[float]], metrics: Mapping[str, float]) -> bytes:
    """Return a ForwardBackwardOutput.

    Args:
        logprobs: of each row's targets.
        metrics: numbers about the pass; names end in how chunks are added up, such as `loss:sum`.
    """
    rows = [_bytes("f", row) for row in logprobs]
    offsets = [0]
    for row in rows:
        offsets.append(offsets[-1] + len(row))
    tensor = field(1, b"".join(rows)) + field(2, _bytes("q", offsets)) + field(3, _FLOAT32)
    record = field(1, "TorchLossReturn") + _entry(2, "logprobs", field(2, tensor)) + field(3, len(rows))
    return (
        field(1, "TorchLossReturn")
        + field(2, record)
        + b"".join(_entry(3, name, field(2, float(value))) for name, value in metrics.items())
    )


def sample_response(sequences: Iterable[Sampled], prompt_logprobs: Sequence[float | None] | None) -> bytes:
    """Return a SampleResponse."""
    answer = b"".join(
        field(
            1,
            (field(1, 1) if one.cut else b"") + field(2, _bytes("i", one.tokens)) + field(3, _bytes("f", one.logprobs)),
        )
        for one in sequences
    )
    if prompt_logprobs is None:
        return answer
    return answer + field(2, _bytes("f", [math.nan if one is None else one for one in prompt_logprobs]))


def _forward_backward(body: bytes) -> ForwardBackward:
    model_id, loss, seq_id, forward_only = "", "", 0, False
    config: dict[str, float] = {}
    rows: list[bytes] = []
    for number, value in fields(body):
        if number == 1:
            model_id = _text(value)
        elif number == 2:
            seq_id = _whole(value)
        elif number == 3:
            rows.append(_raw(value))
        elif number == 4:
            loss = _text(value)
        elif number == 6:
            forward_only = bool(_whole(value))
        elif number in (5, 7):  # 7 says the same, and can hold texts
            name, setting = _pair(_raw(value))
            config[name] = _number(name, setting) if number == 7 else _double(setting)
    if loss not in LOSSES:
        raise RefusedError(f"the loss {loss!r} is not supported: write one of {', '.join(LOSSES)}")
    if unknown := sorted(config.keys() - LOSSES[loss][2]):
        raise RefusedError(f"{loss} has no setting {unknown[0]!r}: drop it from loss_fn_config")
    if not all(map(math.isfinite, config.values())):
        raise RefusedError(f"a setting of {loss} is not a finite number: correct loss_fn_config")
    if not rows:
        raise RefusedError("there is no data: send one Datum or more")
    data = tuple(_datum(number, row, loss) for number, row in enumerate(rows))
    return ForwardBackward(model_id, seq_id, loss, config, data, forward_only)


def _datum(number: int, message: bytes, loss: str) -> Datum:
    tokens: array[int] = array("i")
    columns: dict[str, array[float]] = {}
    for where, value in fields(message):
        if where == 1:
            for kind, chunk in fields(_raw(value)):
                if kind != 1:
                    raise RefusedError(f"datum {number} has an image or a sound: this endpoint reads tokens only")
                for inner, ids in fields(_raw(chunk)):
                    if inner == 1:
                        tokens.extend(_array("i", _raw(ids)))
        elif where == 2:
            name, tensor = _pair(_raw(value))
            columns[name] = _tensor(number, name, _raw(tensor))
    needed, possible, _ = LOSSES[loss]
    if missing := sorted((needed | {TARGETS}) - columns.keys()):
        raise RefusedError(f"datum {number} lacks {missing[0]!r}, which {loss} needs: add it to loss_fn_inputs")
    if extra := sorted(columns.keys() - needed - possible - {TARGETS}):
        raise RefusedError(f"datum {number} has {extra[0]!r}, which {loss} does not read: drop it from loss_fn_inputs")
    for name, column in columns.items():
        if len(column) != len(tokens):
            raise RefusedError(
                f"datum {number}: {name} has {len(column)} values and model_input {len(tokens)} tokens: "
                "write one for each token"
            )
        if not all(map(math.isfinite, column)):
            raise RefusedError(f"datum {number}: {name} has a value that is not a finite number: correct it")
    if not tokens:
        raise RefusedError(f"datum {number} is empty: write one token or more")
    targets = columns.pop(TARGETS)
    if targets.typecode == "f":
        raise RefusedError(f"datum {number}: {TARGETS} are float32: write int64")
    return Datum(tokens, array("q", map(int, targets)), columns)


def _tensor(number: int, name: str, message: bytes) -> array[float]:
    data, letter = b"", ""
    shape: list[int] = []
    for where, value in fields(message):
        if where == 1:
            data = _raw(value)
        elif where == 2:
            raise RefusedError(f"datum {number}: {name} is sparse: write a dense tensor with one value for each token")
        elif where == 3:
            letter = _LETTERS.get(_whole(value), "")
        elif where == 4:
            shape += [value] if isinstance(value, int) else _packed(value)
    if not letter:
        raise RefusedError(f"datum {number}: {name} is neither float32 nor int64: convert it")
    values = _array(letter, data)
    if len(shape) > 1:
        raise RefusedError(f"datum {number}: {name} has {len(shape)} dimensions: write one value for each token")
    return values


def _array(letter: str, data: bytes) -> array[Any]:
    values: array[Any] = array(letter, data)  # raises ValueError if the last value is cut
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _bytes(letter: str, values: Iterable[float]) -> bytes:
    found = array(letter, values)
    if sys.byteorder == "big":
        found.byteswap()
    return found.tobytes()


def _entry(number: int, key: str, value: bytes) -> bytes:
    """Return an entry of a map; the value is a field 2."""
    return field(number, field(1, key) + value)


def _pair(entry: bytes) -> tuple[str, int | bytes]:
    """Return key and value of a map's entry; protobuf leaves out what is empty."""
    found = dict(fields(entry))
    return _text(found.get(1, b"")), found.get(2, b"")


def _number(name: str, value: int | bytes) -> float:
    """Return the number in a LossConfigValue."""
    found = dict(fields(_raw(value)))
    if 2 in found:
        raise RefusedError(f"loss_fn_config: {name} is a text: write a number")
    return _double(found.get(1, b""))


def _packed(values: bytes) -> list[int]:
    """Return the numbers of a packed field: each is written like a field without its tag."""
    return [1 for byte in values if byte < 0x80]  # only how many there are counts


def _double(value: int | bytes) -> float:
    data = _raw(value)
    return float(struct.unpack("<d", data)[0]) if data else 0.0


def _text(value: int | bytes) -> str:
    return _raw(value).decode()


def _raw(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number stands where a text or a message belongs")
    return value


def _whole(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("a text or a message stands where a number belongs")
    return value
