"""The client's protobuf messages, without the client and without protobuf."""

from __future__ import annotations

import math
import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner.tests.tinker import sent

from stoker.tinker import messages
from stoker.tinker.refusals import RefusedError, refuse_client
from stoker.tinker.wire import field, fields

GOOD: sent.Columns = {"target_tokens": [2, 3], "logprobs": [-1.0, -2.0], "advantages": [0.5, 0.25]}


def test_a_request_is_read_as_it_was_written() -> None:
    rows = [([1, 2], GOOD), ([300, 70000], GOOD)]
    read = messages.read_forward_backward(sent.forward_backward("m:1", 7, "ppo", rows, {"clip_low_threshold": 0.5}))
    assert (read.model_id, read.seq_id, read.loss, read.config) == ("m:1", 7, "ppo", {"clip_low_threshold": 0.5})
    assert not read.forward_only
    assert [list(datum.tokens) for datum in read.data] == [[1, 2], [300, 70000]]
    assert list(read.data[0].targets) == [2, 3]
    assert {name: list(column) for name, column in read.data[0].columns.items()} == {
        "logprobs": [-1.0, -2.0],
        "advantages": [0.5, 0.25],
    }


def test_what_is_answered_can_be_read() -> None:
    rows, metrics = sent.read_output(messages.forward_backward_output([[-1.0], [-2.0, -3.0], []], {"loss:sum": 6.0}))
    assert rows == [[-1.0], [-2.0, -3.0], []]
    assert metrics == {"loss:sum": 6.0}


def test_samples_are_written_with_the_prompts_first_token_unknown() -> None:
    body = messages.sample_response([messages.Sampled((5, 6), (-0.5, -1.0), cut=True)], [None, -2.0])
    (sequence,) = [bytes(value) for number, value in fields(body) if number == 1]
    assert dict(fields(sequence)) == {1: 1, 2: array("i", [5, 6]).tobytes(), 3: array("f", [-0.5, -1.0]).tobytes()}
    first, second = array("f", bytes(dict(fields(body))[2]))
    assert math.isnan(first)
    assert second == -2.0


REFUSED: dict[str, tuple[str, list[tuple[list[int], sent.Columns]], str]] = {
    "cispo": ("cispo", [([1, 2], GOOD)], "cross_entropy, importance_sampling, ppo"),
    "a column is missing": ("ppo", [([1, 2], {"target_tokens": [1, 2]})], "lacks 'advantages', which ppo needs"),
    "a column too many": ("cross_entropy", [([1, 2], GOOD)], "has 'advantages', which cross_entropy does not read"),
    "lengths differ": ("cross_entropy", [([1], {"target_tokens": [1, 2]})], "2 values and model_input 1 tokens"),
    "not finite": ("cross_entropy", [([1], {"target_tokens": [1], "weights": [math.nan]})], "not a finite number"),
    "no data": ("cross_entropy", [], "there is no data"),
    "an empty row": ("cross_entropy", [([], {"target_tokens": []})], "datum 0 is empty"),
    "targets are floats": ("cross_entropy", [([1], {"target_tokens": [1.5]})], "write int64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_request_that_cannot_be_trained_names_what_to_write(name: str) -> None:
    loss, rows, said = REFUSED[name]
    with pytest.raises(RefusedError, match=said.replace("(", r"\(")) as caught:
        messages.read_forward_backward(sent.forward_backward("m", 1, loss, rows))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (field(1, field(2, field(1, b"png"))), "an image or a sound"),
        (sent.datum([1], {"target_tokens": field(2, b"") + field(3, 2)}), "is sparse"),
        (sent.datum([1], {"target_tokens": sent.tensor([1, 2], shape=[1, 2])}), "has 2 dimensions"),
        (sent.datum([1], {"target_tokens": sent.tensor([1, 2]) + field(4, b"\x01\x02")}), "has 3 dimensions"),
        (sent.datum([1], {"target_tokens": field(1, b"\0\0\0") + field(3, 2)}), "not a ForwardBackwardRequest"),
        (sent.datum([1], {"target_tokens": field(1, b"\0\0") + field(3, 4)}), "neither float32 nor int64"),
    ],
)
def test_rows_of_another_kind_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        messages.read_forward_backward(sent.request("m", 1, "cross_entropy", [data]))


def test_settings_of_a_loss_are_its_own_numbers() -> None:
    with pytest.raises(RefusedError, match="cross_entropy has no setting 'beta'"):
        messages.read_forward_backward(
            sent.forward_backward("m", 1, "cross_entropy", [([1], {"target_tokens": [1]})], {"beta": 1.0})
        )
    text = field(7, field(1, "clip_low_threshold") + field(2, field(2, "low")))
    with pytest.raises(RefusedError, match="clip_low_threshold is a text"):
        messages.read_forward_backward(sent.forward_backward("m", 1, "ppo", [([1, 2], GOOD)]) + text)


@pytest.mark.parametrize(
    ("tokens", "targets", "said"),
    [([1, 2, 3], [1, 2, 3], "has 3 tokens, and the model reads 2"), ([1], [9], "target_tokens"), ([-1], [1], "0 to 8")],
)
def test_rows_that_the_model_cannot_read_are_refused(tokens: list[int], targets: list[int], said: str) -> None:
    body = sent.forward_backward("m", 1, "cross_entropy", [(tokens, {"target_tokens": targets})])
    with pytest.raises(RefusedError, match=said):
        messages.refuse_sizes(messages.read_forward_backward(body), vocabulary=9, context=2)


@given(st.binary(max_size=64))
def test_bytes_that_are_no_message_are_refused(body: bytes) -> None:
    with pytest.raises(RefusedError):
        messages.read_forward_backward(body)


@given(st.integers(0, 400))
def test_whose_gradients_a_request_adds_to_is_read_as_far_as_it_goes(size: int) -> None:
    body = sent.forward_backward("m", 1, "ppo", [([1, 2], {**GOOD, "advantages": [math.nan, 1.0]})])
    assert messages.model_in(body[:size]) == ("m" if size > 2 else "")
    forward = sent.forward_backward("m", 1, "ppo", [([1, 2], GOOD)], forward_only=True)
    assert messages.model_in(forward) == ""


@given(st.binary(max_size=64))
def test_bytes_that_are_no_message_are_nobodys_or_somebodys(body: bytes) -> None:
    assert isinstance(messages.model_in(body), str)


@given(st.integers(0, 200), st.binary(min_size=1, max_size=4))
def test_a_damaged_request_is_read_or_refused(at: int, other: bytes) -> None:
    body = sent.forward_backward("m", 1, "ppo", [([1, 2], GOOD)])
    try:
        messages.read_forward_backward(body[:at] + other + body[at + len(other) :])
    except RefusedError as error:
        assert error.message  # noqa: PT017 - reading it is as good


@given(st.integers(0, 2**63 - 1), st.binary(max_size=300), st.floats(allow_nan=False))
def test_fields_are_read_as_they_were_written(number: int, data: bytes, real: float) -> None:
    body = field(1, number) + field(2, data) + field(300, real)
    assert list(fields(body)) == [(1, number), (2, data), (300, struct.pack("<d", real))]


@pytest.mark.parametrize("version", ["", "0.37.9", "0.39.0", "1.38.0", "0.380.1", "0.38"])
def test_a_client_of_another_version_is_told_which_to_install(version: str) -> None:
    with pytest.raises(RefusedError, match=r"pip install 'tinker==0\.38\.\*'"):
        refuse_client(version)


def test_a_client_of_this_version_is_welcome() -> None:
    refuse_client("0.38.0")
    refuse_client("0.38.12")
