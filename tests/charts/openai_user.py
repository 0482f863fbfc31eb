"""What a user of OpenAI's Python package does with a server; prints what came of it as JSON.

python openai_user.py URL MODEL ADAPTER, with the key in API_KEY
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import openai

QUESTION: list[Any] = [{"role": "user", "content": "What is the symbol of iron?"}]
PROMPT = "What is the symbol of iron?"


def refusal(ask: Callable[[], Any]) -> dict[str, Any]:
    """Return the package's own exception, its status and message; empty if there was none."""
    try:
        ask()
    except openai.APIStatusError as error:
        return {"error": type(error).__name__, "status": error.status_code, "message": error.message}
    return {}


def main(url: str, model: str, adapter: str) -> dict[str, Any]:
    """Ask for everything, whole and streamed, rightly and wrongly."""
    client = openai.OpenAI(base_url=url, api_key=os.environ["API_KEY"], max_retries=0, timeout=120)
    stranger = client.with_options(api_key="another")
    # Eight tokens, whatever a small model says first.
    few: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "extra_body": {"ignore_eos": True}}

    chat = client.chat.completions.create(model=model, messages=QUESTION, logprobs=True, top_logprobs=2, **few)
    tuned = client.chat.completions.create(model=adapter, messages=QUESTION, **few)
    chunks = list(
        client.chat.completions.create(
            model=model, messages=QUESTION, stream=True, stream_options={"include_usage": True}, **few
        )
    )
    text = client.completions.create(model=model, prompt=PROMPT, **few)
    parts = list(client.completions.create(model=model, prompt=PROMPT, stream=True, **few))
    wrongly: dict[str, Callable[[], Any]] = {
        "key": lambda: stranger.chat.completions.create(model=model, messages=QUESTION),
        "model": lambda: client.chat.completions.create(model="nobody", messages=QUESTION),
        "length": lambda: client.completions.create(model=model, prompt="iron " * 2000, max_tokens=8),
        "temperature": lambda: client.completions.create(model=model, prompt=PROMPT, temperature=-1),
        "path": client.files.list,
    }
    return {
        "models": [found.id for found in client.models.list()],
        "chat": chat.choices[0].message.content,
        "chat_tokens": chat.usage and chat.usage.completion_tokens,
        "logprobs": len((chat.choices[0].logprobs and chat.choices[0].logprobs.content) or []),
        "tuned": tuned.choices[0].message.content,
        "tuned_model": tuned.model,
        "streamed_chat": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
        "streamed_chunks": len(chunks),
        "streamed_tokens": chunks[-1].usage and chunks[-1].usage.completion_tokens,
        "text": text.choices[0].text,
        "streamed_text": "".join(part.choices[0].text for part in parts),
        "wrongly": {name: refusal(ask) for name, ask in wrongly.items()},
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
