"""What everybody who serves has to give OpenAI's package: looks at what openai_user.py printed."""

from __future__ import annotations

from typing import Any

# What is asked wrongly there → the package's exception, the status, and words of the message.
REFUSALS = [
    ("key", "AuthenticationError", 401, "API key is missing or wrong"),
    ("model", "NotFoundError", 404, "`nobody` does not exist"),
    ("length", "BadRequestError", 400, "maximum context length"),
    ("temperature", "BadRequestError", 400, "temperature"),
    ("path", "NotFoundError", 404, "There is no such path."),
]


def check_models(said: dict[str, Any]) -> None:
    """The model and its adapter are listed."""
    assert said["models"] == ["base", "first"], said
    assert said["tuned_model"] == "first"


def check_answers(said: dict[str, Any]) -> None:
    """A chat and a completion have as many tokens as were asked for, and the adapter says something else."""
    assert said["chat_tokens"] == said["logprobs"] == 8, said
    assert said["chat"]
    assert said["text"]
    assert said["tuned"] != said["chat"]


def check_streams(said: dict[str, Any]) -> None:
    """The same comes in pieces."""
    assert said["streamed_chat"] == said["chat"], said
    assert said["streamed_tokens"] == said["chat_tokens"]
    assert said["streamed_chunks"] > 4
    assert said["streamed_text"] == said["text"]


def check_refusal(said: dict[str, Any], what: str, error: str, status: int, words: str) -> None:
    """One row of `REFUSALS` holds."""
    found = said["wrongly"][what]
    assert (found["error"], found["status"]) == (error, status), found
    assert words in found["message"]
