"""How prompts, answers and tool texts become tokens and back, as TRL's GRPOTrainer does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts.failures import said_by

Message = dict[str, Any]
Tools = Sequence[Mapping[str, Any]]
# A text, or messages.
Prompt = Any


@dataclass(frozen=True, slots=True)
class Chat:
    """What turns a conversation into tokens.

    Attributes:
        encode: tokens of a prompt that an answer is to follow; of a conversation with its tools.
        decode: the text of tokens.
        parse: the message that an answer is, with its `tool_calls`: the answer's tokens, those before it, the tools.
        suffix: tokens of tool messages after an answer, up to where the next answer begins. None if the chat template
            changes what came before: the conversation is then encoded anew.
    """

    encode: Callable[[Prompt, Tools], Sequence[int]]
    decode: Callable[[Sequence[int]], str]
    parse: Callable[[Sequence[int], Sequence[int], Tools], Message]
    suffix: Callable[[list[Message]], Sequence[int]] | None = None


def is_conversation(prompt: Prompt) -> bool:
    """Return whether a prompt is messages, as TRL tells it from a text."""
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], Mapping) and "role" in prompt[0]


@contextmanager
def encoding(row: str) -> Iterator[None]:
    """Name the row whose prompt is made into tokens, if this fails.

    Args:
        row: which one, such as `row 5 of the data set`.

    Raises:
        RunError: the tokenizer or its chat template refuses the prompt (65).
    """
    try:
        yield
    except Exception as error:
        raise RunError(
            ExitCode.BAD_DATA,
            f"the prompt of {row} cannot be made into tokens ({said_by(error)}): write messages as the model's chat "
            "template takes them, such as without a system message, or leave the row out",
        ) from error


def chat_of(tokenizer: Any, tools: bool = False, template_kwargs: Mapping[str, Any] | None = None) -> Chat:
    """Return the chat of a tokenizer of transformers.

    Args:
        tokenizer: the tokenizer; TRL may give it a `response_template`.
        tools: the policy has tools.
        template_kwargs: more arguments of its chat template.

    Raises:
        RunError: TRL cannot read tool calls in this chat template (78).
    """
    template = _template_for_tools(tokenizer) if tools else None
    more = dict(template_kwargs or {})
    if template is not None:
        more["chat_template"] = template
    parses = any(getattr(tokenizer, name, None) is not None for name in ("response_template", "response_schema"))

    def encode(prompt: Prompt, offered: Tools) -> Sequence[int]:
        if not is_conversation(prompt):
            if offered:
                raise ValueError("it is a text, which cannot show tools")
            ids: Sequence[int] = tokenizer(text=prompt)["input_ids"]
            return ids
        return _rendered(tokenizer, prompt, tools=list(offered) or None, add_generation_prompt=True, **more)

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=True))

    def parse(ids: Sequence[int], prefix: Sequence[int], offered: Tools) -> Message:
        if not parses:
            return {"role": "assistant", "content": decode(ids)}
        from trl.chat_template_utils import parse_response

        message: Message = parse_response(tokenizer, list(ids), prefix=list(prefix), tools=list(offered) or None)
        return message

    def suffix(messages: list[Message]) -> Sequence[int]:
        return _suffix(tokenizer, messages, more)

    return Chat(encode, decode, parse, suffix if tools and _keeps_prefixes(tokenizer, more) else None)


def _template_for_tools(tokenizer: Any) -> str | None:
    """Return a chat template of TRL's to use instead of the tokenizer's own, which would change earlier messages."""
    from trl.chat_template_utils import (
        add_response_schema,
        get_training_chat_template,
        is_chat_template_prefix_preserving,
        supports_tool_calling,
    )

    name = getattr(tokenizer, "name_or_path", "") or "the model"
    other = "use an instruction-tuned model whose template has tools, such as Qwen 3, or leave out --tools and "
    if not supports_tool_calling(tokenizer):
        raise RunError(
            ExitCode.CONFIG, f"the chat template of {name} cannot show tool calls: {other}--environment_factory"
        )
    if not any(getattr(tokenizer, field, None) is not None for field in ("response_template", "response_schema")):
        try:
            add_response_schema(tokenizer)
        except ValueError as error:
            raise RunError(
                ExitCode.CONFIG,
                f"TRL cannot read tool calls in the chat template of {name}: write a `response_template` into its "
                f"tokenizer_config.json, or {other}--environment_factory",
            ) from error
    if is_chat_template_prefix_preserving(tokenizer):
        return None
    try:
        template: str | None = get_training_chat_template(tokenizer)
    except ValueError:
        return None
    return template


def _keeps_prefixes(tokenizer: Any, more: Mapping[str, Any]) -> bool:
    try:
        _suffix(tokenizer, [{"role": "tool", "name": "dummy", "content": "dummy"}], more)
    except ValueError:
        return False
    return True


def _suffix(tokenizer: Any, messages: list[Message], more: Mapping[str, Any]) -> Sequence[int]:
    """Return what the template adds after an answer that ends with its EOS, found on a small conversation."""
    call = {"type": "function", "function": {"name": messages[0]["name"], "arguments": {}}}
    before: list[Message] = [
        {"role": "user", "content": "dummy"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    prefix = list(_rendered(tokenizer, before, add_generation_prompt=False, **more))
    whole = list(_rendered(tokenizer, [*before, *messages], add_generation_prompt=True, **more))
    # The policy's answer ends with EOS; a template may add a line break to it.
    ends = [at for at, token in enumerate(prefix) if token == tokenizer.eos_token_id]
    prefix = prefix[: ends[-1] + 1] if ends else prefix
    if whole[: len(prefix)] != prefix:
        raise ValueError("the chat template changes earlier messages")
    return whole[len(prefix) :]


def _rendered(tokenizer: Any, messages: Sequence[Message], **options: Any) -> Sequence[int]:
    ids: Sequence[int] = tokenizer.apply_chat_template(list(messages), tokenize=True, return_dict=False, **options)
    return ids
