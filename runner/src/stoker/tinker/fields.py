"""Reads the fields of requests, and what they ask to sample. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.serve.vllm import PLAIN_SAMPLING
from stoker.tinker.refusals import RefusedError
from stoker.tinker.samplers import SampleRequest

Body = Mapping[str, Any]

_MOST_SAMPLES = 1024


def text_in(body: Body, name: str) -> str:
    """Return a text of a body.

    Raises:
        RefusedError: it is missing, or something else.
    """
    if not isinstance(body.get(name), str):
        raise RefusedError(f"{name} is missing or not a text: send what tinker 0.38's client sends")
    return str(body[name])


def number_in(body: Body, name: str) -> int:
    """Return a whole number of a body.

    Raises:
        RefusedError: it is missing, or something else.
    """
    value = body.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise RefusedError(f"{name} is missing or not a whole number: correct it")
    return value


def object_in(body: Body, name: str) -> Body:
    """Return an object of a body.

    Raises:
        RefusedError: it is missing, or something else.
    """
    value = body.get(name)
    if not isinstance(value, Mapping):
        raise RefusedError(f"{name} is missing or not an object: send what tinker 0.38's client sends")
    return value


def list_in(body: Body, name: str) -> list[Any]:
    """Return a list of a body.

    Raises:
        RefusedError: it is missing, or something else.
    """
    value = body.get(name)
    if not isinstance(value, list):
        raise RefusedError(f"{name} is missing or not a list: send what tinker 0.38's client sends")
    return value


def read_sampling(body: Body) -> SampleRequest:
    """Return what a sample request asks vLLM for.

    Raises:
        RefusedError: something is missing or wrong.
    """
    prompt: list[Any] = []
    for chunk in list_in(object_in(body, "prompt"), "chunks"):
        if not isinstance(chunk, Mapping) or chunk.get("type", "encoded_text") != "encoded_text":
            raise RefusedError("the prompt has an image or a sound: this endpoint reads tokens only")
        prompt += list_in(chunk, "tokens")
    if not prompt or not all(isinstance(token, int) and token >= 0 for token in prompt):
        raise RefusedError("the prompt has no tokens, or one that is not a number from 0: correct it")
    count = number_in(body, "num_samples") if body.get("num_samples") is not None else 1
    if not 1 <= count <= _MOST_SAMPLES:
        raise RefusedError(f"num_samples is {count}: write 1 to {_MOST_SAMPLES}")
    given = object_in(body, "sampling_params")
    if given.get("max_tokens") is None:
        raise RefusedError("max_tokens is missing: write SamplingParams(max_tokens=…)")
    settings: dict[str, Any] = {
        "max_tokens": number_in(given, "max_tokens"),
        **PLAIN_SAMPLING,
        **{name: given[name] for name in ("temperature", "top_p", "top_k") if name in given},
    }
    if given.get("seed") is not None:
        settings["seed"] = number_in(given, "seed")
    stop = given.get("stop")
    if stop == []:
        settings["ignore_eos"] = True
    elif isinstance(stop, list) and all(isinstance(one, int) for one in stop):
        settings["stop_token_ids"] = stop
    elif stop is not None:
        settings["stop"] = stop
    return SampleRequest(prompt, count, settings, bool(body.get("prompt_logprobs")))
