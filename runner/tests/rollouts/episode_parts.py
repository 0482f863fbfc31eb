"""What the tests of episodes share: a user's module, a group, a tokenizer of characters, a sampler with a script."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stoker.rollouts.chat import Chat, Message, is_conversation
from stoker.rollouts.records import Group, Request, Turn

SOURCE = Path(__file__).parents[2] / "src"
END = ord(".")


def write_module(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str = "mine") -> None:
    """Write a user's module where their process finds it, with the runner beside it."""
    (folder / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(SOURCE)]))


def group(ordinal: int = 7, version: int = 3, **columns: Any) -> Group:
    """Return a group of row 5 in epoch 1."""
    return Group(
        ordinal, -1 if ordinal < 0 else 1, 5, {"prompt": "2+2=", "answer": "4", **columns}, version, version + 4
    )


def seeds(index: int, turn: int) -> int:
    """Return a seed that shows what it is of."""
    return 100 * index + turn


class Script:
    """A sampler that answers from a script, a token per character.

    Args:
        answer: gives the text of an answer.

    Attributes:
        requests: what it was asked.
    """

    def __init__(self, answer: Callable[[Request], str]) -> None:
        self._answer = answer
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Turn:
        """Answer a request."""
        self.requests.append(request)
        await asyncio.sleep(0)
        ids = tuple(map(ord, self._answer(request)))
        cut = ids[: request.max_tokens]
        logprobs = tuple(-0.5 for _ in cut)
        finish = "stop" if cut == ids else "length"
        return Turn(request.prompt_ids, cut, logprobs, request.version, finish, "pod-0", 0.01)


def characters(keeps: bool = True, tools: bool = True) -> Chat:
    """Return the chat of a tokenizer of characters: `U:…|A:…|T:…|`, an answer ends with a full stop.

    Args:
        keeps: the template keeps earlier answers; otherwise it drops what they say before a `;`.
        tools: it can be continued after tools.
    """

    def shown(message: Message) -> str:
        content = str(message["content"])
        if message["role"] == "assistant":
            content = str(message.get("raw", content))
            return "A:" + (content if keeps else content.rpartition(";")[2])
        return f"{message['role'][0].upper()}:{content}|"

    def encode(prompt: Any, offered: Sequence[Mapping[str, Any]]) -> list[int]:
        if not is_conversation(prompt):
            return list(map(ord, prompt))
        names = ",".join(str(tool["function"]["name"]) for tool in offered)
        return list(map(ord, (f"[{names}]" if names else "") + "".join(map(shown, prompt)) + "A:"))

    def decode(ids: Sequence[int]) -> str:
        return "".join(map(chr, ids)).removesuffix(chr(END))

    def parse(ids: Sequence[int], prefix: Sequence[int], offered: Sequence[Mapping[str, Any]]) -> Message:
        text = decode(ids)
        message: Message = {"role": "assistant", "content": text, "raw": "".join(map(chr, ids))}
        if "{" in text:
            call = json.loads(text[text.index("{") :])
            message["tool_calls"] = [{"type": "function", "function": call}]
        return message

    def suffix(messages: list[Message]) -> list[int]:
        return list(map(ord, "".join(map(shown, messages)) + "A:"))

    return Chat(encode, decode, parse, suffix if keeps and tools else None)
