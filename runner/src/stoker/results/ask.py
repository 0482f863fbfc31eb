"""Asks a result without a server, and streams its answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.results.packages import needing

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Asking:
    """How a model answers.

    Attributes:
        max_tokens: the most tokens of an answer.
        temperature: 0 for the likeliest answer.
        system: what the model is told first; empty for nothing.
    """

    max_tokens: int = 512
    temperature: float = 0.0
    system: str = ""


class Talk:
    """A conversation with a model.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        asking: how it answers.
    """

    def __init__(self, model: Any, tokenizer: Any, asking: Asking) -> None:
        self._model, self._tokenizer, self._asking = model, tokenizer, asking
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self._messages: list[Message] = []
        if self._asking.system:
            self._messages.append({"role": "system", "content": self._asking.system})

    def ask(self, question: str, write: Callable[[str], None]) -> str:
        """Return the answer to a question.

        Args:
            question: the question.
            write: takes each piece of the answer as soon as it is known.

        Raises:
            RunError: the conversation is longer than the model can read, or its template refuses it (65). The
                conversation is then as it was before.
        """
        from transformers import TextStreamer

        class Streamer(TextStreamer):  # type: ignore[misc, unused-ignore]
            def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
                pieces.append(text)
                write(text)

        pieces: list[str] = []
        asked = [*self._messages, {"role": "user", "content": question}]
        inputs = self._inputs(asked).to(self._model.device)
        length, most = inputs["input_ids"].shape[1], getattr(self._model.config, "max_position_embeddings", None)
        if most is not None and length >= most:
            raise RunError(
                ExitCode.BAD_DATA,
                f"the conversation has {length} tokens, and the model reads {most}: write less, or begin anew (/new)",
            )
        room = self._asking.max_tokens if most is None else min(self._asking.max_tokens, most - length)
        warm = self._asking.temperature > 0
        self._model.generate(
            **inputs,
            max_new_tokens=room,
            do_sample=warm,
            **(
                {"temperature": self._asking.temperature}
                if warm
                else {"temperature": None, "top_p": None, "top_k": None}
            ),
            pad_token_id=self._tokenizer.pad_token_id or self._tokenizer.eos_token_id,
            streamer=Streamer(self._tokenizer, skip_prompt=True, skip_special_tokens=True),
        )
        answer = "".join(pieces)
        self._messages = [*asked, {"role": "assistant", "content": answer}]
        return answer

    def _inputs(self, messages: Sequence[Message]) -> Any:
        with needing("local"):
            if self._tokenizer.chat_template:
                import jinja2

                try:
                    return self._tokenizer.apply_chat_template(
                        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
                    )
                except jinja2.TemplateError as error:
                    raise RunError(
                        ExitCode.BAD_DATA,
                        f"the model's chat template refuses the messages ({error}): leave out --system, or begin anew",
                    ) from error
            # A base model continues text.
            return self._tokenizer("\n".join(message["content"] for message in messages), return_tensors="pt")
