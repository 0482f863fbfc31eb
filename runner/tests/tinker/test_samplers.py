"""Samplers come and go under an endpoint: only those that are there are waited for and asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from runner.tests.tinker import vllm_stand_in
from runner.tests.tinker.vllm_stand_in import StandIn

from stoker.serve.vllm import Server, ServerError
from stoker.tinker.refusals import RefusedError
from stoker.tinker.samplers import SampleRequest, Samplers

# Nobody listens there, as at the address of a sampler that a run may get later.
NOBODY = "http://127.0.0.1:1"
ASKED = SampleRequest([1, 2], 1, {"max_tokens": 1})


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[StandIn, StandIn]]:
    """Two servers of one folder."""
    with ExitStack() as stack:
        one, other = (stack.enter_context(vllm_stand_in.serving(tmp_path)) for _ in range(2))
        yield one, other


def of(folder: Path, *addresses: str, seconds: float = 5.0) -> Samplers:
    """Return the samplers of an endpoint."""
    return Samplers(addresses, folder, "tinker", "me", "model", seconds=seconds)


def published(samplers: Samplers) -> str:
    """Publish an adapter, and return its name."""

    def write(folder: Path) -> None:
        (folder / "adapter_config.json").write_text("{}")
        (folder / "adapter_model.safetensors").write_bytes(b"")

    return samplers.publish(write)


def test_addresses_that_nobody_is_at_are_neither_waited_for_nor_asked_first(
    tmp_path: Path, two: tuple[StandIn, StandIn]
) -> None:
    samplers = of(tmp_path, NOBODY, two[0].address, NOBODY, two[1].address)
    name = published(samplers)
    samplers.wait(name)
    for _ in range(6):
        samplers.sample(name, ASKED)
    assert [len(server.requests) for server in two] == [3, 3]


def test_a_sampler_that_goes_leaves_its_requests_to_the_others(tmp_path: Path, two: tuple[StandIn, StandIn]) -> None:
    samplers = of(tmp_path, two[0].address, two[1].address)
    name = published(samplers)
    samplers.wait(name)
    two[0].shutdown()
    two[0].server_close()
    for _ in range(4):
        samplers.sample(name, ASKED)
    assert len(two[1].requests) == 4


def test_a_version_that_one_lacks_is_waited_for(tmp_path: Path, two: tuple[StandIn, StandIn]) -> None:
    two[1].folder = tmp_path / "elsewhere"
    samplers = of(tmp_path, two[0].address, two[1].address, seconds=0.5)
    name = published(samplers)
    with pytest.raises(RefusedError, match="does not list it"):
        samplers.wait(name)


def test_watchers_are_told_of_a_version(tmp_path: Path, two: tuple[StandIn, StandIn]) -> None:
    two[0].watches = True  # and does not look by itself; the other has nobody who could
    samplers = of(tmp_path, NOBODY, two[0].address, two[1].address, seconds=2)
    name = published(samplers)
    samplers.wait(name)
    assert two[0].told == {name}


def test_without_any_sampler_the_reason_is_told(tmp_path: Path) -> None:
    samplers = of(tmp_path, NOBODY, seconds=0.5)
    name = published(samplers)
    with pytest.raises(RefusedError, match="refused"):
        samplers.wait(name)
    with pytest.raises(RefusedError, match=r"no sampler has answered within 0\.5 s .*refused.*--answer_seconds"):
        samplers.sample(None, ASKED)


def answering(monkeypatch: pytest.MonkeyPatch, *answers: object) -> list[str]:
    """Let servers answer so, one request after the other, and return the models that are asked for."""
    left, asked = iter(answers), list[str]()

    def complete(server: Server, request: Mapping[str, Any]) -> object:
        asked.append(request["model"])
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(Server, "complete", complete)
    monkeypatch.setattr("stoker.tinker.samplers._AGAIN_SECONDS", 0.01)
    return asked


def written(finish: str = "length") -> dict[str, Any]:
    """Return vLLM's answer of one token."""
    choice = {"token_ids": [7], "logprobs": {"token_logprobs": [-0.5]}, "finish_reason": finish}
    return {"choices": [choice]}


@pytest.mark.parametrize(
    "hiccup",
    [
        ServerError("connection refused"),
        ServerError("EngineDeadError", 500),
        ServerError("bad gateway", 502),
        ServerError("too many requests", 429),
        written("abort"),
    ],
    ids=["starts again", "ends", "gone", "busy", "aborted"],
)
def test_a_sampler_that_comes_back_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hiccup: object
) -> None:
    samplers = of(tmp_path, NOBODY)
    name = published(samplers)
    asked = answering(monkeypatch, hiccup, hiccup, written())
    (answer,), _ = samplers.sample(name, ASKED)
    assert (answer.tokens, len(asked)) == ((7,), 3)


def test_a_version_that_is_not_loaded_yet_is_asked_for_again_and_a_retracted_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samplers = of(tmp_path, NOBODY)
    name = published(samplers)
    absent = ServerError("does not exist", 404)
    answering(monkeypatch, absent, written(), absent)
    samplers.sample(name, ASKED)
    samplers.retract(name)
    with pytest.raises(RefusedError, match="does not exist") as refused:
        samplers.sample(name, ASKED)
    assert refused.value.status == 404


def test_a_refusal_is_told_and_not_who_else_was_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = iter([ServerError("connection refused"), ServerError("max_tokens is too large", 400)])

    def complete(server: Server, request: object) -> None:
        raise next(errors)

    monkeypatch.setattr(Server, "complete", complete)
    samplers = of(tmp_path, NOBODY, NOBODY)
    with pytest.raises(RefusedError, match="max_tokens is too large") as refused:
        samplers.sample("run:1", ASKED)
    assert refused.value.status == 400
